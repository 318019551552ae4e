package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/vfs"
)

// An index file:
//
//	header (40): begin time (8) | end time (8) | begin physical (8) | end physical (8) | slot count (4) | entry count (4)
//	slots × 4:   number of the newest entry of the slot, 0 for none
//	entries × 20: key hash (4) | physical offset (8) | seconds since begin time (4) | previous entry of the slot (4)
//
// Entries are numbered from 1; the count in the header is the next number. Files are named for the time they were
// made, yyyyMMddHHmmssSSS in local time.
const (
	indexHeader = 40
	indexEntry  = 20
)

type index struct {
	fs           vfs.FS
	dir          string
	slots, size  int
	log          *slog.Logger
	now          func() time.Time
	mu           sync.RWMutex
	files        []*indexFile
	broken       bool // a file couldn't be made: keys are not indexed until the next one can
	lastComplain time.Time
}

type indexFile struct {
	name  string
	f     vfs.File
	m     vfs.Mapping
	b     []byte
	dirty bool
}

func (f *indexFile) begin() int64        { return int64(binary.BigEndian.Uint64(f.b)) }
func (f *indexFile) endTime() int64      { return int64(binary.BigEndian.Uint64(f.b[8:])) }
func (f *indexFile) beginPhys() int64    { return int64(binary.BigEndian.Uint64(f.b[16:])) }
func (f *indexFile) endPhys() int64      { return int64(binary.BigEndian.Uint64(f.b[24:])) }
func (f *indexFile) count() int          { return int(binary.BigEndian.Uint32(f.b[36:])) }
func (f *indexFile) set(at int, v int64) { binary.BigEndian.PutUint64(f.b[at:], uint64(v)) }
func (f *indexFile) set4(at int, v int)  { binary.BigEndian.PutUint32(f.b[at:], uint32(v)) }
func (f *indexFile) get4(at int) int     { return int(int32(binary.BigEndian.Uint32(f.b[at:]))) }

func (x *index) fileSize() int64   { return indexHeader + int64(x.slots)*4 + int64(x.size)*indexEntry }
func (x *index) entryAt(n int) int { return indexHeader + x.slots*4 + n*indexEntry }

func openIndex(s *Store) (*index, error) {
	x := &index{fs: s.fs, dir: path.Join(s.o.Dir, "index"), slots: s.o.IndexSlots, size: s.o.IndexSize, log: s.log, now: s.o.Now}
	entries, err := x.fs.ReadDir(x.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := path.Join(x.dir, e.Name())
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		if info.Size() != x.fileSize() {
			return nil, fmt.Errorf("index: %s has %d bytes, maxHashSlotNum %d and maxIndexNum %d make %d: set them to what this store was made with", name, info.Size(), x.slots, x.size, x.fileSize())
		}
		f, err := x.open(name, 0)
		if err != nil {
			return nil, err
		}
		x.files = append(x.files, f)
	}
	sort.Slice(x.files, func(i, j int) bool { return x.files[i].name < x.files[j].name })
	return x, nil
}

