package store

import (
	"errors"
	"fmt"
	"math"
	"sort"
	"strings"

	"github.com/apogeemq/apogee/internal/message"
)

// GetStatus says what a Get met.
type GetStatus int

// The statuses.
const (
	Found GetStatus = iota
	NoMatchedMessage
	MessageWasRemoving
	OffsetFoundNull
	OffsetOverflowBadly
	OffsetOverflowOne
	OffsetTooSmall
	NoMatchedLogicQueue
	NoMessageInQueue
)

var statusNames = [...]string{"FOUND", "NO_MATCHED_MESSAGE", "MESSAGE_WAS_REMOVING", "OFFSET_FOUND_NULL", "OFFSET_OVERFLOW_BADLY",
	"OFFSET_OVERFLOW_ONE", "OFFSET_TOO_SMALL", "NO_MATCHED_LOGIC_QUEUE", "NO_MESSAGE_IN_QUEUE"}

// String returns Java's name of the status.
func (s GetStatus) String() string { return statusNames[s] }

// Filter chooses messages. It must not keep a record.
type Filter interface {
	MatchTagsCode(code int64) bool
	MatchRecord(rec []byte) bool
}

// GetResult is what a Get found. It can be used again after Release.
type GetResult struct {
	Status     GetStatus
	NextOffset int64 // where to go on
	MinOffset  int64
	MaxOffset  int64
	Records    [][]byte // views of the log, valid until Release
	Count      int
	Bytes      int
	Slow       bool // the reader is so far behind that a replica should serve it

	segments []*segment
	units    []byte
	hot      int64 // records from here on are in memory, most likely
	loaded   span  // records before it that were brought there
	failed   bool  // the disk failed
}

// Release lets go of the records. It must be called once after every Get.
func (r *GetResult) Release() {
	for i, g := range r.segments {
		g.unref()
		r.segments[i] = nil
	}
	r.segments = r.segments[:0]
	clear(r.Records)
	r.Records = r.Records[:0]
}

// scanUnits is how many units one Get looks at, whatever a filter lets through (Java's maxFilterMessageSize).
const scanUnits = 800

// Get reads up to maxNum messages of a queue from offset on. At least one that matches is returned however large
// it is; beyond that maxBytes and the limits of Options hold.
func (s *Store) Get(topic string, queueID int32, offset int64, maxNum, maxBytes int, f Filter, r *GetResult) {
	*r = GetResult{Records: r.Records[:0], segments: r.segments[:0], units: r.units}
	q, err := s.queue(topic, queueID, false)
	if err != nil && !errors.Is(err, ErrIllegal) {
		// The queue may hold anything: the reader stays where it is.
		s.complain("consume queue: can't be loaded", topic, queueID, offset, err)
		r.Status, r.NextOffset = OffsetFoundNull, offset
		return
	}
	if q == nil {
		r.Status = NoMessageInQueue
		return
	}
	q.mu.RLock()
	r.MinOffset, r.MaxOffset = q.min, q.max
	q.mu.RUnlock()
	switch {
	case r.MaxOffset == 0:
		r.Status = NoMessageInQueue
	case offset < r.MinOffset:
		r.Status, r.NextOffset = OffsetTooSmall, r.MinOffset
	case offset == r.MaxOffset:
		r.Status, r.NextOffset = OffsetOverflowOne, offset
	case offset > r.MaxOffset:
		r.Status, r.NextOffset = OffsetOverflowBadly, r.MaxOffset
	default:
		s.read(q, offset, max(maxNum, 1), maxBytes, f, r)
	}
}

func (s *Store) read(q *queue, offset int64, maxNum, maxBytes int, f Filter, r *GetResult) {
	end := s.dispatched.Load()
	memory := s.inMemoryBytes()
	r.hot = max(end-memory, s.recovered)
	r.Status = NoMatchedMessage
	removedUntil := int64(-1) // units below it point into segments that are gone
	next := offset
	limit := min(r.MaxOffset, offset+int64(max(scanUnits, maxNum)))
scan:
	for next < limit {
		want := int(min(limit-next, max(int64(maxNum-r.Count), 32)))
		if cap(r.units) < want*queueUnit {
			r.units = make([]byte, want*queueUnit)
		}
		n, err := s.readUnits(q, next, r.units[:want*queueUnit])
		if err != nil || n == 0 {
			if r.Count == 0 {
				next = s.unreadable(q, next, err, r)
			}
			break
		}
		for i := range n {
			u := decodeUnit(r.units[i*queueUnit : (i+1)*queueUnit])
			if u.physical < removedUntil {
				next++
				continue
			}
			inMemory := end-u.physical <= memory
			if r.Count > 0 && s.full(r, int(u.size), maxNum, maxBytes, inMemory) {
				break scan
			}
			if f != nil && !f.MatchTagsCode(u.tagsCode) {
				next++
				continue
			}
			rec, gone := s.recordOf(q, next, u, r)
			if rec == nil && (r.failed || s.closed.Load()) { // nothing can be said of what isn't there
				if r.Count == 0 {
					r.Status = OffsetFoundNull
				}
				break scan
			}
			next++
			if rec == nil {
				if gone {
					removedUntil = u.physical - u.physical%s.o.SegmentSize + s.o.SegmentSize
				}
				if r.Count == 0 {
					r.Status = MessageWasRemoving
				}
				continue
			}
			if f != nil && !f.MatchRecord(rec) {
				continue
			}
			r.Records = append(r.Records, rec)
			r.Count++
			r.Bytes += len(rec)
			r.Status = Found
			r.Slow = !inMemory
		}
	}
	r.NextOffset = next
}

