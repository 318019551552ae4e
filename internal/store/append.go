package store

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/apogeemq/apogee/internal/message"
)

// Topics with a meaning to the store.
const (
	retryPrefix   = "%RETRY%"
	scheduleTopic = "SCHEDULE_TOPIC_XXXX"
)

// writeBatch is what the committer writes at once. Its buffer and lists are used again.
type writeBatch struct {
	buf     []byte
	chunks  []chunk
	entries []entry
	waiters []batchWaiter
}

// chunk is a run of buf that goes to one place of the log.
type chunk struct {
	at         int64
	begin, end int
}

// entry is one record: what dispatching needs to know of it.
type entry struct {
	q              *queue // nil: has no place in a consume queue
	queueOffset    int64
	physical       int64
	size           int32
	begin          int // in buf
	tagsCode       int64
	storeTimestamp int64
}

// batchWaiter is one append of one or more entries.
type batchWaiter struct {
	w     Waiter
	first int // entries
	count int
	sizes []int32 // of a batch append
}

func (b *writeBatch) reset() {
	if cap(b.buf) > 8<<20 {
		b.buf = nil
	}
	b.buf = b.buf[:0]
	b.chunks = b.chunks[:0]
	clear(b.entries)
	b.entries = b.entries[:0]
	clear(b.waiters)
	b.waiters = b.waiters[:0]
}

// checkMessage refuses what can't be stored, with Java's limits.
func (s *Store) checkMessage(m *message.Message) error {
	switch {
	case len(m.Topic) == 0 || len(m.Topic) > message.MaxTopic || len(m.Topic) > 127 && !strings.HasPrefix(m.Topic, retryPrefix):
		return fmt.Errorf("%w: topic name of %d bytes, at most 127 are allowed", ErrIllegal, len(m.Topic))
	case len(m.Body) > s.o.MaxMessage:
		return fmt.Errorf("%w: body of %d bytes, maxMessageSize is %d", ErrIllegal, len(m.Body), s.o.MaxMessage)
	case len(m.Properties) > message.MaxProperties:
		return fmt.Errorf("%w: properties of %d bytes, at most %d are allowed", ErrIllegal, len(m.Properties), message.MaxProperties)
	case m.QueueID < 0:
		return fmt.Errorf("%w: queue id %d", ErrIllegal, m.QueueID)
	case m.SysFlag&message.InnerBatch != 0:
		return fmt.Errorf("%w: inner batches are not supported", ErrIllegal)
	}
	if n := m.RecordSize(); int64(n)+message.BlankSize > s.o.SegmentSize {
		return fmt.Errorf("%w: record of %d bytes in commit-log files of %d", ErrIllegal, n, s.o.SegmentSize)
	}
	return nil
}

var recordBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// Append stores m and tells w. It copies m before it returns. While too much waits to be written it blocks.
func (s *Store) Append(m *message.Message, w Waiter) {
	if err := s.checkMessage(m); err != nil {
		s.counters.Refused.Add(1)
		w.Appended(Result{Err: err})
		return
	}
	buf := recordBuffers.Get().(*[]byte)
	rec := message.AppendRecord((*buf)[:0], m)
	tags := s.tagsOf(m)
	err := s.place(m.Topic, m.QueueID, rec, []record{{size: len(rec), tags: tags, queued: m.SysFlag.Queued()}}, w, false)
	if cap(rec) <= 1<<20 {
		*buf = rec[:0]
		recordBuffers.Put(buf)
	}
	if err != nil {
		s.counters.Refused.Add(1)
		w.Appended(Result{Err: err})
	}
}

// AppendBatch stores messages of one topic and queue, with consecutive offsets, all or none, in one segment.
func (s *Store) AppendBatch(ms []message.Message, w Waiter) {
	if err := s.appendBatch(ms, w); err != nil {
		s.counters.Refused.Add(1)
		w.Appended(Result{Err: err})
	}
}

func (s *Store) appendBatch(ms []message.Message, w Waiter) error {
	if len(ms) == 0 {
		return fmt.Errorf("%w: an empty batch", ErrIllegal)
	}
	var all []byte
	recs := make([]record, len(ms))
	total := 0
	for i := range ms {
		if err := s.checkMessage(&ms[i]); err != nil {
			return err
		}
		if ms[i].Topic != ms[0].Topic || ms[i].QueueID != ms[0].QueueID {
			return fmt.Errorf("%w: a batch of more than one queue", ErrIllegal)
		}
		if total += len(ms[i].Body); total > s.o.MaxMessage {
			return fmt.Errorf("%w: batch of more than maxMessageSize %d bytes", ErrIllegal, s.o.MaxMessage)
		}
		before := len(all)
		all = message.AppendRecord(all, &ms[i])
		recs[i] = record{size: len(all) - before, tags: s.tagsOf(&ms[i]), queued: true}
	}
	if int64(len(all))+message.BlankSize > s.o.SegmentSize {
		return fmt.Errorf("%w: batch of %d bytes in commit-log files of %d", ErrIllegal, len(all), s.o.SegmentSize)
	}
	return s.place(ms[0].Topic, ms[0].QueueID, all, recs, w, true)
}

