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
	topic          string
	q              *queue // nil: has no place in a consume queue
	queueOffset    int64
	physical       int64
	size           int32
	begin          int // in buf
	tagsCode       int64
	storeTimestamp int64
	sysFlag        message.SysFlag
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
	case len(m.Topic) == 0 || len(m.Topic) > message.MaxTopic || len(m.Topic) > 127 && !strings.HasPrefix(m.Topic, message.RetryPrefix):
		return fmt.Errorf("%w: topic name of %d bytes, at most 127 are allowed", ErrIllegal, len(m.Topic))
	case len(m.Body) > s.o.MaxMessage:
		return fmt.Errorf("%w: body of %d bytes, maxMessageSize is %d", ErrIllegal, len(m.Body), s.o.MaxMessage)
	case len(m.Properties) > message.MaxProperties:
		return fmt.Errorf("%w: properties of %d bytes, at most %d are allowed", ErrIllegal, len(m.Properties), message.MaxProperties)
	case looksTorn(m.Properties):
		return fmt.Errorf("%w: properties end in a zero byte, or hold %d of them in a row", ErrIllegal, sector)
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
	err := s.place(m.Topic, m.QueueID, rec, []record{{size: len(rec), tags: tags, queued: m.SysFlag.Queued(), sysFlag: m.SysFlag}}, w, false)
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
		recs[i] = record{size: len(all) - before, tags: s.tagsOf(&ms[i]), queued: ms[i].SysFlag.Queued(), sysFlag: ms[i].SysFlag}
	}
	if int64(len(all))+message.BlankSize > s.o.SegmentSize {
		return fmt.Errorf("%w: batch of %d bytes in commit-log files of %d", ErrIllegal, len(all), s.o.SegmentSize)
	}
	return s.place(ms[0].Topic, ms[0].QueueID, all, recs, w, true)
}

// record is what place knows of one built record.
type record struct {
	size    int
	tags    tagsRule
	queued  bool
	sysFlag message.SysFlag
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
	if topic == message.ScheduleTopic {
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
	for {
		q, err := s.queue(topic, queueID, true)
		if err != nil {
			return err
		}
		placed, err := s.placeIn(q, bytes, recs, w, batch)
		if err != nil {
			return err
		}
		if placed {
			break
		}
		// The topic was deleted just now: the message goes to its new queue.
	}
	s.kickCommitter()
	return nil
}

func (s *Store) kickCommitter() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *Store) placeIn(q *queue, bytes []byte, recs []record, w Waiter, batch bool) (placed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.filling.buf) > s.o.MaxBatch && s.state == nil {
		s.room.Wait()
	}
	switch {
	case s.state != nil:
		return false, s.state
	case q.deleted:
		return false, nil
	case s.overfull.Load():
		return false, fmt.Errorf("%w: its use is above diskSpaceWarningLevelRatio", ErrDiskFull)
	case s.tailBytes.Load() > maxTailBytes:
		if p := s.queuesFail.Load(); p != nil {
			return false, queuesError(*p)
		}
	}
	b := s.filling
	now := max(s.o.Now().UnixMilli(), s.lastTime)
	s.lastTime = now
	if left := s.segEnd - s.end; int64(len(bytes))+message.BlankSize > left {
		if left > 0 {
			var blank [message.BlankSize]byte
			s.chunk(b, message.AppendBlank(blank[:0], int(left)))
		}
		s.end = s.segEnd
		s.segEnd += s.o.SegmentSize
	}
	first := len(b.entries)
	at := s.end
	begin := s.chunk(b, bytes)
	s.end += int64(len(bytes))
	var sizes []int32
	if batch {
		sizes = make([]int32, 0, len(recs))
	}
	for _, r := range recs {
		rec := b.buf[begin : begin+r.size]
		e := entry{topic: q.topic, physical: at, size: int32(r.size), begin: begin, tagsCode: r.tags.at(now), storeTimestamp: now, sysFlag: r.sysFlag}
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
	return true, nil
}

// queuesError is the refusal of an append while consume queues can't be written.
func queuesError(why error) error {
	if isFull(why) {
		return fmt.Errorf("%w: consume queues can't be written: %w", ErrDiskFull, why)
	}
	return fmt.Errorf("%w: consume queues can't be written: %w", ErrLogFailed, why)
}

