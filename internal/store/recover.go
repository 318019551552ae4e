package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path"
	"strconv"

	"github.com/apogeemq/apogee/internal/message"
)

// Recovery reads the log from the newest point from which consume queues and index may be incomplete, cuts off a
// torn tail, and dispatches what it read again; both skip what they have. That point is in our own checkpoint;
// without a sound one (a store that only a Java broker wrote) it is found by Java's rule.
func (s *Store) recover(clean bool) error {
	if !s.o.IndexOff {
		x, err := openIndex(s)
		if err != nil {
			return err
		}
		s.index = x
	}
	if len(s.segments) == 0 {
		// Consume queues without a log hold nothing that can be read; Java destroys them, too.
		if err := s.fs.RemoveAll(s.queueRoot()); err != nil {
			return err
		}
		s.segEnd = s.o.SegmentSize
		return s.fs.MkdirAll(s.queueRoot())
	}
	lo := s.segments[0].base
	own, ok := s.readOwnCheckpoint()
	ok = ok && s.soundPoint(own.physical)
	java := s.readJavaCheckpoint()
	begin := own.physical
	switch {
	case ok && !clean && s.index != nil:
		if err := s.index.restore(own.indexFile, own.indexCount, own.indexTime, own.indexPhysical); err != nil {
			return err
		}
	case !ok:
		if begin = lo; clean {
			begin = s.segments[len(s.segments)-1].base
		} else {
			begin = s.javaStart(java)
			if s.index != nil {
				if err := s.index.dropAfter(java.index); err != nil {
					return err
				}
				if _, _, _, end := s.index.end(); end < begin {
					begin = max(lo, s.recordStart(end, lo))
				}
			}
		}
	}
	end, last, err := s.findEnd(begin, !clean)
	if err != nil {
		return err
	}
	if err := s.cutTail(end, clean); err != nil {
		return err
	}
	s.end, s.segEnd = end, end-end%s.o.SegmentSize+s.o.SegmentSize
	last = max(last, java.physic)
	s.lastTime = last
	s.lastStored.Store(last)
	s.dispatched.Store(end)
	s.flushed.Store(end)
	if err := s.redispatch(begin, end); err != nil {
		return err
	}
	return nil
}

// soundPoint reports whether a physical offset is the end of the log or the start of a whole record.
func (s *Store) soundPoint(at int64) bool {
	first, last := s.segments[0].base, s.segments[len(s.segments)-1].base+s.o.SegmentSize
	if at < first || at > last {
		return false
	}
	if at == last || at == first {
		return true
	}
	g := s.segmentAt(at)
	if g == nil {
		return false
	}
	defer g.unref()
	b := g.data[at-g.base:]
	if len(b) < message.BlankSize {
		return true
	}
	h, err := message.DecodeHeader(b)
	if err != nil { // nothing behind it: it was the end when the checkpoint was written
		return true
	}
	return h.Blank || h.PhysicalOffset == at
}

// javaStart is Java's rule for an abnormal exit: the newest file whose first record was stored 3 s or more before
// the older of the two flush times.
func (s *Store) javaStart(c javaCheckpoint) int64 {
	limit := max(min(c.physic, c.logics)-3000, 0)
	for i := len(s.segments) - 1; i > 0; i-- {
		h, err := message.DecodeHeader(s.segments[i].data)
		if err == nil && !h.Blank && h.StoreTimestamp != 0 && h.StoreTimestamp <= limit {
			return s.segments[i].base
		}
	}
	return s.segments[0].base
}

// recordStart returns at when a record begins there, else the start of its segment.
func (s *Store) recordStart(at, lo int64) int64 {
	if at >= lo && s.soundPoint(at) {
		return at
	}
	return max(lo, at-at%s.o.SegmentSize)
}