// record is what place knows of one built record.
type record struct {
	size   int
	tags   tagsRule
	queued bool
}

// tagsRule makes a tags code: a hash, or for the schedule topic the store time plus a delay.
type tagsRule struct {
	code     int64
	schedule bool
}

func (t tagsRule) at(storeTime int64) int64 {
	if t.schedule {
		return storeTime + t.code
	}
	return t.code
}

func (s *Store) tagsOf(m *message.Message) tagsRule {
	return s.tags(m.Topic, m.Properties)
}

func (s *Store) tags(topic string, props []byte) tagsRule {
	if topic == scheduleTopic {
		if v, ok := message.Property(props, message.PropertyDelayLevel); ok {
			if level := atoi(v); level > 0 {
				d := time.Second // Java's delay of a level it doesn't know
				if n := len(s.o.DelayLevels); n > 0 {
					d = s.o.DelayLevels[min(level, n)-1]
				}
				return tagsRule{d.Milliseconds(), true}
			}
		}
	}
	v, _ := message.Property(props, message.PropertyTags)
	return tagsRule{code: message.TagsCode(v)}
}

func atoi(b []byte) int {
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' || n > 1<<20 {
			return 0
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// place gives built records their place: the short critical section of an append.
func (s *Store) place(topic string, queueID int32, bytes []byte, recs []record, w Waiter, batch bool) error {
	q, err := s.queue(topic, queueID, true)
	if err != nil {
		return err
	}
	s.mu.Lock()
	for len(s.filling.buf) > s.o.MaxBatch && s.state == nil {
		s.room.Wait()
	}
	if s.state != nil {
		err := s.state
		s.mu.Unlock()
		return err
	}
	b := s.filling
	now := max(s.o.Now().UnixMilli(), s.lastTime)
	s.lastTime = now
	if left := s.segEnd - s.end; int64(len(bytes))+message.BlankSize > left {
		if left > 0 {
			s.chunk(b, message.AppendBlank(nil, int(left)))
		}
		s.end = s.segEnd
		s.segEnd += s.o.SegmentSize
	}
	first := len(b.entries)
	at := s.end
	begin := s.chunk(b, bytes)
	s.end += int64(len(bytes))
	var sizes []int32
	for _, r := range recs {
		rec := b.buf[begin : begin+r.size]
		e := entry{physical: at, size: int32(r.size), begin: begin, tagsCode: r.tags.at(now), storeTimestamp: now}
		if r.queued {
			e.q, e.queueOffset = q, q.next
			q.next++
		}
		message.SetQueueOffset(rec, e.queueOffset)
		message.SetPhysicalOffset(rec, at)
		message.SetStoreTimestamp(rec, now)
		b.entries = append(b.entries, e)
		begin += r.size
		at += int64(r.size)
		if batch {
			sizes = append(sizes, int32(r.size))
		}
	}
	b.waiters = append(b.waiters, batchWaiter{w: w, first: first, count: len(recs), sizes: sizes})
	s.mu.Unlock()
	select {
	case s.kick <- struct{}{}:
	default:
	}
	return nil
}

// chunk puts bytes behind s.end into the batch and returns where in its buffer they begin.
func (s *Store) chunk(b *writeBatch, bytes []byte) int {
	begin := len(b.buf)
	b.buf = append(b.buf, bytes...)
	if n := len(b.chunks); n > 0 && b.chunks[n-1].at+int64(begin-b.chunks[n-1].begin) == s.end && s.end%s.o.SegmentSize != 0 {
		b.chunks[n-1].end = len(b.buf)
	} else {
		b.chunks = append(b.chunks, chunk{at: s.end, begin: begin, end: len(b.buf)})
	}
	return begin
}

// commitLoop is the committer.
func (s *Store) commitLoop() {
	for {
		select {
		case <-s.kick:
			s.commit()
		case <-s.stop:
			s.commit() // what was placed before the stop
			return
		}
	}
}

// commit takes the filled batch through writing, flushing and dispatching to its waiters.
func (s *Store) commit() {
	s.mu.Lock()
	b := s.filling
	if len(b.entries) == 0 {
		s.mu.Unlock()
		return
	}
	s.filling = s.spare
	s.spare = nil
	s.room.Broadcast()
	s.mu.Unlock()

	if err := s.writeBatch(b); err != nil {
		s.failBatch(b, err)
	} else {
		s.dispatch(b)
		s.complete(b)
	}
	b.reset()
	s.mu.Lock()
	s.spare = b
	s.mu.Unlock()
}

// writeBatch writes the batch and, in flushed mode, flushes it.
func (s *Store) writeBatch(b *writeBatch) error {
	for _, c := range b.chunks {
		base := c.at - c.at%s.o.SegmentSize
		g := s.dirtySeg
		if g == nil || g.base != base {
			if g != nil && s.o.Flush == SyncFlush {
				if err := g.file.Datasync(); err != nil {
					return fmt.Errorf("%w: flush %s: %w", ErrLogFailed, g.name, err)
				}
			}
			var err error
			if g, err = s.ensureSegment(base); err != nil {
				if errors.Is(err, syscall.ENOSPC) {
					return fmt.Errorf("%w: %w", ErrDiskFull, err)
				}
				return fmt.Errorf("%w: %w", ErrLogFailed, err)
			}
			s.dirtySeg = g
		}
		if _, err := g.file.WriteAt(b.buf[c.begin:c.end], c.at-base); err != nil {
			if errors.Is(err, syscall.ENOSPC) {
				return fmt.Errorf("%w: write %s: %w", ErrDiskFull, g.name, err)
			}
			return fmt.Errorf("%w: write %s at %d: %w", ErrLogFailed, g.name, c.at-base, err)
		}
	}
	s.counters.Batches.Add(1)
	if s.o.Flush == SyncFlush {
		if err := s.dirtySeg.file.Datasync(); err != nil {
			return fmt.Errorf("%w: flush %s: %w", ErrLogFailed, s.dirtySeg.name, err)
		}
		s.counters.Flushes.Add(1)
		last := b.chunks[len(b.chunks)-1]
		s.flushed.Store(last.at + int64(last.end-last.begin))
	}
	return nil
}

// failBatch answers everything that waits with err: this batch, and what was placed behind it, whose place in
// the log is gone with it. A full disk takes the places back; any other failure ends the log.
func (s *Store) failBatch(b *writeBatch, err error) {
	s.mu.Lock()
	behind := s.filling
	if errors.Is(err, ErrDiskFull) {
		if e := s.takeBack(b, behind); e != nil {
			err = fmt.Errorf("%w: %w", ErrLogFailed, e)
		}
	}
	if !errors.Is(err, ErrDiskFull) && s.state == nil {
		s.state = err
		s.health.Store(&err)
		s.log.Error("the commit log failed: no message is accepted until the broker is started again; reads go on", "error", err)
	} else {
		s.log.Warn("refused messages: the disk is full", "error", err)
	}
	failed := append([]batchWaiter(nil), b.waiters...)
	failed = append(failed, behind.waiters...)
	behind.reset()
	s.room.Broadcast()
	s.mu.Unlock()
	for _, w := range failed {
		w.w.Appended(Result{Err: err})
	}
}

// takeBack makes the places of both batches free again. What the failed write may have left at the first of them
// is made unreadable, so that a crash can't find it.
func (s *Store) takeBack(b, behind *writeBatch) error {
	for _, list := range [][]entry{behind.entries, b.entries} {
		for i := len(list) - 1; i >= 0; i-- {
			if e := list[i]; e.q != nil {
				e.q.next = e.queueOffset
			}
		}
	}
	s.end = b.chunks[0].at
	s.segEnd = s.end - s.end%s.o.SegmentSize + s.o.SegmentSize
	g := s.segmentAt(s.end)
	if g == nil {
		return nil // its segment couldn't be made
	}
	defer g.unref()
	if _, err := g.file.WriteAt(make([]byte, message.BlankSize), s.end-g.base); err != nil && !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return nil
}

// dispatch makes the batch visible. A batch's keys go to the index from the batch's own bytes.
func (s *Store) dispatch(b *writeBatch) {
	for i := range b.entries {
		e := &b.entries[i]
		rec := b.buf[e.begin : e.begin+int(e.size)]
		s.dispatchRecord(e, rec)
	}
	n := len(b.entries)
	last := &b.entries[n-1]
	s.dispatched.Store(last.physical + int64(last.size))
	s.lastStored.Store(last.storeTimestamp)
	s.counters.Records.Add(int64(n))
	if s.o.Listener == nil {
		return
	}
	for i := range b.entries {
		if e := &b.entries[i]; e.q != nil {
			s.o.Listener.Arrived(e.q.topic, e.q.id, e.queueOffset+1, e.tagsCode)
		}
	}
}

func (s *Store) complete(b *writeBatch) {
	for i := range b.waiters {
		w := &b.waiters[i]
		e := &b.entries[w.first]
		r := Result{PhysicalOffset: e.physical, QueueOffset: e.queueOffset, StoreTimestamp: e.storeTimestamp, Count: w.count, Sizes: w.sizes}
		for j := range w.count {
			r.Bytes += int(b.entries[w.first+j].size)
		}
		s.counters.Bytes.Add(int64(r.Bytes))
		w.w.Appended(r)
	}
}