// unreadable decides what a unit that can't be read means: its file was cleaned away meanwhile or is missing, then
// the reader goes on behind it; or the disk failed, then it tries again.
func (s *Store) unreadable(q *queue, offset int64, err error, r *GetResult) (next int64) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if offset < q.min {
		r.Status, r.MinOffset = OffsetTooSmall, q.min
		return q.min
	}
	r.Status = OffsetFoundNull
	if !errors.Is(err, errNoUnits) {
		s.complain("consume queue: can't be read, the consumer waits", q.topic, q.id, offset, err)
		return offset
	}
	for _, start := range q.files {
		if at := start / queueUnit; at > offset {
			return at
		}
	}
	return q.tailFrom
}

// complain logs what a reader met, not more often than once in a while: it will try again soon.
func (s *Store) complain(what, topic string, queueID int32, offset int64, err error) {
	const pause = 10 * 1000 // ms
	now := s.o.Now().UnixMilli()
	last := s.complained.Load()
	if now-last >= pause && s.complained.CompareAndSwap(last, now) {
		s.log.Error(what, "topic", topic, "queueId", queueID, "offset", offset, "error", err)
	}
}

func (s *Store) inMemoryBytes() int64 {
	if s.o.InMemoryRatio < 0 {
		return -1
	}
	return s.o.MemoryBytes / 100 * int64(s.o.InMemoryRatio)
}

// full reports whether one more record of the given size is too much.
func (s *Store) full(r *GetResult, size, maxNum, maxBytes int, inMemory bool) bool {
	count, bytes := s.o.MaxCountOnDisk, s.o.MaxBytesOnDisk
	if inMemory {
		count, bytes = s.o.MaxCountInMemory, s.o.MaxBytesInMemory
	}
	return r.Count+1 > maxNum || r.Count+1 > count || r.Bytes+size > bytes || maxBytes > 0 && r.Bytes+size > maxBytes
}

// lightPrefix begins the names of Java's light queues, which share the records of other topics.
const lightPrefix = "%LMQ%"

// recordOf returns the record that a unit points to, a view of its segment, which r then holds; nil when there is
// none: gone says that it was, but its segment is deleted. Otherwise the unit stands for no message, or it points to
// something else, which is worth a line in the log.
func (s *Store) recordOf(q *queue, offset int64, u unit, r *GetResult) (rec []byte, gone bool) {
	if u.size <= 0 || u.size == preBlankSize {
		return nil, false
	}
	var g *segment
	for _, held := range r.segments {
		if u.physical >= held.base && u.physical < held.base+s.o.SegmentSize {
			g = held
		}
	}
	if g == nil {
		if g = s.segmentAt(u.physical); g == nil {
			return nil, u.physical < s.dispatched.Load()
		}
		r.segments = append(r.segments, g)
	}
	at := u.physical - g.base
	if at+int64(u.size) > int64(len(g.data)) {
		s.complain("consume queue: a unit points over the end of a commit-log file, it is skipped", q.topic, q.id, offset, ErrDamaged)
		return nil, false
	}
	if u.physical < r.hot && (u.physical < r.loaded.from || u.physical+int64(u.size) > r.loaded.to) {
		if err := s.loadCold(g, u, r); err != nil {
			s.complain("commit log: can't be read, the consumer waits", q.topic, q.id, offset, err)
			r.failed = true
			return nil, false
		}
	}
	rec = g.data[at : at+int64(u.size) : at+int64(u.size)]
	h, err := message.DecodeHeader(rec)
	if err != nil || !h.SysFlag.Queued() || h.Size != u.size || h.PhysicalOffset != u.physical || h.QueueID != q.id && !strings.HasPrefix(q.topic, lightPrefix) {
		s.complain("consume queue: a unit points to something else than its message, it is skipped", q.topic, q.id, offset, ErrDamaged)
		return nil, false
	}
	return rec, false
}

// loadAhead is how much of the log is brought into memory at once for a reader of old messages.
const loadAhead = 128 << 10

// loadCold brings a record that this process didn't write lately, and what follows it, into memory.
func (s *Store) loadCold(g *segment, u unit, r *GetResult) error {
	at := u.physical - g.base
	n := min(max(int64(u.size), loadAhead), int64(len(g.data))-at, max(r.hot-u.physical, int64(u.size)))
	if err := g.m.Load(at, n); err != nil {
		return fmt.Errorf("read %s at %d: %w", g.name, at, err)
	}
	r.loaded = span{u.physical, u.physical + n}
	return nil
}