// findEnd walks the log from begin to the end of its last whole record. With verify the bodies' CRCs are checked.
// A record is whole when it decodes and says that it lies where it does. What comes behind the end must not look
// like a log that goes on in a later file: that is a hole, not a torn tail.
func (s *Store) findEnd(begin int64, verify bool) (end, lastTime int64, err error) {
	at := begin
	for i := range s.segments {
		g := s.segments[i]
		if at >= g.base+s.o.SegmentSize {
			continue
		}
		for at < g.base+s.o.SegmentSize {
			var m message.Message
			n, err := message.DecodeRecord(g.data[at-g.base:], &m, verify)
			if errors.Is(err, message.ErrBlank) && int64(n) == g.base+s.o.SegmentSize-at {
				if i == len(s.segments)-1 {
					return at, lastTime, nil // the blank is written again when something follows
				}
				at = g.base + s.o.SegmentSize
				break
			}
			if err == nil && m.PhysicalOffset != at {
				err = fmt.Errorf("%w: it says it lies at %d", message.ErrCorrupt, m.PhysicalOffset)
			}
			if err != nil {
				return at, lastTime, s.checkHole(i, at, err)
			}
			lastTime = max(lastTime, m.StoreTimestamp)
			at += int64(n)
		}
	}
	return at, lastTime, nil
}

// checkHole decides what a bad record in segment i means: a torn tail, unless a later segment begins with a whole
// record.
func (s *Store) checkHole(i int, at int64, why error) error {
	for _, g := range s.segments[i+1:] {
		var m message.Message
		if _, err := message.DecodeRecord(g.data, &m, true); err == nil && m.PhysicalOffset == g.base {
			return fmt.Errorf("%w: no whole record at physical offset %d (%v), yet the log goes on at %d; `apogee store check` shows what is damaged", ErrDamaged, at, why, g.base)
		}
	}
	return nil
}

