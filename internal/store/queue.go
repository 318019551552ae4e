package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/apogeemq/apogee/internal/vfs"
)

// A consume queue is a list of 20-byte units, one a message, in files of a fixed size that are named for the byte
// offset of their first unit:
//
//	physical offset (8) | record size (4) | tags code (8)
//
// A unit with physical offset 0 and size 0x7FFFFFFF stands for "before the beginning".
const (
	queueUnit     = 20
	preBlankSize  = 0x7FFFFFFF
	maxQueueTail  = 64 << 10 // bytes of units that wait in memory before they are written
	batchQueueDir = "batchconsumequeue"
)

// queue is one consume queue. Its newest units wait in memory (tail) and are written about once a second; what a
// crash takes of them is redone from the log. A queue costs no open file, timer or goroutine.
type queue struct {
	topic string
	id    int32
	dir   string

	next int64 // queue offset of the next append; guarded by Store.mu

	mu       sync.RWMutex
	min      int64 // first readable offset
	max      int64 // behind the last readable one
	tail     []byte
	tailFrom int64          // offset of the tail's first unit
	unsynced map[int64]bool // start offsets of files that were written and not flushed
	known    map[int64]bool // start offsets of files that exist
	deleted  bool
	dirty    atomic.Bool // tail isn't empty: is in the flusher's list
}

// unit is one decoded entry.
type unit struct {
	physical int64
	size     int32
	tagsCode int64
}

func decodeUnit(b []byte) unit {
	be := binary.BigEndian
	return unit{int64(be.Uint64(b)), int32(be.Uint32(b[8:])), int64(be.Uint64(b[12:]))}
}

func appendUnit(b []byte, u unit) []byte {
	be := binary.BigEndian
	b = be.AppendUint64(b, uint64(u.physical))
	b = be.AppendUint32(b, uint32(u.size))
	return be.AppendUint64(b, uint64(u.tagsCode))
}

// queue returns a queue, loading it from its files when it is first asked for. With create it is made when it has
// none; without, a missing queue gives nil.
func (s *Store) queue(topic string, id int32, create bool) (*queue, error) {
	key := queueKey{topic, id}
	s.queueMu.RLock()
	q := s.queues[key]
	s.queueMu.RUnlock()
	if q != nil {
		return q, nil
	}
	if topic == "" || strings.ContainsAny(topic, "/\x00") || topic == "." || topic == ".." {
		return nil, fmt.Errorf("%w: topic name %q", ErrIllegal, topic)
	}
	s.queueMu.Lock()
	defer s.queueMu.Unlock()
	if q := s.queues[key]; q != nil {
		return q, nil
	}
	q, found, err := s.loadQueue(topic, id)
	if err != nil {
		return nil, err
	}
	if !found && !create {
		return nil, nil
	}
	s.queues[key] = q
	return q, nil
}

// loadQueue finds the ends of a queue from its files. Units at or behind the end of the log that recovery found
// are stale: they belong to records that a crash took.
func (s *Store) loadQueue(topic string, id int32) (q *queue, found bool, err error) {
	dir := path.Join(s.queueRoot(), topic, strconv.Itoa(int(id)))
	q = &queue{topic: topic, id: id, dir: dir, unsynced: map[int64]bool{}, known: map[int64]bool{}}
	entries, err := s.fs.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := s.fs.Stat(path.Join(s.o.Dir, batchQueueDir, topic)); err == nil {
			return nil, false, fmt.Errorf("%w: topic %s has batch consume queues, which are not supported", ErrIllegal, topic)
		}
		return q, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	var starts []int64
	for _, e := range entries {
		at, err := strconv.ParseInt(e.Name(), 10, 64)
		if err != nil || len(e.Name()) != 20 {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, false, err
		}
		if info.Size() != s.o.QueueSize {
			if info.Size() == 0 {
				continue
			}
			return nil, false, fmt.Errorf("consume queue %s: %s has %d bytes, mappedFileSizeConsumeQueue is %d: set it to the size this store was made with", dir, e.Name(), info.Size(), s.o.QueueSize)
		}
		starts = append(starts, at)
	}
	sort.Slice(starts, func(i, j int) bool { return starts[i] < starts[j] })
	if len(starts) == 0 {
		return q, false, nil
	}
	for _, at := range starts {
		q.known[at] = true
	}
	perFile := s.o.QueueSize / queueUnit
	logEnd := s.end
	valid := func(offset int64) bool {
		u, err := s.unitInFile(q, offset)
		if err != nil {
			return false
		}
		return u.size > 0 && (u.physical+int64(u.size) <= logEnd || u.size == preBlankSize && u.physical == 0)
	}
	// The last file with a valid first unit holds the end; inside, units are valid up to it and not beyond.
	q.min, q.max = starts[0]/queueUnit, starts[0]/queueUnit
	for i := len(starts) - 1; i >= 0; i-- {
		first := starts[i] / queueUnit
		if !valid(first) {
			continue
		}
		n := sort.Search(int(perFile), func(k int) bool { return !valid(first + int64(k)) })
		q.max = first + int64(n)
		break
	}
	minPhysical := s.MinPhysical()
	n := sort.Search(int(q.max-q.min), func(k int) bool {
		u, err := s.unitInFile(q, q.min+int64(k))
		return err == nil && u.size != preBlankSize && u.physical >= minPhysical
	})
	q.min += int64(n)
	q.tailFrom, q.next = q.max, q.max
	return q, true, nil
}

