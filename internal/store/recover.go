package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/apogeemq/apogee/internal/message"
)

// Recovery reads the log from the newest point from which consume queues and index may be incomplete, cuts off a
// torn tail, and dispatches what it read again. That point is in our own checkpoint; without one that fits (a store
// that only a Java broker wrote) it is found by Java's rules.
//
// After a crash the units behind that point are in an unknown state, and some queue's may be whole where older ones
// of it are not. So the first record that is read of a queue cuts it to the place before that record. A queue that
// no record is read of has no such units: a unit is written only after its record is durable.

// recovery is one run of it.
type recovery struct {
	s          *Store
	clean      bool // the last broker stopped cleanly
	own        ownCheckpoint
	verdict    verdict
	java       javaCheckpoint
	begin      int64 // records from here on may miss in the queues
	indexBegin int64 // and from here on in the index
	end        int64 // of the log
	last       position
	indexFull  bool // it can't be written: no more tries
}

// errGap: a queue misses units of records that were not read.
var errGap = errors.New("a consume queue has a gap")

func (s *Store) recover(clean bool) error {
	r := &recovery{s: s, clean: clean}
	var found bool
	var err error
	if r.own, found, err = s.readOwnCheckpoint(); err != nil {
		return err
	}
	if r.java, err = s.readJavaCheckpoint(); err != nil {
		return err
	}
	if err = s.readDeleted(); err != nil {
		return err
	}
	if !s.o.IndexOff {
		if s.index, err = openIndex(s); err != nil {
			return err
		}
	}
	if len(s.segments) == 0 {
		return r.emptyLog(found)
	}
	if found {
		if r.verdict, err = s.judge(r.own); err != nil {
			return err
		}
	}
	if err := r.choosePoint(); err != nil {
		return err
	}
	if err := r.findEnd(); err != nil {
		return err
	}
	if r.verdict == falseCheckpoint && r.end < r.own.physical {
		return fmt.Errorf("%w: the log was durable up to %d and has whole records up to %d only; `apogee store check` shows what is damaged", ErrDamaged, r.own.physical, r.end)
	}
	if err := s.scanQueueFolders(r.clean); err != nil {
		return err
	}
	if err := r.askQueues(); err != nil {
		return err
	}
	if err := r.settleLog(); err != nil {
		return err
	}
	s.recovered = r.end
	s.end, s.segEnd = r.end, r.end-r.end%s.o.SegmentSize+s.o.SegmentSize
	r.last.time = max(r.last.time, r.java.physic)
	s.lastTime = r.last.time
	s.setPosition(r.last)
	s.flushed.Store(r.end)
	s.checkpointed.Store(r.begin)
	if err := r.restoreIndex(); err != nil {
		return err
	}
	return r.derive()
}

// emptyLog is recovery without commit-log files. Consume queues and index without a log hold nothing that can be
// read; Java destroys them, too.
func (r *recovery) emptyLog(found bool) error {
	s := r.s
	if found && r.own.physical > 0 {
		return fmt.Errorf("%w: %s holds no commit-log file, but the log was durable up to %d: is storePathCommitLog right, is its disk mounted? To begin with an empty store, remove %s", ErrDamaged, s.o.LogDir, r.own.physical, path.Join(s.o.Dir, ownCheckpointName))
	}
	if err := s.fs.RemoveAll(s.queueRoot()); err != nil {
		return err
	}
	if err := errors.Join(s.fs.MkdirAll(s.queueRoot()), s.fs.SyncDir(s.o.Dir)); err != nil {
		return err
	}
	if s.index != nil {
		if err := s.index.dropAll(); err != nil {
			return err
		}
	}
	s.segEnd = s.o.SegmentSize
	s.setPosition(position{last: -1})
	return s.scanQueueFolders(r.clean)
}

// choosePoint decides from where on the log is read.
func (r *recovery) choosePoint() error {
	s := r.s
	first := s.segments[0].base
	switch {
	case r.verdict == soundCheckpoint:
		r.begin = r.own.physical
		r.last = position{end: r.own.physical, last: r.own.last}
		return nil
	case r.verdict == falseCheckpoint:
		s.log.Warn("recovery: the checkpoint doesn't fit the log, the whole log is read", "checkpoint", r.own.physical)
		r.begin = first
	case r.clean:
		at, err := s.newestSegment(func(message.Header) bool { return true })
		if err != nil {
			return err
		}
		r.begin = at
	default:
		// Java's rule: the newest file whose first record was stored 3 s or more before the older of the two flush times.
		limit := max(min(r.java.physic, r.java.logics)-3000, 0)
		at, err := s.newestSegment(func(h message.Header) bool { return h.StoreTimestamp != 0 && h.StoreTimestamp <= limit })
		if err != nil {
			return err
		}
		r.begin = at
	}
	r.last = position{end: r.begin, last: -1}
	return nil
}