// bounds returns a queue's readable range; a queue that doesn't exist has none.
func (s *Store) bounds(topic string, queueID int32) (lo, hi int64) {
	q, err := s.queue(topic, queueID, false)
	if err != nil || q == nil {
		return 0, 0
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.min, q.max
}

// MinOffset returns the first readable offset of a queue, 0 where it is unknown.
func (s *Store) MinOffset(topic string, queueID int32) int64 {
	lo, _ := s.bounds(topic, queueID)
	return lo
}

// MaxOffset returns the offset behind the last readable message of a queue, 0 where it is unknown.
func (s *Store) MaxOffset(topic string, queueID int32) int64 {
	_, hi := s.bounds(topic, queueID)
	return hi
}

// QueueEntry returns what the consume queue holds at an offset.
func (s *Store) QueueEntry(topic string, queueID int32, offset int64) (physical int64, size int32, tagsCode int64, ok bool) {
	u, ok := s.unit(topic, queueID, offset)
	return u.physical, u.size, u.tagsCode, ok
}

func (s *Store) unit(topic string, queueID int32, offset int64) (unit, bool) {
	q, err := s.queue(topic, queueID, false)
	if err != nil || q == nil {
		return unit{}, false
	}
	q.mu.RLock()
	lo, hi := q.min, q.max
	q.mu.RUnlock()
	if offset < lo || offset >= hi {
		return unit{}, false
	}
	u, err := s.readUnit(q, offset)
	return u, err == nil && u.size > 0 && u.size != preBlankSize
}

// InMemory reports whether the message at an offset counts as being in memory: near enough to the log's end.
func (s *Store) InMemory(topic string, queueID int32, offset int64) bool {
	u, ok := s.unit(topic, queueID, offset)
	return ok && s.dispatched.Load()-u.physical <= s.inMemoryBytes()
}

// StoreTimeAt returns the store time (ms) of the message at an offset.
func (s *Store) StoreTimeAt(topic string, queueID int32, offset int64) (int64, bool) {
	u, ok := s.unit(topic, queueID, offset)
	if !ok {
		return 0, false
	}
	return s.storeTime(u)
}

// storeTime reads a record's store time with a plain read: a search by time looks at records all over the log, and a
// mapped page that isn't in memory would stop everything that this processor runs.
func (s *Store) storeTime(u unit) (int64, bool) {
	g := s.segmentAt(u.physical)
	if g == nil {
		return 0, false
	}
	defer g.unref()
	var b [headerSize]byte
	at := u.physical - g.base
	n := min(int64(len(b)), s.o.SegmentSize-at)
	if err := readFull(g.file, b[:n], at); err != nil {
		return 0, false
	}
	h, err := message.DecodeHeader(b[:n])
	if err != nil || h.Blank {
		return 0, false
	}
	return h.StoreTimestamp, true
}

// OffsetByTime finds an offset by store time (ms): the first with a time at or after ms, or with upper the last
// with a time at or before it. After all messages that is the end, before all of them the beginning.
func (s *Store) OffsetByTime(topic string, queueID int32, ms int64, upper bool) int64 {
	lo, hi := s.bounds(topic, queueID)
	after := func(limit int64) int64 { // first offset with time > limit
		n := sort.Search(int(hi-lo), func(i int) bool {
			t, ok := s.StoreTimeAt(topic, queueID, lo+int64(i))
			return ok && t > limit
		})
		return lo + int64(n)
	}
	if !upper {
		if ms == math.MinInt64 {
			return lo
		}
		return after(ms - 1)
	}
	if at := after(ms); at > lo {
		return at - 1
	}
	return lo
}

// Record returns the whole record at a physical offset; the caller calls release when done with it.
func (s *Store) Record(physical int64) (rec []byte, release func(), err error) {
	rec, g, err := s.record(physical)
	if err != nil {
		return nil, nil, err
	}
	return rec, g.unref, nil
}

// record is Record with the segment to unref.
func (s *Store) record(physical int64) ([]byte, *segment, error) {
	if physical < 0 || physical >= s.dispatched.Load() {
		return nil, nil, fmt.Errorf("%w: physical offset %d, the log ends at %d", ErrNotFound, physical, s.dispatched.Load())
	}
	g := s.segmentAt(physical)
	if g == nil {
		return nil, nil, fmt.Errorf("%w: physical offset %d, the log begins at %d", ErrNotFound, physical, s.MinPhysical())
	}
	var m message.Message
	n, err := message.DecodeRecord(g.data[physical-g.base:], &m, false)
	if err != nil || m.PhysicalOffset != physical {
		g.unref()
		return nil, nil, fmt.Errorf("%w: no record begins at physical offset %d", ErrNotFound, physical)
	}
	at := physical - g.base
	return g.data[at : at+int64(n)], g, nil
}

// Queues calls f for every queue that has files or messages, in no order.
func (s *Store) Queues(f func(topic string, queueID int32, lo, hi int64)) {
	if err := s.loadAllQueues(); err != nil {
		s.complain("consume queue: can't be loaded", "", 0, 0, err)
	}
	for _, q := range s.allQueues() {
		q.mu.RLock()
		lo, hi := q.min, q.max
		q.mu.RUnlock()
		f(q.topic, q.id, lo, hi)
	}
}