// unitInFile reads one unit from its file.
func (s *Store) unitInFile(q *queue, offset int64) (unit, error) {
	var b [queueUnit]byte
	at := offset * queueUnit
	start := at - at%s.o.QueueSize
	if !q.known[start] {
		return unit{}, ErrNotFound
	}
	f, err := s.files.get(path.Join(q.dir, fileName(start)))
	if err != nil {
		return unit{}, err
	}
	defer f.done()
	if _, err := f.f.ReadAt(b[:], at-start); err != nil {
		return unit{}, err
	}
	return decodeUnit(b[:]), nil
}

// units reads up to len(buf)/20 units from offset on into buf, not beyond one file, and returns how many. The
// caller holds q.mu.
func (s *Store) unitsLocked(q *queue, offset int64, buf []byte) (int, error) {
	if offset >= q.tailFrom {
		return copy(buf, q.tail[(offset-q.tailFrom)*queueUnit:]) / queueUnit, nil
	}
	at := offset * queueUnit
	start := at - at%s.o.QueueSize
	n := min(int64(len(buf)), start+s.o.QueueSize-at, (q.tailFrom-offset)*queueUnit)
	if !q.known[start] {
		return 0, ErrNotFound
	}
	f, err := s.files.get(path.Join(q.dir, fileName(start)))
	if err != nil {
		return 0, err
	}
	defer f.done()
	if _, err := f.f.ReadAt(buf[:n], at-start); err != nil {
		return 0, err
	}
	return int(n) / queueUnit, nil
}

// dispatchRecord puts one record into its consume queue and the index.
func (s *Store) dispatchRecord(e *entry, rec []byte) {
	if q := e.q; q != nil {
		q.mu.Lock()
		if !q.deleted && e.queueOffset == q.max {
			q.tail = appendUnit(q.tail, unit{e.physical, e.size, e.tagsCode})
			q.max++
			full := len(q.tail) >= maxQueueTail
			if full {
				if err := s.writeTailLocked(q); err != nil {
					s.log.Error("consume queue: write failed, its units stay in memory", "topic", q.topic, "queueId", q.id, "error", err)
				}
			}
		}
		q.mu.Unlock()
		q.dirty.Store(true)
	}
	if s.index != nil {
		s.index.add(rec, e.physical, e.storeTimestamp)
	}
}

// writeTailLocked writes the tail to the queue's files. The caller holds q.mu.
func (s *Store) writeTailLocked(q *queue) error {
	for len(q.tail) > 0 {
		at := q.tailFrom * queueUnit
		start := at - at%s.o.QueueSize
		n := min(int64(len(q.tail)), start+s.o.QueueSize-at)
		if !q.known[start] {
			if err := s.makeQueueFile(q, start, at); err != nil {
				return err
			}
		}
		f, err := s.files.get(path.Join(q.dir, fileName(start)))
		if err != nil {
			return err
		}
		_, err = f.f.WriteAt(q.tail[:n], at-start)
		f.done()
		if err != nil {
			return err
		}
		q.unsynced[start] = true
		q.tailFrom += n / queueUnit
		q.tail = append(q.tail[:0], q.tail[n:]...)
	}
	if cap(q.tail) > 4<<10 {
		q.tail = nil
	}
	return nil
}