// isFull reports whether an error says that the disk, or the user's share of it, is full.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// barrier waits until everything that is placed is dispatched or refused.
func (s *Store) barrier() error {
	w := make(chanWaiter, 1)
	s.mu.Lock()
	if s.state != nil {
		err := s.state
		s.mu.Unlock()
		return err
	}
	s.filling.waiters = append(s.filling.waiters, batchWaiter{w: w})
	s.mu.Unlock()
	s.kickCommitter()
	r := <-w
	if errors.Is(r.Err, ErrDiskFull) {
		return nil
	}
	return r.Err
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
	if len(b.waiters) == 0 {
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

// writeBatch writes the batch and, in flushed mode, flushes it. The error is ErrDiskFull, after which all places of
// the batch can be taken back, or ErrLogFailed.
func (s *Store) writeBatch(b *writeBatch) error {
	if err := s.Health(); err != nil {
		return err // the background's flush failed meanwhile
	}
	s.wrote = false
	if err := s.eraseUnclean(); err != nil {
		return err
	}
	if len(b.chunks) == 0 {
		return nil
	}
	if err := s.checkRoom(len(b.buf)); err != nil {
		return err
	}
	s.wrote = true
	for _, c := range b.chunks {
		base := c.at - c.at%s.o.SegmentSize
		g := s.dirtySeg
		if g == nil || g.base != base {
			// What lies before another segment is flushed in either mode: a crash may cut the log's tail, but it must
			// not take the middle.
			if g != nil {
				if err := g.file.Datasync(); err != nil {
					return fmt.Errorf("%w: flush %s: %w", ErrLogFailed, g.name, err)
				}
			}
			var err error
			if g, err = s.ensureSegment(base); err != nil {
				return writeError(err)
			}
			s.dirtySeg = g
		}
		if _, err := g.file.WriteAt(b.buf[c.begin:c.end], c.at-base); err != nil {
			return writeError(fmt.Errorf("write %s at %d: %w", g.name, c.at-base, err))
		}
	}
	s.counters.Batches.Add(1)
	if s.o.Flush == SyncFlush {
		if err := s.dirtySeg.file.Datasync(); err != nil {
			return fmt.Errorf("%w: flush %s: %w", ErrLogFailed, s.dirtySeg.name, err)
		}
		s.counters.Flushes.Add(1)
		s.advanceFlushed(b.endOffset())
	}
	if s.diskFull {
		s.diskFull = false
		s.log.Info("the disk has room again: messages are accepted")
	}
	return nil
}

// checkRoom looks now and then, and always while the disk is full, whether the log leaves the reserve to the rest of
// the store: consume queues, index, checkpoint and metadata. Without them no file of the log could be deleted safely,
// and a full disk would stay full.
func (s *Store) checkRoom(bytes int) error {
	const often = 1 << 20
	if s.unchecked += int64(bytes); s.unchecked < often && !s.diskFull {
		return nil
	}
	s.unchecked = 0
	_, free, err := s.fs.Usage(s.o.LogDir)
	if err == nil && int64(min(free, 1<<62)) < s.reserve+int64(bytes) {
		return fmt.Errorf("%w: %d bytes are left in %s, %d of them are kept for consume queues and checkpoints", ErrDiskFull, free, s.o.LogDir, s.reserve)
	}
	return nil
}

// maxReserve is the most room that appends leave; on small disks it is a sixteenth.
const maxReserve = 64 << 20

func writeError(err error) error {
	if isFull(err) {
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	}
	return fmt.Errorf("%w: %w", ErrLogFailed, err)
}

// endOffset returns the physical offset behind the batch.
func (b *writeBatch) endOffset() int64 {
	last := b.chunks[len(b.chunks)-1]
	return last.at + int64(last.end-last.begin)
}

// failBatch answers everything that waits with err: this batch, and what was placed behind it, whose place in
// the log is gone with it. A full disk takes the places back; any other failure ends the log.
func (s *Store) failBatch(b *writeBatch, err error) {
	s.mu.Lock()
	behind := s.filling
	if errors.Is(err, ErrDiskFull) {
		s.takeBackLocked(b, behind)
	} else {
		s.failLocked(err)
	}
	failed := append([]batchWaiter(nil), b.waiters...)
	failed = append(failed, behind.waiters...)
	behind.reset()
	s.room.Broadcast()
	s.mu.Unlock()
	if errors.Is(err, ErrDiskFull) {
		if !s.diskFull {
			s.diskFull = true
			s.log.Error("the disk is full: messages are refused until there is room", "error", err)
		}
		if e := s.eraseUnclean(); e != nil && !errors.Is(e, ErrDiskFull) {
			err = e
			s.mu.Lock()
			s.failLocked(err)
			s.mu.Unlock()
		}
	}
	for _, w := range failed {
		w.w.Appended(Result{Err: err})
	}
}

// failLocked ends the log for good. The caller holds mu.
func (s *Store) failLocked(err error) {
	if !s.health.CompareAndSwap(nil, &err) {
		return
	}
	if s.state == nil {
		s.state = err
	}
	s.room.Broadcast()
	s.log.Error("the commit log failed: no message is accepted until the broker is started again; reads go on", "error", err)
}

// takeBackLocked makes the places of both batches free again and notes what the failed write may have left there.
func (s *Store) takeBackLocked(b, behind *writeBatch) {
	for _, list := range [][]entry{behind.entries, b.entries} {
		for i := len(list) - 1; i >= 0; i-- {
			if e := list[i]; e.q != nil {
				e.q.next = e.queueOffset
			}
		}
	}
	// Without a chunk, b is a barrier: nothing was written, and what is behind it goes back to its own beginning.
	for _, batch := range []*writeBatch{behind, b} {
		if len(batch.chunks) > 0 {
			s.end = batch.chunks[0].at
			s.segEnd = s.end - s.end%s.o.SegmentSize + s.o.SegmentSize
		}
	}
	if len(b.chunks) > 0 && s.wrote {
		from, to := b.chunks[0].at, b.endOffset()
		if s.unclean != (span{}) {
			from, to = min(from, s.unclean.from), max(to, s.unclean.to)
		}
		s.unclean = span{from, to}
	}
}

// eraseUnclean makes zeros of what a failed write left, and durably so: those records were refused, and after a
// crash they must not be taken for messages. Nothing is written before that is done.
func (s *Store) eraseUnclean() error {
	for s.unclean.from < s.unclean.to {
		base := s.unclean.from - s.unclean.from%s.o.SegmentSize
		to := min(s.unclean.to, base+s.o.SegmentSize)
		if g := s.segmentAt(s.unclean.from); g != nil {
			err := g.file.Zero(s.unclean.from-base, to-s.unclean.from)
			if err == nil {
				if err = g.file.Sync(); err != nil {
					err = fmt.Errorf("%w: flush %s: %w", ErrLogFailed, g.name, err)
				}
			} else {
				err = writeError(fmt.Errorf("erase in %s: %w", g.name, err))
			}
			g.unref()
			if err != nil {
				return err
			}
		}
		s.unclean.from = to
	}
	s.unclean = span{}
	return nil
}

// dispatch makes the batch visible: consume queues, index, listener.
func (s *Store) dispatch(b *writeBatch) {
	n := len(b.entries)
	if n == 0 {
		return
	}
	for i := range b.entries {
		e := &b.entries[i]
		if q := e.q; q != nil {
			q.mu.Lock()
			if !q.gone {
				q.add(unit{e.physical, e.size, e.tagsCode})
				s.tailBytes.Add(queueUnit)
				s.markDirty(q)
			}
			q.mu.Unlock()
		}
		if s.index != nil {
			rec := b.buf[e.begin : e.begin+int(e.size)]
			s.index.add(e.topic, e.sysFlag, message.RecordProperties(rec), e.physical, e.storeTimestamp)
		}
	}
	last := &b.entries[n-1]
	s.setPosition(position{end: last.physical + int64(last.size), last: last.physical, time: last.storeTimestamp})
	s.counters.Records.Add(int64(n))
	if s.tailBytes.Load() > flushTailBytes || s.index != nil && s.index.behind() {
		select {
		case s.hurry <- struct{}{}:
		default:
		}
	}
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
		if w.count == 0 { // a barrier
			w.w.Appended(Result{})
			continue
		}
		e := &b.entries[w.first]
		r := Result{PhysicalOffset: e.physical, QueueOffset: e.queueOffset, StoreTimestamp: e.storeTimestamp, Count: w.count, Sizes: w.sizes}
		for j := range w.count {
			r.Bytes += int(b.entries[w.first+j].size)
		}
		s.counters.Bytes.Add(int64(r.Bytes))
		w.w.Appended(r)
	}
}