// newestSegment returns the start of the newest segment whose first record is one and is accepted, else the first's.
func (s *Store) newestSegment(accept func(message.Header) bool) (int64, error) {
	for i := len(s.segments) - 1; i > 0; i-- {
		g := s.segments[i]
		var b [headerSize]byte
		if err := readFull(g.file, b[:], 0); err != nil {
			return 0, fmt.Errorf("read %s: %w", g.name, err)
		}
		if h, err := message.DecodeHeader(b[:]); err == nil && !h.Blank && h.PhysicalOffset == g.base && accept(h) {
			return g.base, nil
		}
	}
	return s.segments[0].base, nil
}

// findEnd walks the log from begin to the end of its last whole record, after a crash with a check of the bodies'
// CRCs. What comes behind the end must not look like a log that goes on in a later file: that is a hole, not a torn
// tail.
func (r *recovery) findEnd() error {
	s := r.s
	verify := !r.clean || r.verdict == falseCheckpoint
	at := r.begin
	for i, g := range s.segments {
		segEnd := g.base + s.o.SegmentSize
		if at >= segEnd {
			continue
		}
		lr := newLogReader(g, s.o.SegmentSize)
		for at < segEnd {
			var m message.Message
			_, n, err := lr.record(at, &m, verify)
			if errors.Is(err, message.ErrBlank) {
				if i == len(s.segments)-1 {
					r.end = at // the blank is written again when something follows
					return nil
				}
				at = segEnd
				break
			}
			if err != nil && !isDamage(err) {
				return err
			}
			if err != nil {
				r.end = at
				return s.checkHole(i, at, err)
			}
			r.last.last, r.last.time = at, max(r.last.time, m.StoreTimestamp)
			at += int64(n)
			r.last.end = at
		}
	}
	r.end = at
	return nil
}

// checkHole decides what a bad record in segment i means: a torn tail, unless a later segment begins with a whole
// record.
func (s *Store) checkHole(i int, at int64, why error) error {
	for _, g := range s.segments[i+1:] {
		var m message.Message
		_, _, err := newLogReader(g, s.o.SegmentSize).record(g.base, &m, true)
		if err == nil {
			return fmt.Errorf("%w: no whole record at physical offset %d (%v), yet the log goes on at %d; `apogee store check` shows what is damaged", ErrDamaged, at, why, g.base)
		}
		if !isDamage(err) && !errors.Is(err, message.ErrBlank) {
			return err
		}
	}
	return nil
}

// askQueues refuses to cut off what the consume queues know: a unit of ours is written only after its record is
// durable, so a record that a queue knows and the log has no more was damaged, not torn. Of a Java broker that
// crashed no such thing is true. It loads all queues, so it only asks where the log has something behind its end.
func (r *recovery) askQueues() error {
	s := r.s
	if !r.clean && r.verdict != soundCheckpoint || r.clean && r.verdict == soundCheckpoint && r.end == r.own.physical {
		return nil
	}
	something, err := r.behindEnd()
	if err != nil || !something {
		return err
	}
	s.recovered = 1<<63 - 1
	if !r.clean {
		s.shortFiles = ignoreShort
	}
	if err := s.loadAllQueues(); err != nil {
		return err
	}
	defer s.forgetQueues()
	for _, q := range s.allQueues() {
		if q.max == 0 {
			continue
		}
		u, err := s.readUnit(q, q.max-1)
		if err != nil {
			return err
		}
		if u.size != preBlankSize && u.physical >= r.end {
			return fmt.Errorf("%w: no whole record at physical offset %d, yet topic %s queue %d has one at %d; `apogee store check` shows what is damaged", ErrDamaged, r.end, q.topic, q.id, u.physical)
		}
	}
	return nil
}

// behindEnd reports whether there is anything but zeros behind the end, near to it.
func (r *recovery) behindEnd() (bool, error) {
	g := r.s.segmentAt(r.end)
	if g == nil {
		return false, nil
	}
	defer g.unref()
	lr := newLogReader(g, r.s.o.SegmentSize)
	b, err := lr.bytes(r.end-g.base, int(min(1<<20, g.base+r.s.o.SegmentSize-r.end)))
	return err == nil && !allZero(b), err
}

// settleLog makes what was found the log: segments behind the end go, the rest of the last one becomes zeros, since
// stale bytes there could pass for records after the next crash, and after a crash the tail is made durable.
func (r *recovery) settleLog() error {
	s := r.s
	r.last.end = r.end
	for n := len(s.segments); n > 1 && s.segments[n-1].base > r.end; n = len(s.segments) {
		if err := s.removeSegment(n - 1); err != nil {
			return err
		}
	}
	if r.clean && r.verdict == soundCheckpoint && r.end == r.own.physical {
		return nil // nobody wrote behind it
	}
	if r.end > r.begin || !r.clean {
		if err := r.makeDurable(); err != nil {
			return err
		}
	}
	g := s.segments[len(s.segments)-1]
	from := r.end - g.base
	if from >= s.o.SegmentSize {
		return nil
	}
	if err := errors.Join(g.file.Zero(from, s.o.SegmentSize-from), g.file.Sync()); err != nil {
		return fmt.Errorf("cut the log's tail at %d: %w", r.end, err)
	}
	return nil
}

