package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// A consume queue is a list of 20-byte units, one a message, in files of a fixed size that are named for the byte
// offset of their first unit:
//
//	physical offset (8) | record size (4) | tags code (8)
//
// A unit with physical offset 0 and size 0x7FFFFFFF stands for no message.
const (
	queueUnit     = 20
	preBlankSize  = 0x7FFFFFFF
	batchQueueDir = "batchconsumequeue"
)

const (
	// flushTailBytes is how many bytes of units may wait in memory before they are written ahead of time.
	flushTailBytes = 4 << 20
	// maxTailBytes is how many may wait when they can't be written; beyond it appends are refused.
	maxTailBytes = 64 << 20
)

// queue is one consume queue. Its newest units wait in memory (tail). The store's background writes them with the
// checkpoint or when many wait, and only those whose records are durable: on the disk no unit is ahead of the log.
// What a crash takes of them is made again from the log. A queue costs no open file, timer or goroutine.
type queue struct {
	topic string
	id    int32

	// guarded by Store.mu
	next    int64 // queue offset of the next append
	deleted bool  // its topic was deleted: appends go to a new queue

	loading sync.Mutex // held by who loads it
	loaded  atomic.Bool

	mu       sync.RWMutex
	min      int64 // first readable offset
	max      int64 // behind the last readable one
	tail     []byte
	tailFrom int64   // offset of the tail's first unit
	files    []int64 // start offsets in bytes of the files that exist, ascending; changed by holders of Store.flushMu
	gone     bool    // its topic was deleted: units are dropped
	listed   bool    // is in Store.dirty
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

// add puts a unit behind the others. The caller holds mu, or opens the store.
func (q *queue) add(u unit) {
	if q.tail == nil {
		q.tail = make([]byte, 0, 4*queueUnit)
	}
	q.tail = appendUnit(q.tail, u)
	q.max++
}

func (s *Store) queueDir(q *queue) string {
	return path.Join(s.queueRoot(), q.topic, strconv.Itoa(int(q.id)))
}

func (s *Store) queueFile(q *queue, start int64) string {
	return path.Join(s.queueDir(q), fileName(start))
}

// scanQueueFolders learns which topics have folders, so that asking for a queue that has none costs no system call.
// It also looks at one file, since a wrong mappedFileSizeConsumeQueue is better met at the start than by a consumer.
func (s *Store) scanQueueFolders(clean bool) error {
	s.onDisk, s.batchTopics = map[string]map[int32]bool{}, map[string]bool{}
	entries, err := s.fs.ReadDir(s.queueRoot())
	if err != nil {
		return err
	}
	sampled := false
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		s.onDisk[e.Name()] = nil
		if !sampled {
			if sampled, err = s.checkQueueFileSize(e.Name(), clean); err != nil {
				return err
			}
		}
	}
	entries, err = s.fs.ReadDir(path.Join(s.o.Dir, batchQueueDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		s.batchTopics[e.Name()] = true
	}
	return nil
}

// checkQueueFileSize looks at one file of a topic's queues, if there is one.
func (s *Store) checkQueueFileSize(topic string, clean bool) (found bool, err error) {
	ids, err := s.fs.ReadDir(path.Join(s.queueRoot(), topic))
	if err != nil || len(ids) == 0 {
		return false, err
	}
	dir := path.Join(s.queueRoot(), topic, ids[0].Name())
	if !ids[0].IsDir() {
		return false, nil
	}
	starts, short, err := s.listQueueFiles(dir)
	if err == nil && len(short) > 0 && clean {
		err = s.sizeError(dir, short[0])
	}
	return len(starts) > 0, err
}

func (s *Store) sizeError(dir string, f queueFileSize) error {
	return fmt.Errorf("consume queue %s: %s has %d bytes, mappedFileSizeConsumeQueue is %d: set it to the size this store was made with", dir, fileName(f.start), f.size, s.o.QueueSize)
}

// shortFiles says what loading a queue does with files that are too short.
type shortFiles int

const (
	refuseShort shortFiles = iota
	ignoreShort
	removeShort
)

// queueFileSize is a consume-queue file that has not the configured size.
type queueFileSize struct{ start, size int64 }

// listQueueFiles returns the start offsets of a queue's files, and those that are too short: a crash cut off their
// making. One without a byte is none.
func (s *Store) listQueueFiles(dir string) (starts []int64, short []queueFileSize, err error) {
	entries, err := s.fs.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		at, err := strconv.ParseInt(e.Name(), 10, 64)
		if err != nil || len(e.Name()) != 20 {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		switch f := (queueFileSize{at, info.Size()}); {
		case f.size == 0:
		case f.size > s.o.QueueSize || at%s.o.QueueSize != 0:
			return nil, nil, s.sizeError(dir, f)
		case f.size < s.o.QueueSize:
			short = append(short, f)
		default:
			starts = append(starts, at)
		}
	}
	slices.Sort(starts)
	return starts, short, nil
}

// queue returns a queue, loading it from its files when it is first asked for. With create it is made when it has
// none; without, a missing queue gives nil.
func (s *Store) queue(topic string, id int32, create bool) (*queue, error) {
	return s.queueWith(topic, id, create, -1)
}

// queueWith is queue for one that may end at a known offset.
func (s *Store) queueWith(topic string, id int32, create bool, end int64) (*queue, error) {
	key := queueKey{topic, id}
	s.queueMu.RLock()
	q := s.queues[key]
	s.queueMu.RUnlock()
	if q == nil {
		if err := checkQueueName(topic, id); err != nil {
			return nil, err
		}
		var err error
		if q, err = s.addQueue(key, create); q == nil {
			return nil, err
		}
	}
	if !q.loaded.Load() {
		if err := s.loadQueue(q, end); err != nil {
			return nil, err
		}
	}
	return q, nil
}

func checkQueueName(topic string, id int32) error {
	if topic == "" || strings.ContainsAny(topic, "/\x00") || topic == "." || topic == ".." {
		return fmt.Errorf("%w: topic name %q", ErrIllegal, topic)
	}
	if id < 0 {
		return fmt.Errorf("%w: queue id %d", ErrIllegal, id)
	}
	return nil
}

// addQueue puts a queue into the table, not loaded yet, if it has a folder or create is set.
func (s *Store) addQueue(key queueKey, create bool) (*queue, error) {
	s.queueMu.Lock()
	defer s.queueMu.Unlock()
	if q := s.queues[key]; q != nil {
		return q, nil
	}
	ids, known := s.onDisk[key.topic]
	if known && ids == nil {
		ids = map[int32]bool{}
		entries, err := s.fs.ReadDir(path.Join(s.queueRoot(), key.topic))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if id, err := strconv.ParseInt(e.Name(), 10, 32); err == nil {
				ids[int32(id)] = true
			}
		}
		s.onDisk[key.topic] = ids
	}
	if !ids[key.id] {
		if !known && s.batchTopics[key.topic] {
			return nil, fmt.Errorf("%w: topic %s has batch consume queues, which are not supported", ErrIllegal, key.topic)
		}
		if !create {
			return nil, nil
		}
	}
	q := &queue{topic: key.topic, id: key.id}
	q.loaded.Store(!ids[key.id]) // nothing to load
	s.queues[key] = q
	return q, nil
}