// cutTail makes what lies behind the end unreadable for good: stale bytes there could otherwise pass for records
// after the next crash. Segments behind the end go.
func (s *Store) cutTail(end int64, clean bool) error {
	for n := len(s.segments); n > 0; n = len(s.segments) {
		g := s.segments[n-1]
		if g.base < end || n == 1 || g.base == end && n > 1 && s.segments[n-2].base+s.o.SegmentSize == end && allZero(g.data[:min(len(g.data), 64)]) {
			break
		}
		s.segments = s.segments[:n-1]
		g.unref()
		if err := s.fs.Remove(g.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := s.fs.SyncDir(s.o.LogDir); err != nil {
			return err
		}
	}
	g := s.segments[len(s.segments)-1]
	from := max(end-g.base, 0)
	if from >= s.o.SegmentSize {
		return nil
	}
	stale, err := !allZero(g.data[from:min(from+64, s.o.SegmentSize)]), error(nil)
	if !stale && !clean {
		stale, err = s.staleBehind(g, from)
	}
	if err != nil || !stale {
		return err
	}
	base := g.base
	s.segments = s.segments[:len(s.segments)-1]
	err = errors.Join(g.file.Truncate(from), g.file.Truncate(s.o.SegmentSize), g.file.Sync())
	g.unref() // the mapping of the old contents
	if err != nil {
		return fmt.Errorf("cut the log's tail at %d: %w", end, err)
	}
	g, err = s.openSegment(base, 0)
	if err != nil {
		return err
	}
	s.segments = append(s.segments, g)
	s.log.Info("cut the log's tail", "at", end, "file", path.Base(g.name))
	return nil
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// staleBehind looks for bytes behind a zeroed end: a batch whose beginning didn't reach the disk while its end
// did. Only what one batch could have written is looked at.
func (s *Store) staleBehind(g *segment, from int64) (bool, error) {
	to := min(from+int64(s.o.MaxBatch)+int64(2*s.o.MaxMessage), s.o.SegmentSize)
	buf := make([]byte, 256<<10)
	for at := from; at < to; at += int64(len(buf)) {
		n := min(int64(len(buf)), to-at)
		if _, err := g.file.ReadAt(buf[:n], at); err != nil {
			return false, fmt.Errorf("read %s: %w", g.name, err)
		}
		if !allZero(buf[:n]) {
			return true, nil
		}
	}
	return false, nil
}

// redispatch puts the records between begin and end into consume queues and index where they miss.
func (s *Store) redispatch(begin, end int64) error {
	at := begin
	for at < end {
		g := s.segmentAt(at)
		if g == nil {
			return fmt.Errorf("%w: no commit-log file holds %d", ErrDamaged, at)
		}
		next, err := s.redispatchIn(g, at, end)
		g.unref()
		if err != nil {
			return err
		}
		at = next
	}
	return nil
}

func (s *Store) redispatchIn(g *segment, at, end int64) (int64, error) {
	for at < end && at < g.base+s.o.SegmentSize {
		var m message.Message
		n, err := message.DecodeRecord(g.data[at-g.base:], &m, false)
		if errors.Is(err, message.ErrBlank) {
			return g.base + s.o.SegmentSize, nil
		}
		if err != nil {
			return 0, fmt.Errorf("%w: record at %d: %v", ErrDamaged, at, err)
		}
		rec := g.data[at-g.base : at-g.base+int64(n)]
		e := entry{physical: at, size: int32(n), queueOffset: m.QueueOffset, storeTimestamp: m.StoreTimestamp,
			tagsCode: s.tags(m.Topic, m.Properties).at(m.StoreTimestamp)}
		if m.SysFlag.Queued() && m.SysFlag&message.InnerBatch == 0 {
			if q, err := s.queue(m.Topic, m.QueueID, true); err == nil {
				e.q = q
				s.closeGap(q, m.QueueOffset)
			}
		}
		s.dispatchRecord(&e, rec)
		if e.q != nil {
			e.q.next = max(e.q.next, e.q.max)
		}
		at += int64(n)
	}
	return at, nil
}

// closeGap lets a queue begin at an offset beyond its end, when the units before it are lost for good: their
// records are older than the log's beginning or than what could be read again.
func (s *Store) closeGap(q *queue, offset int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if offset <= q.max {
		return
	}
	if q.max > 0 {
		s.log.Warn("consume queue: units are missing, it begins behind them", "topic", q.topic, "queueId", q.id, "from", q.max, "to", offset)
	}
	q.min, q.max, q.tailFrom, q.tail = offset, offset, offset, nil
}

// loadAllQueues loads every queue that has files.
func (s *Store) loadAllQueues() {
	topics, err := s.fs.ReadDir(s.queueRoot())
	if err != nil {
		return
	}
	for _, t := range topics {
		ids, err := s.fs.ReadDir(path.Join(s.queueRoot(), t.Name()))
		if err != nil {
			continue
		}
		for _, d := range ids {
			if id, err := strconv.ParseInt(d.Name(), 10, 32); err == nil {
				_, _ = s.queue(t.Name(), int32(id), false)
			}
		}
	}
}

// javaCheckpoint is the checkpoint file as Java has it: three times in ms, 8 bytes each, in 4096 bytes.
type javaCheckpoint struct{ physic, logics, index int64 }

func (s *Store) readJavaCheckpoint() (c javaCheckpoint) {
	f, err := s.fs.OpenFile(path.Join(s.o.Dir, "checkpoint"), os.O_RDWR)
	if err != nil {
		return c
	}
	defer f.Close()
	var b [24]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return c
	}
	be := binary.BigEndian
	return javaCheckpoint{int64(be.Uint64(b[:])), int64(be.Uint64(b[8:])), int64(be.Uint64(b[16:]))}
}

// ownCheckpoint is checkpoint.apogee, a line of text with a CRC:
//
//	apogee 1 PHYSICAL INDEXFILE INDEXCOUNT INDEXTIME INDEXPHYSICAL CRC
//
// Up to PHYSICAL consume queues and index are durable; the index fields are its last file's header then.
type ownCheckpoint struct {
	physical                 int64
	indexFile                string
	indexCount               int
	indexTime, indexPhysical int64
}

func (c ownCheckpoint) encode() []byte {
	name := c.indexFile
	if name == "" {
		name = "-"
	}
	line := fmt.Sprintf("apogee 1 %d %s %d %d %d", c.physical, name, c.indexCount, c.indexTime, c.indexPhysical)
	return fmt.Appendf(nil, "%s %08x\n", line, crc32.ChecksumIEEE([]byte(line)))
}

func (s *Store) readOwnCheckpoint() (c ownCheckpoint, ok bool) {
	f, err := s.fs.OpenFile(path.Join(s.o.Dir, "checkpoint.apogee"), os.O_RDWR)
	if err != nil {
		return c, false
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil || size > 4096 {
		return c, false
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		return c, false
	}
	var version int
	var crc uint32
	n, err := fmt.Sscanf(string(b), "apogee %d %d %s %d %d %d %x\n", &version, &c.physical, &c.indexFile, &c.indexCount, &c.indexTime, &c.indexPhysical, &crc)
	if err != nil || n != 7 || version != 1 {
		return c, false
	}
	if c.indexFile == "-" {
		c.indexFile = ""
	}
	return c, string(c.encode()) == string(b)
}

// checkpoint makes everything dispatched so far durable, in the order log, queues and index, and then says so in
// both checkpoint files.
func (s *Store) checkpoint() error {
	s.checkpointMu.Lock()
	defer s.checkpointMu.Unlock()
	upTo, stored := s.dispatched.Load(), s.lastStored.Load()
	c := ownCheckpoint{physical: upTo}
	if s.index != nil {
		c.indexFile, c.indexCount, c.indexTime, c.indexPhysical = s.index.end()
	}
	if err := s.flushLog(upTo); err != nil {
		return err
	}
	if err := s.flushQueues(true); err != nil {
		return err
	}
	if s.index != nil {
		if err := s.index.sync(); err != nil {
			return err
		}
	}
	if err := s.replaceFile("checkpoint.apogee", c.encode()); err != nil {
		return err
	}
	var b [4096]byte
	be := binary.BigEndian
	be.PutUint64(b[0:], uint64(stored))
	be.PutUint64(b[8:], uint64(stored))
	be.PutUint64(b[16:], uint64(c.indexTime))
	be.PutUint64(b[32:], uint64(upTo))
	return s.replaceFile("checkpoint", b[:])
}

// replaceFile replaces a small file of the store's folder whole.
func (s *Store) replaceFile(name string, data []byte) error {
	tmp, dst := path.Join(s.o.Dir, name+".tmp"), path.Join(s.o.Dir, name)
	f, err := s.fs.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.WriteAt(data, 0)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := s.fs.Rename(tmp, dst); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return s.fs.SyncDir(s.o.Dir)
}

// flushLog makes the log durable up to a physical offset.
func (s *Store) flushLog(upTo int64) error {
	from := s.flushed.Load()
	if from >= upTo {
		return nil
	}
	for at := from - from%s.o.SegmentSize; at < upTo; at += s.o.SegmentSize {
		g := s.segmentAt(at)
		if g == nil {
			continue
		}
		err := g.file.Datasync()
		g.unref()
		if err != nil {
			err = fmt.Errorf("%w: flush %s: %w", ErrLogFailed, g.name, err)
			s.mu.Lock()
			if s.state == nil {
				s.state = err
				s.health.Store(&err)
				s.log.Error("the commit log failed: no message is accepted until the broker is started again; reads go on", "error", err)
			}
			s.mu.Unlock()
			return err
		}
	}
	s.counters.Flushes.Add(1)
	for { // flushed only moves forward
		old := s.flushed.Load()
		if old >= upTo || s.flushed.CompareAndSwap(old, upTo) {
			return nil
		}
	}
}