// makeQueueFile makes a queue's file in its full size. A first file whose queue begins inside it gets units that
// say so.
func (s *Store) makeQueueFile(q *queue, start, at int64) error {
	if err := s.fs.MkdirAll(q.dir); err != nil {
		return err
	}
	name := path.Join(q.dir, fileName(start))
	f, err := s.fs.OpenFile(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	err = f.Truncate(s.o.QueueSize)
	if err == nil && at > start {
		var blank []byte
		for range (at - start) / queueUnit {
			blank = appendUnit(blank, unit{size: preBlankSize})
		}
		_, err = f.WriteAt(blank, 0)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	q.known[start] = true
	return nil
}

// flushQueues writes every queue's tail; with sync it also flushes what was written.
func (s *Store) flushQueues(sync bool) error {
	s.queueMu.RLock()
	var list []*queue
	for _, q := range s.queues {
		if q.dirty.Load() || sync {
			list = append(list, q)
		}
	}
	s.queueMu.RUnlock()
	var errs []error
	for _, q := range list {
		errs = append(errs, s.flushQueue(q, sync))
	}
	return errors.Join(errs...)
}

func (s *Store) flushQueue(q *queue, sync bool) error {
	q.mu.Lock()
	if q.deleted {
		q.mu.Unlock()
		return nil
	}
	q.dirty.Store(false)
	err := s.writeTailLocked(q)
	if err != nil {
		q.dirty.Store(true)
	}
	var starts []int64
	if sync && err == nil {
		for at := range q.unsynced {
			starts = append(starts, at)
		}
		clear(q.unsynced)
	}
	q.mu.Unlock()
	if err != nil {
		return fmt.Errorf("consume queue %s: %w", q.dir, err)
	}
	for _, at := range starts {
		f, err := s.files.get(path.Join(q.dir, fileName(at)))
		if err != nil {
			return err
		}
		err = f.f.Sync()
		f.done()
		if err != nil {
			return fmt.Errorf("consume queue %s: %w", q.dir, err)
		}
	}
	if len(starts) > 0 {
		return errors.Join(s.fs.SyncDir(q.dir), s.fs.SyncDir(path.Dir(q.dir)), s.fs.SyncDir(s.queueRoot()))
	}
	return nil
}

// DeleteTopic removes all queues of a topic. Its records stay in the log until their files go.
func (s *Store) DeleteTopic(topic string) error {
	if topic == "" || strings.ContainsAny(topic, "/\x00") || topic == "." || topic == ".." {
		return fmt.Errorf("%w: topic name %q", ErrIllegal, topic)
	}
	s.queueMu.Lock()
	for key, q := range s.queues {
		if key.topic == topic {
			q.mu.Lock()
			q.deleted, q.tail, q.min = true, nil, q.max
			q.mu.Unlock()
			delete(s.queues, key)
			for start := range q.known {
				s.files.forget(path.Join(q.dir, fileName(start)))
			}
		}
	}
	err := s.fs.RemoveAll(path.Join(s.queueRoot(), topic))
	s.queueMu.Unlock()
	if err != nil {
		return fmt.Errorf("delete topic %s: %w", topic, err)
	}
	// A recovery must not see the records before this moment again: it would bring the queues back.
	return s.checkpoint()
}

// fileCache keeps a bounded number of consume-queue files open.
type fileCache struct {
	fs    vfs.FS
	limit int
	mu    sync.Mutex
	open  map[string]*cachedFile
	clock uint64
}

type cachedFile struct {
	c    *fileCache
	f    vfs.File
	name string
	refs int
	used uint64
	gone bool // forgotten: closed by its last user
}

func newFileCache(fs vfs.FS, limit int) *fileCache {
	return &fileCache{fs: fs, limit: limit, open: make(map[string]*cachedFile)}
}

func (c *fileCache) get(name string) (*cachedFile, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	if f, ok := c.open[name]; ok {
		f.refs++
		f.used = c.clock
		return f, nil
	}
	if len(c.open) >= c.limit {
		c.evict()
	}
	file, err := c.fs.OpenFile(name, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	f := &cachedFile{c: c, f: file, name: name, refs: 1, used: c.clock}
	c.open[name] = f
	return f, nil
}

// evict closes the older half of what nobody uses.
func (c *fileCache) evict() {
	var idle []*cachedFile
	for _, f := range c.open {
		if f.refs == 0 {
			idle = append(idle, f)
		}
	}
	sort.Slice(idle, func(i, j int) bool { return idle[i].used < idle[j].used })
	for _, f := range idle[:(len(idle)+1)/2] {
		delete(c.open, f.name)
		_ = f.f.Close()
	}
}

func (f *cachedFile) done() {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.refs--; f.refs == 0 && f.gone {
		_ = f.f.Close()
	}
}

func (c *fileCache) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.open[name]; ok {
		delete(c.open, name)
		if f.gone = true; f.refs == 0 {
			_ = f.f.Close()
		}
	}
}

func (c *fileCache) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, f := range c.open {
		delete(c.open, name)
		_ = f.f.Close()
	}
}