// loadQueue finds the ends of a queue from its files. Units behind the end of the log that recovery found are none:
// they belong to records that a crash took. A place where the queue may end saves the search: -1 for none.
func (s *Store) loadQueue(q *queue, end int64) error {
	q.loading.Lock()
	defer q.loading.Unlock()
	if q.loaded.Load() {
		return nil
	}
	dir := s.queueDir(q)
	starts, short, err := s.listQueueFiles(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, f := range short {
		// Made after the checkpoint, so that all units in it are made again. Anything else is no work of a crash.
		switch s.shortFiles {
		case refuseShort:
			return s.sizeError(dir, f)
		case removeShort:
			if err := s.removeQueueFile(q, f.start); err != nil {
				return err
			}
		}
	}
	q.files, q.tailFrom = starts, 1<<58 // everything is in files while they are looked at
	lo, hi, err := s.queueEnds(q, end)
	if err != nil {
		return fmt.Errorf("consume queue %s: %w", dir, err)
	}
	q.mu.Lock()
	q.min, q.max, q.tailFrom = lo, hi, hi
	q.mu.Unlock()
	q.next = hi // nobody has the queue yet
	if s.scanAll {
		if err := s.cutQueue(q, hi); err != nil {
			return err
		}
	}
	q.loaded.Store(true)
	return nil
}

// queueEnds looks for the first and the last unit in a queue's files. When there is a unit before guess, that is taken
// for the end: what comes behind is cut off by who guesses.
func (s *Store) queueEnds(q *queue, guess int64) (lo, hi int64, err error) {
	if len(q.files) == 0 {
		return 0, 0, nil
	}
	perFile := s.o.QueueSize / queueUnit
	valid := func(offset int64) bool {
		u, e := s.readUnit(q, offset)
		if e != nil && err == nil {
			err = e
		}
		return e == nil && u.size > 0 && (u.physical+int64(u.size) <= s.recovered || u.size == preBlankSize && u.physical == 0)
	}
	// The last file with a valid first unit holds the end; inside, units are valid up to it and not beyond.
	lo = q.files[0] / queueUnit
	hi = lo
	if guess > lo && s.hasFile(q, guess-1) && valid(guess-1) {
		lo, err = s.firstUnit(q, lo, guess, s.MinPhysical())
		return lo, guess, err
	}
	for i := len(q.files) - 1; i >= 0 && err == nil; i-- {
		first := q.files[i] / queueUnit
		if !valid(first) {
			continue
		}
		n := 1
		if s.scanAll { // a crash of a Java broker may have left a hole
			for n < int(perFile) && valid(first+int64(n)) {
				n++
			}
		} else {
			n = sort.Search(int(perFile), func(k int) bool { return !valid(first + int64(k)) })
		}
		hi = first + int64(n)
		break
	}
	if err != nil {
		return 0, 0, err
	}
	lo, err = s.firstUnit(q, lo, hi, s.MinPhysical())
	return lo, hi, err
}

// firstUnit returns the first offset in [lo, hi) whose record lies at or behind a physical offset.
func (s *Store) firstUnit(q *queue, lo, hi, physical int64) (int64, error) {
	if lo < hi { // mostly it is the first
		if u, err := s.readUnit(q, lo); err == nil && u.size > 0 && u.size != preBlankSize && u.physical >= physical {
			return lo, nil
		}
	}
	var err error
	n := sort.Search(int(hi-lo), func(k int) bool {
		_, u, e := s.nextMessage(q, lo+int64(k), hi)
		if errors.Is(e, errNoUnits) {
			return false // its file is gone: the queue begins behind it
		}
		if e != nil && err == nil {
			err = e
		}
		return e == nil && u.physical >= physical
	})
	if err != nil {
		return lo + int64(n), err
	}
	at, _, err := s.nextMessage(q, lo+int64(n), hi)
	return at, err
}

// nextMessage returns the first unit in [at, hi) that doesn't stand for no message: such units may lie before a queue's
// beginning, and where messages are missing. Without one it returns hi and a unit behind everything.
func (s *Store) nextMessage(q *queue, at, hi int64) (offset int64, u unit, err error) {
	step := 1 // mostly it is the first
	var buf []byte
	for at < hi {
		if len(buf) < step*queueUnit {
			buf = make([]byte, step*queueUnit)
		}
		n, err := s.readUnits(q, at, buf[:min(int64(step), hi-at)*queueUnit])
		if err != nil {
			return at, unit{}, err
		}
		if n == 0 {
			return at, unit{}, fmt.Errorf("read unit %d", at)
		}
		for i := range n {
			if u := decodeUnit(buf[i*queueUnit:]); u.size != preBlankSize {
				return at + int64(i), u, nil
			}
		}
		at += int64(n)
		step = min(step*8, 4096)
	}
	return hi, unit{physical: math.MaxInt64}, nil
}

// hasFile reports whether the file is there that would hold a unit. The caller loads the queue.
func (s *Store) hasFile(q *queue, offset int64) bool {
	at := offset * queueUnit
	_, there := slices.BinarySearch(q.files, at-at%s.o.QueueSize)
	return there
}

// errNoUnits: the file that would hold a unit isn't there.
var errNoUnits = errors.New("no such consume-queue file")

func (s *Store) readUnit(q *queue, offset int64) (unit, error) {
	var b [queueUnit]byte
	if n, err := s.readUnits(q, offset, b[:]); err != nil || n != 1 {
		return unit{}, errors.Join(err, fmt.Errorf("read unit %d", offset))
	}
	return decodeUnit(b[:]), nil
}

// readUnits reads up to len(buf)/20 units from offset on into buf, not beyond one file, and returns how many. The
// caller doesn't hold q.mu: a slow disk must not stop the committer.
func (s *Store) readUnits(q *queue, offset int64, buf []byte) (int, error) {
	q.mu.RLock()
	if offset >= q.tailFrom {
		n := copy(buf, q.tail[min((offset-q.tailFrom)*queueUnit, int64(len(q.tail))):]) / queueUnit
		q.mu.RUnlock()
		return n, nil
	}
	at := offset * queueUnit
	start := at - at%s.o.QueueSize
	n := min(int64(len(buf)), start+s.o.QueueSize-at, (q.tailFrom-offset)*queueUnit)
	_, there := slices.BinarySearch(q.files, start)
	q.mu.RUnlock()
	if !there {
		return 0, errNoUnits
	}
	f, err := s.files.get(s, q, start)
	if errors.Is(err, fs.ErrNotExist) { // cleaned meanwhile
		return 0, errNoUnits
	}
	if err != nil {
		return 0, err
	}
	defer f.done()
	return int(n) / queueUnit, readFull(f.f, buf[:n], at-start)
}

// markDirty lists a queue for the next flush. The caller holds q.mu, or opens the store.
func (s *Store) markDirty(q *queue) {
	if q.listed {
		return
	}
	q.listed = true
	s.dirtyMu.Lock()
	s.dirty = append(s.dirty, q)
	s.dirtyMu.Unlock()
}

// flushQueues writes the units that wait and whose records are durable.
func (s *Store) flushQueues() error {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	return s.flushQueuesLocked()
}

// flushQueuesLocked is flushQueues for holders of flushMu.
func (s *Store) flushQueuesLocked() error {
	s.dirtyMu.Lock()
	list := s.dirty
	s.dirty = nil
	s.dirtyMu.Unlock()
	durable := s.flushed.Load()
	var first error
	for i, q := range list {
		if err := s.flushQueueLocked(q, durable); err != nil {
			first = fmt.Errorf("consume queue %s: %w", s.queueDir(q), err)
			s.dirtyMu.Lock()
			s.dirty = append(s.dirty, list[i:]...) // listed still
			s.dirtyMu.Unlock()
			break
		}
	}
	if first == nil {
		s.queuesFail.Store(nil)
	} else {
		s.queuesFail.Store(&first)
	}
	return first
}

// flushQueueLocked writes one queue's units. The caller holds flushMu.
func (s *Store) flushQueueLocked(q *queue, durable int64) error {
	for {
		q.mu.Lock()
		if q.gone || len(q.tail) == 0 {
			q.listed = false
			q.mu.Unlock()
			return nil
		}
		at := q.tailFrom * queueUnit
		start := at - at%s.o.QueueSize
		n := min(int64(len(q.tail)), start+s.o.QueueSize-at)
		for n > 0 { // units are in the order of the log
			if u := decodeUnit(q.tail[n-queueUnit:]); u.size == preBlankSize || u.physical+int64(u.size) <= durable {
				break
			}
			n -= queueUnit
		}
		if n == 0 { // the rest waits for the log
			q.listed = false
			s.markDirty(q)
			q.mu.Unlock()
			return nil
		}
		units := q.tail[:n:n] // appends go behind it
		_, there := slices.BinarySearch(q.files, start)
		q.mu.Unlock()

		if !there {
			if err := s.makeQueueFile(q, start, at); err != nil {
				return err
			}
		}
		f, err := s.files.get(s, q, start)
		if err != nil {
			return err
		}
		_, err = f.f.WriteAt(units, at-start)
		f.done()
		if err != nil {
			return err
		}
		s.unsynced[queueFileKey{q, start}] = true

		q.mu.Lock()
		if !q.gone {
			q.tailFrom += n / queueUnit
			if rest := len(q.tail) - int(n); rest == 0 && cap(q.tail) <= 16*queueUnit {
				q.tail = q.tail[:0]
			} else if rest == 0 {
				q.tail = nil // a queue that is quiet costs little
			} else {
				q.tail = append([]byte(nil), q.tail[n:]...)
			}
			s.tailBytes.Add(-n)
		}
		q.mu.Unlock()
	}
}

// makeQueueFile makes a queue's file in its full size. A queue that begins inside its first file has units before
// its beginning that say so. The caller holds flushMu, or opens the store.
func (s *Store) makeQueueFile(q *queue, start, at int64) error {
	dir := s.queueDir(q)
	if err := s.fs.MkdirAll(dir); err != nil {
		return err
	}
	f, err := s.fs.OpenFile(path.Join(dir, fileName(start)), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	if err = f.Truncate(s.o.QueueSize); err == nil && at > start {
		_, err = f.WriteAt(blankUnits(int((at-start)/queueUnit)), 0)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	s.namesChanged(q)
	s.unsynced[queueFileKey{q, start}] = true
	q.mu.Lock()
	if i, there := slices.BinarySearch(q.files, start); !there {
		q.files = slices.Insert(slices.Clip(q.files), i, start)
	}
	q.mu.Unlock()
	return nil
}

// namesChanged notes that a queue's folder, and those above it, must be flushed. The caller holds flushMu, or opens
// the store.
func (s *Store) namesChanged(q *queue) {
	dir := s.queueDir(q)
	s.dirtyDirs[dir], s.dirtyDirs[path.Dir(dir)], s.dirtyDirs[s.queueRoot()] = true, true, true
}

// manyFiles is from how many files on flushing the whole file system is cheaper than flushing each.
const manyFiles = 64

// syncQueuesLocked makes the files durable that were written. The caller holds flushMu.
func (s *Store) syncQueuesLocked() error {
	if len(s.unsynced)+len(s.dirtyDirs) > manyFiles {
		if err := s.fs.SyncAll(s.o.Dir); err != nil {
			return err
		}
	} else {
		for key := range s.unsynced {
			if err := s.syncQueueFile(key); err != nil {
				return fmt.Errorf("consume queue %s: %w", s.queueDir(key.q), err)
			}
		}
		for dir := range s.dirtyDirs {
			if err := s.fs.SyncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	clear(s.unsynced)
	clear(s.dirtyDirs)
	return nil
}

func (s *Store) syncQueueFile(key queueFileKey) error {
	f, err := s.files.get(s, key.q, key.start)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // deleted with its topic
	}
	if err != nil {
		return err
	}
	defer f.done()
	return f.f.Sync()
}

// cutQueue drops a queue's units from an offset on, in memory and in its files. Only opening calls it.
func (s *Store) cutQueue(q *queue, offset int64) error {
	q.mu.Lock()
	s.tailBytes.Add(-int64(len(q.tail)))
	q.max, q.tailFrom, q.tail = offset, offset, nil
	q.next = offset
	files := slices.Clone(q.files)
	q.mu.Unlock()
	if len(files) > 0 {
		s.namesChanged(q) // a process that was killed may have made them without flushing the folder
	}
	at := offset * queueUnit
	for _, start := range files {
		switch {
		case start+s.o.QueueSize <= at:
		case start >= at && start > 0:
			if err := s.removeQueueFile(q, start); err != nil {
				return err
			}
		default:
			f, err := s.files.get(s, q, start)
			if err != nil {
				return err
			}
			from := max(at-start, 0)
			err = f.f.Zero(from, s.o.QueueSize-from)
			f.done()
			if err != nil {
				return err
			}
			s.unsynced[queueFileKey{q, start}] = true
		}
	}
	// The beginning, too, was looked for among units of which some may be missing.
	lo := offset
	if len(files) > 0 {
		var err error
		if lo, err = s.firstUnit(q, min(files[0]/queueUnit, offset), offset, s.MinPhysical()); err != nil {
			return err
		}
	}
	q.mu.Lock()
	q.min = lo
	q.mu.Unlock()
	return nil
}

// restartQueue lets a queue begin at an offset: what is in its files before that stands for no message. Only opening
// calls it.
func (s *Store) restartQueue(q *queue, offset int64) error {
	if err := s.cutQueue(q, offset); err != nil {
		return err
	}
	if err := s.blankBefore(q, offset); err != nil {
		return err
	}
	q.mu.Lock()
	q.min = offset
	q.mu.Unlock()
	return nil
}

// blankBefore removes the files that end before an offset, and overwrites the units before it in the file that would hold
// it.
func (s *Store) blankBefore(q *queue, offset int64) error {
	at := offset * queueUnit
	for _, start := range slices.Clone(q.files) {
		if start+s.o.QueueSize <= at {
			if err := s.removeQueueFile(q, start); err != nil {
				return err
			}
			continue
		}
		if start >= at {
			break
		}
		f, err := s.files.get(s, q, start)
		if err != nil {
			return err
		}
		_, err = f.f.WriteAt(blankUnits(int((at-start)/queueUnit)), 0)
		f.done()
		if err != nil {
			return err
		}
		s.unsynced[queueFileKey{q, start}] = true
	}
	return nil
}

// blankUnits are n units that stand for no message.
func blankUnits(n int) []byte {
	b := make([]byte, 0, n*queueUnit)
	for range n {
		b = appendUnit(b, unit{size: preBlankSize})
	}
	return b
}

// fillQueue puts units that stand for no message up to an offset, so that what lies before a gap stays readable. A
// gap too wide for that makes the queue begin behind it. Only opening calls it.
func (s *Store) fillQueue(q *queue, offset int64) error {
	if offset-q.max > 1<<16 {
		return s.restartQueue(q, offset)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.max < offset {
		q.add(unit{size: preBlankSize})
		s.tailBytes.Add(queueUnit)
	}
	return nil
}

// removeQueueFile removes one file of a queue. The caller holds flushMu, or opens the store.
func (s *Store) removeQueueFile(q *queue, start int64) error {
	s.files.forget(queueFileKey{q, start})
	delete(s.unsynced, queueFileKey{q, start})
	if err := s.fs.Remove(s.queueFile(q, start)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	q.mu.Lock()
	if i, there := slices.BinarySearch(q.files, start); there {
		q.files = slices.Delete(slices.Clone(q.files), i, i+1)
	}
	q.mu.Unlock()
	s.namesChanged(q)
	return nil
}

// loadAllQueues loads every queue that has files.
func (s *Store) loadAllQueues() error {
	s.queueMu.RLock()
	topics := make([]string, 0, len(s.onDisk))
	for t := range s.onDisk {
		topics = append(topics, t)
	}
	s.queueMu.RUnlock()
	var errs []error
	for _, t := range topics {
		ids, err := s.fs.ReadDir(path.Join(s.queueRoot(), t))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, d := range ids {
			if id, err := strconv.ParseInt(d.Name(), 10, 32); err == nil {
				if _, err := s.queue(t, int32(id), false); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	return errors.Join(errs...)
}

// forgetQueues empties the table of queues, and what waits for their files. Only opening calls it.
func (s *Store) forgetQueues() {
	s.files.forgetAll()
	s.queues, s.dirty = make(map[queueKey]*queue), nil
	s.tailBytes.Store(0)
}

// allQueues returns the queues that were asked for or written to so far.
func (s *Store) allQueues() []*queue {
	s.queueMu.RLock()
	defer s.queueMu.RUnlock()
	list := make([]*queue, 0, len(s.queues))
	for _, q := range s.queues {
		if q.loaded.Load() {
			list = append(list, q)
		}
	}
	return list
}

// DeleteTopic removes all queues of a topic. Its records stay in the log until their files go. When it returns nil,
// a crash doesn't bring them back. The caller stops sends to the topic first; one that is under way may begin the
// topic anew.
func (s *Store) DeleteTopic(topic string) error {
	if err := checkQueueName(topic, 0); err != nil {
		return err
	}
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	s.mu.Lock()
	state := s.state
	s.mu.Unlock()
	if state != nil {
		return fmt.Errorf("delete topic %s: %w", topic, state)
	}
	var list []*queue
	s.queueMu.Lock()
	for key, q := range s.queues {
		if key.topic == topic {
			list = append(list, q)
			delete(s.queues, key)
		}
	}
	delete(s.onDisk, topic)
	s.queueMu.Unlock()

	s.mu.Lock()
	for _, q := range list {
		q.deleted = true
	}
	s.mu.Unlock()
	for _, q := range list {
		q.mu.Lock()
		s.tailBytes.Add(-int64(len(q.tail)))
		q.gone, q.tail, q.min = true, nil, q.max
		files := q.files
		q.files = nil
		q.mu.Unlock()
		for _, start := range files {
			s.files.forget(queueFileKey{q, start})
			delete(s.unsynced, queueFileKey{q, start})
		}
	}
	// Records on their way have places of the old queues: the checkpoint must lie behind them, or a recovery would
	// bring those back.
	if err := s.barrier(); err != nil {
		return fmt.Errorf("delete topic %s: %w", topic, err)
	}
	if err := s.fs.RemoveAll(path.Join(s.queueRoot(), topic)); err != nil {
		return fmt.Errorf("delete topic %s: %w", topic, err)
	}
	if err := s.fs.SyncDir(s.queueRoot()); err != nil {
		return fmt.Errorf("delete topic %s: %w", topic, err)
	}
	if err := s.checkpointLocked(); err != nil {
		return err
	}
	// Not before: a crash in between must find the topic deleted, or not.
	return s.noteDeletedLocked(topic, s.checkpointed.Load())
}