func (x *index) open(name string, flag int) (*indexFile, error) {
	f, err := x.fs.OpenFile(name, os.O_RDWR|flag)
	if err != nil {
		return nil, err
	}
	if flag&os.O_CREATE != 0 {
		if err := errors.Join(f.Truncate(x.fileSize()), x.fs.SyncDir(x.dir)); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	m, err := f.Map(x.fileSize(), true)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &indexFile{name: name, f: f, m: m, b: m.Bytes()}, nil
}

// add puts the record's keys into the index: its unique key, then each word of KEYS. Records of rolled-back
// transactions have none.
func (x *index) add(rec []byte, physical, storeTime int64) {
	h, err := message.DecodeHeader(rec)
	if err != nil || h.SysFlag.Transaction() == message.Rollback {
		return
	}
	props := message.RecordProperties(rec)
	unique, hasUnique := message.Property(props, message.PropertyUniqueKey)
	keys, hasKeys := message.Property(props, message.PropertyKeys)
	if !hasUnique && !hasKeys {
		return
	}
	topic := recordTopic(rec)
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(x.files); n > 0 && physical < x.files[n-1].endPhys() {
		return // indexed before
	}
	if hasUnique {
		x.put(topic, unique, physical, storeTime)
	}
	for len(keys) > 0 {
		var word []byte
		if i := indexByte(keys, ' '); i >= 0 {
			word, keys = keys[:i], keys[i+1:]
		} else {
			word, keys = keys, nil
		}
		if len(word) > 0 {
			x.put(topic, word, physical, storeTime)
		}
	}
}

func indexByte(b []byte, c byte) int {
	for i := range b {
		if b[i] == c {
			return i
		}
	}
	return -1
}

func recordTopic(rec []byte) string {
	var m message.Message
	if _, err := message.DecodeRecord(rec, &m, false); err != nil {
		return ""
	}
	return m.Topic
}

func (x *index) put(topic string, key []byte, physical, storeTime int64) {
	f, err := x.current(physical, storeTime)
	if err != nil {
		if now := x.now(); now.Sub(x.lastComplain) > time.Minute {
			x.lastComplain = now
			x.log.Error("index: no file can be made, messages are not found by key until one can", "error", err)
		}
		return
	}
	hash := message.IndexHash(topic + "#" + string(key))
	slot := indexHeader + int(hash)%x.slots*4
	n := f.count()
	prev := f.get4(slot)
	if prev < 0 || prev >= n {
		prev = 0
	}
	if n <= 1 {
		f.set(0, storeTime)
		f.set(16, physical)
	}
	seconds := min(max((storeTime-f.begin())/1000, 0), 1<<31-1)
	at := x.entryAt(n)
	f.set4(at, int(hash))
	f.set(at+4, physical)
	f.set4(at+12, int(seconds))
	f.set4(at+16, prev)
	f.set4(slot, n)
	if prev == 0 {
		f.set4(32, f.get4(32)+1)
	}
	f.set4(36, n+1)
	f.set(8, storeTime)
	f.set(24, physical)
	f.dirty = true
}

// current returns the file to write to, making one when there is none or the last is full.
func (x *index) current(physical, storeTime int64) (*indexFile, error) {
	if n := len(x.files); n > 0 && x.files[n-1].count() < x.size {
		return x.files[n-1], nil
	}
	name := path.Join(x.dir, strings.Replace(x.now().Format("20060102150405.000"), ".", "", 1))
	if n := len(x.files); n > 0 && name <= x.files[n-1].name {
		return nil, fmt.Errorf("the clock went back: %s would not be the newest file", name)
	}
	f, err := x.open(name, os.O_CREATE)
	if err != nil {
		return nil, err
	}
	f.set(0, storeTime)
	f.set(8, storeTime)
	f.set(16, physical)
	f.set(24, physical)
	f.set4(36, 1)
	x.files = append(x.files, f)
	return f, nil
}

// QueryResult is what a Query found.
type QueryResult struct {
	Records            [][]byte // views of the log, valid until Release
	LastTimestamp      int64    // ms: up to where the index reaches
	LastPhysicalOffset int64
	segments           []*segment
}

// Release lets go of the records.
func (r *QueryResult) Release() {
	for _, g := range r.segments {
		g.unref()
	}
	r.segments, r.Records = nil, nil
}

// maxQuery is the most messages one query returns (Java's maxMsgsNumBatch).
const maxQuery = 64

// Query returns messages of a topic by key, newest first, stored between begin and end (ms). Only the key's hash
// is compared: the caller compares the key itself where it matters.
func (s *Store) Query(topic, key string, maxNum int, begin, end int64) (QueryResult, error) {
	var r QueryResult
	if s.index == nil {
		return r, nil
	}
	var at []int64
	at, r.LastTimestamp, r.LastPhysicalOffset = s.index.find(topic, key, min(max(maxNum, 1), maxQuery), begin, end)
	sort.Slice(at, func(i, j int) bool { return at[i] < at[j] })
	for _, physical := range at {
		rec, release, err := s.Record(physical)
		if err != nil {
			continue // its file is gone
		}
		g := s.segmentAt(physical)
		release()
		if g == nil {
			continue
		}
		r.segments = append(r.segments, g)
		r.Records = append(r.Records, rec)
	}
	return r, nil
}

func (x *index) find(topic, key string, maxNum int, begin, end int64) (found []int64, lastTime, lastPhysical int64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	hash := message.IndexHash(topic + "#" + key)
	seen := map[int64]bool{}
	for i := len(x.files) - 1; i >= 0 && len(found) < maxNum; i-- {
		f := x.files[i]
		if i == len(x.files)-1 {
			lastTime, lastPhysical = f.endTime(), f.endPhys()
		}
		if f.count() <= 1 || f.begin() > end || f.endTime() < begin {
			if f.begin() < begin && f.count() > 1 {
				break
			}
			continue
		}
		n := f.get4(indexHeader + int(hash)%x.slots*4)
		for steps := 0; n > 0 && n < f.count() && len(found) < maxNum && steps < f.count(); steps++ {
			at := x.entryAt(n)
			t := f.begin() + int64(f.get4(at+12))*1000
			physical := int64(binary.BigEndian.Uint64(f.b[at+4:]))
			// The entry's time has whole seconds: a second of slack on both sides.
			if int32(f.get4(at)) == hash && t+1000 > begin && t <= end && !seen[physical] {
				seen[physical] = true
				found = append(found, physical)
			}
			prev := f.get4(at + 16)
			if prev >= n {
				break // entries point to older ones only
			}
			n = prev
		}
	}
	return found, lastTime, lastPhysical
}

func (x *index) sync() error {
	x.mu.RLock()
	files := append([]*indexFile(nil), x.files...)
	x.mu.RUnlock()
	for _, f := range files {
		x.mu.Lock()
		dirty := f.dirty
		f.dirty = false
		x.mu.Unlock()
		if !dirty {
			continue
		}
		if err := f.m.Sync(); err != nil {
			return fmt.Errorf("index %s: %w", f.name, err)
		}
	}
	return nil
}

// end returns what the last file's header says, for the checkpoint.
func (x *index) end() (name string, count int, endTime, endPhysical int64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if n := len(x.files); n > 0 {
		f := x.files[n-1]
		return path.Base(f.name), f.count(), f.endTime(), f.endPhys()
	}
	return "", 0, 0, 0
}

// restore brings the index back to what a checkpoint knew to be durable: files made since go, and the slots of
// the last one are built again from its entries.
func (x *index) restore(name string, count int, endTime, endPhysical int64) error {
	for n := len(x.files); n > 0 && path.Base(x.files[n-1].name) > name; n = len(x.files) {
		if err := x.drop(n - 1); err != nil {
			return err
		}
	}
	n := len(x.files)
	if n == 0 || path.Base(x.files[n-1].name) != name || count < 1 || count > x.size {
		return nil
	}
	f := x.files[n-1]
	clear(f.b[indexHeader : indexHeader+x.slots*4])
	used := 0
	for i := 1; i < count; i++ {
		at := x.entryAt(i)
		slot := indexHeader + f.get4(at)%x.slots*4
		if f.get4(at) < 0 {
			continue
		}
		prev := f.get4(slot)
		if prev == 0 {
			used++
		}
		f.set4(at+16, prev)
		f.set4(slot, i)
	}
	f.set(8, endTime)
	f.set(24, endPhysical)
	f.set4(32, used)
	f.set4(36, count)
	f.dirty = true
	return nil
}

func (x *index) drop(i int) error {
	f := x.files[i]
	x.files = append(x.files[:i], x.files[i+1:]...)
	return errors.Join(f.m.Close(), f.f.Close(), x.fs.Remove(f.name))
}

// dropAfter removes the files whose end time is behind ms: a crash may have left them half written.
func (x *index) dropAfter(ms int64) error {
	for n := len(x.files); n > 0 && x.files[n-1].endTime() > ms; n = len(x.files) {
		if err := x.drop(n - 1); err != nil {
			return err
		}
	}
	return nil
}

// clean removes files whose records are all gone from the log; the last file stays.
func (x *index) clean(minPhysical int64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.files) > 1 && x.files[0].endPhys() < minPhysical {
		if err := x.drop(0); err != nil {
			return err
		}
	}
	return nil
}

func (x *index) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.files {
		_ = f.m.Close()
		_ = f.f.Close()
	}
	x.files = nil
}