// rewriteBytes is how much of the log's end recovery writes again: more than what lies behind a checkpoint of ours.
const rewriteBytes = 4 * checkpointBytes

// makeDurable flushes the records that were read. They may be in the page cache only, and after a flush that failed
// they may even seem flushed; so the last of them are written again first.
func (r *recovery) makeDurable() error {
	s := r.s
	if r.clean {
		return nil
	}
	buf := make([]byte, 1<<20)
	for _, g := range s.segments {
		lo, hi := max(r.begin, g.base), min(r.end, g.base+s.o.SegmentSize)
		if lo >= hi {
			continue
		}
		for at := max(lo, r.end-rewriteBytes); at < hi; at += int64(len(buf)) {
			b := buf[:min(int64(len(buf)), hi-at)]
			if err := readFull(g.file, b, at-g.base); err != nil {
				return fmt.Errorf("read %s: %w", g.name, err)
			}
			if _, err := g.file.WriteAt(b, at-g.base); err != nil {
				return fmt.Errorf("write %s: %w", g.name, err)
			}
		}
		if err := g.file.Datasync(); err != nil {
			return fmt.Errorf("flush %s: %w", g.name, err)
		}
	}
	return nil
}

// removeSegment closes and removes the i-th segment.
func (s *Store) removeSegment(i int) error {
	s.segMu.RLock()
	g := s.segments[i]
	s.segMu.RUnlock()
	if err := s.fs.Remove(g.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.segMu.Lock()
	s.segments = append(append([]*segment(nil), s.segments[:i]...), s.segments[i+1:]...)
	s.segMu.Unlock()
	g.unref()
	return s.fs.SyncDir(s.o.LogDir)
}

// restoreIndex brings the index to a known state and says from where on records must be put into it.
func (r *recovery) restoreIndex() error {
	x := r.s.index
	if x == nil {
		return nil
	}
	first := r.s.segments[0].base
	r.indexBegin = r.begin
	switch {
	case r.s.o.RebuildIndex:
		r.indexBegin = first
		return x.dropAll()
	case r.verdict == soundCheckpoint && r.own.indexOff, r.verdict == falseCheckpoint:
		r.indexBegin = first
		return x.dropAll()
	case r.verdict == soundCheckpoint && !r.clean:
		ok, err := x.restore(r.own.index)
		if err != nil {
			return err
		}
		if !ok {
			r.s.log.Warn("recovery: the index files are not the checkpoint's: the index is built anew", "file", r.own.index.file)
			r.indexBegin = first
			return x.dropAll()
		}
	case r.verdict == noCheckpoint && !r.clean:
		if err := x.dropAfter(r.java.index); err != nil {
			return err
		}
		at, ok, err := r.recordAt(max(first, x.endPhys))
		if err != nil {
			return err
		}
		if !ok {
			r.s.log.Warn("recovery: the index ends where no record is: it is built anew", "physicalOffset", at)
			r.indexBegin = first
			return x.dropAll()
		}
		r.indexBegin = min(r.begin, at)
	}
	return nil
}

// recordAt reports whether a record begins at a physical offset, or the log ends there.
func (r *recovery) recordAt(at int64) (int64, bool, error) {
	if at == r.end {
		return at, true, nil
	}
	g := r.s.segmentAt(at)
	if g == nil || at > r.end {
		return at, false, nil
	}
	defer g.unref()
	var m message.Message
	_, _, err := newLogReader(g, r.s.o.SegmentSize).record(at, &m, false)
	if err == nil || errors.Is(err, message.ErrBlank) {
		return at, true, nil
	}
	if isDamage(err) {
		err = nil
	}
	return at, false, err
}

// derive puts the records that were found into queues and index where they miss.
func (r *recovery) derive() error {
	s := r.s
	s.scanAll = r.verdict != soundCheckpoint && !r.clean
	if !r.clean {
		s.shortFiles = removeShort
	}
	err := r.redispatch(false)
	if errors.Is(err, errGap) {
		s.log.Warn("recovery: consume queues miss older messages: they are built anew from the whole log", "reason", err)
		s.forgetQueues()
		r.begin = s.segments[0].base
		err = r.redispatch(true)
	}
	if err != nil {
		return err
	}
	s.shortFiles = refuseShort
	if s.scanAll {
		// A crash of a Java broker may have left units of records that are gone in any queue.
		if err := s.loadAllQueues(); err != nil {
			return err
		}
		s.scanAll = false
	}
	if r.verdict != soundCheckpoint || s.o.Rebuild != nil || s.o.RebuildIndex { // the next opening needs no rule of Java's
		return s.unlessFull(s.checkpoint())
	}
	return nil
}

// unlessFull returns err, but nil when the disk is full: what can't be written waits in memory. A store on a full disk
// must open, or nobody could read from it or clean it.
func (s *Store) unlessFull(err error) error {
	if err == nil || !isFull(err) {
		return err
	}
	s.log.Warn("recovery: the disk is full, consume queues and checkpoint are written when there is room", "error", err)
	return nil
}

// redispatch reads the records from begin on. With anew each queue begins at its first record.
func (r *recovery) redispatch(anew bool) error {
	s := r.s
	at := r.begin
	if s.index != nil {
		at = min(at, r.indexBegin)
	}
	if s.o.Rebuild != nil {
		at = s.segments[0].base
	}
	// Inside a segment a record must begin where reading does.
	touched := make(map[*queue]bool)
	for at < r.end {
		g := s.segmentAt(at)
		if g == nil {
			return fmt.Errorf("%w: no commit-log file holds %d", ErrDamaged, at)
		}
		next, err := r.redispatchIn(g, at, touched, anew)
		g.unref()
		if err != nil {
			return err
		}
		at = next
	}
	return nil
}

func (r *recovery) redispatchIn(g *segment, at int64, touched map[*queue]bool, anew bool) (int64, error) {
	s := r.s
	lr := newLogReader(g, s.o.SegmentSize)
	segEnd := g.base + s.o.SegmentSize
	for at < r.end && at < segEnd {
		var m message.Message
		_, n, err := lr.record(at, &m, false)
		if errors.Is(err, message.ErrBlank) {
			return segEnd, nil
		}
		if err != nil {
			if isDamage(err) {
				err = fmt.Errorf("%w: record at %d: %w", ErrDamaged, at, err)
			}
			return 0, err
		}
		if m.SysFlag.Queued() && m.SysFlag&message.InnerBatch == 0 {
			rebuild := s.o.Rebuild != nil && s.o.Rebuild(m.Topic, m.QueueID)
			if at >= r.begin || rebuild {
				if err := r.requeue(&m, touched, anew || rebuild); err != nil {
					return 0, err
				}
			}
		}
		if s.index != nil && at >= r.indexBegin {
			s.index.add(m.Topic, m.SysFlag, m.Properties, at, m.StoreTimestamp)
		}
		at += int64(n)
		if s.tailBytes.Load() > flushTailBytes && s.queuesFail.Load() == nil {
			if err := s.unlessFull(s.flushQueues()); err != nil {
				return 0, err
			}
		}
		if s.index != nil && s.index.behind() && !r.indexFull {
			err := s.index.flush()
			if r.indexFull = err != nil; s.unlessFull(err) != nil {
				return 0, err
			}
		}
	}
	return at, nil
}

// requeue puts one record's unit into its queue.
func (r *recovery) requeue(m *message.Message, touched map[*queue]bool, anew bool) error {
	s := r.s
	if m.PhysicalOffset < s.deletedTopics[m.Topic] {
		return nil
	}
	guess := int64(-1)
	if !r.clean && !s.scanAll {
		guess = m.QueueOffset // what the queue is cut to
	}
	q, err := s.queueWith(m.Topic, m.QueueID, true, guess)
	if err != nil {
		if errors.Is(err, ErrIllegal) { // a batch queue's topic, or a name that can be no folder: not served
			return nil
		}
		return err
	}
	offset := m.QueueOffset
	first := !touched[q]
	touched[q] = true
	switch {
	case first && anew:
		err = s.restartQueue(q, offset)
	case r.clean && !anew && offset < q.max:
		return nil // it has the unit
	case first && offset > q.max:
		return fmt.Errorf("%w: topic %s queue %d ends at %d, the next record has offset %d", errGap, q.topic, q.id, q.max, offset)
	case first && !r.clean:
		err = s.cutQueue(q, offset)
	case offset < q.max:
		// The topic was deleted and made again.
		err = s.restartQueue(q, offset)
	case offset > q.max:
		s.log.Warn("recovery: a consume queue has a gap", "topic", q.topic, "queueId", q.id, "from", q.max, "to", offset)
		err = s.fillQueue(q, offset)
	}
	if err != nil {
		return err
	}
	q.add(unit{m.PhysicalOffset, m.StoreSize, s.tags(m.Topic, m.Properties).at(m.StoreTimestamp)})
	s.tailBytes.Add(queueUnit)
	q.next = q.max
	s.markDirty(q)
	return nil
}
