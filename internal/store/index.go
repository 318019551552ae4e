package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path"
	"slices"
	"sort"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/vfs"
)

// An index file:
//
//	header (40): begin time (8) | end time (8) | begin physical (8) | end physical (8) | slots used (4) | next entry (4)
//	slots × 4:   number of the newest entry of the slot, 0 for none
//	entries × 20: key hash (4) | physical offset (8) | seconds since begin time (4) | previous entry of the slot (4)
//
// Entries are numbered from 1. Files are named for the time they were made, yyyyMMddHHmmssSSS in local time.
const (
	indexHeader  = 40
	indexEntry   = 20
	indexName    = "20060102150405.000" // without the point
	indexNameLen = 17
)

const (
	// flushKeys is how many keys may wait in memory before they are written ahead of time.
	flushKeys = 1 << 15
	// maxPendingKeys is how many may wait when they can't be written. What comes on top is not indexed by this
	// process; the checkpoint then stays where it is, so that the next opening does it.
	maxPendingKeys = 1 << 20
)

// index finds messages by key. New keys wait in memory; the store's background writes them with plain writes, many
// at once: nothing of it is on the way of an append, and a full disk is an error, not a fault of a mapped page.
//
// Its end in memory is ahead of the files' by what waits. After a crash the files are brought back to what the
// checkpoint knew (restore), and the log's tail is indexed again.
type index struct {
	fs          vfs.FS
	dir         string
	slots, size int
	log         *slog.Logger
	now         func() time.Time

	// writing is held by whoever changes files, slots or entries.
	writing sync.Mutex

	mu      sync.RWMutex
	files   []*indexFile
	pending []pendingKey // in the order of the log
	endTime int64        // of the newest key, waiting ones included
	endPhys int64
	lost    bool // maxPendingKeys was met
}

// pendingKey is a key that is in no file yet.
type pendingKey struct {
	hash           int32
	physical, time int64
}

// indexFile is an open index file with its header. The header changes under index.mu, after what it counts is in
// the file.
type indexFile struct {
	name string
	f    vfs.File
	h    indexHead
	// dirty: written since its last flush; guarded by index.writing.
	dirty bool
}

// indexHead is an index file's header.
type indexHead struct {
	beginTime, endTime int64 // ms
	beginPhys, endPhys int64
	used               int // slots
	next               int // number of the next entry
}

func (h indexHead) encode() []byte {
	be := binary.BigEndian
	b := make([]byte, 0, indexHeader)
	b = be.AppendUint64(b, uint64(h.beginTime))
	b = be.AppendUint64(b, uint64(h.endTime))
	b = be.AppendUint64(b, uint64(h.beginPhys))
	b = be.AppendUint64(b, uint64(h.endPhys))
	b = be.AppendUint32(b, uint32(h.used))
	return be.AppendUint32(b, uint32(h.next))
}

func decodeIndexHead(b []byte) indexHead {
	be := binary.BigEndian
	return indexHead{
		beginTime: int64(be.Uint64(b)), endTime: int64(be.Uint64(b[8:])),
		beginPhys: int64(be.Uint64(b[16:])), endPhys: int64(be.Uint64(b[24:])),
		used: int(int32(be.Uint32(b[32:]))), next: max(int(int32(be.Uint32(b[36:]))), 1),
	}
}

// indexRecord is one entry.
type indexRecord struct {
	hash     int32
	physical int64
	seconds  int32
	prev     int
}

func (e indexRecord) append(b []byte) []byte {
	be := binary.BigEndian
	b = be.AppendUint32(b, uint32(e.hash))
	b = be.AppendUint64(b, uint64(e.physical))
	b = be.AppendUint32(b, uint32(e.seconds))
	return be.AppendUint32(b, uint32(e.prev))
}

func decodeIndexRecord(b []byte) indexRecord {
	be := binary.BigEndian
	return indexRecord{int32(be.Uint32(b)), int64(be.Uint64(b[4:])), int32(be.Uint32(b[12:])), int(int32(be.Uint32(b[16:])))}
}

func (x *index) fileSize() int64        { return indexHeader + int64(x.slots)*4 + int64(x.size)*indexEntry }
func (x *index) slotAt(slot int) int64  { return indexHeader + int64(slot)*4 }
func (x *index) entryAt(n int) int64    { return indexHeader + int64(x.slots)*4 + int64(n)*indexEntry }
func (x *index) slotOf(hash int32) int  { return int(hash) % x.slots }
func (x *index) full(f *indexFile) bool { return f.h.next >= x.size }
func indexTime(name string) (int64, bool) {
	if len(name) != indexNameLen {
		return 0, false
	}
	t, err := time.ParseInLocation(indexName, name[:14]+"."+name[14:], time.Local)
	return t.UnixMilli(), err == nil
}

// indexHash is the hash of topic#key.
func indexHash(topic string, key []byte) int32 {
	h := 31*message.HashCode(topic) + '#'
	for _, c := range key {
		if c >= utf8.RuneSelf { // the hash is over UTF-16
			return message.IndexHash(topic + "#" + string(key))
		}
		h = 31*h + int32(c)
	}
	if h == math.MinInt32 {
		return 0
	}
	return max(h, -h)
}

func openIndex(s *Store) (*index, error) {
	x := &index{fs: s.fs, dir: path.Join(s.o.Dir, "index"), slots: s.o.IndexSlots, size: s.o.IndexSize, log: s.log, now: s.o.Now}
	entries, err := x.fs.ReadDir(x.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := path.Join(x.dir, e.Name())
		if _, ok := indexTime(e.Name()); !ok || e.IsDir() {
			s.log.Warn("index: a file that doesn't belong here was left alone", "file", e.Name())
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		if info.Size() == 0 { // its making was cut off
			if err := x.fs.Remove(name); err != nil {
				return nil, err
			}
			continue
		}
		if info.Size() != x.fileSize() {
			return nil, fmt.Errorf("index: %s has %d bytes, maxHashSlotNum %d and maxIndexNum %d make %d: set them to what this store was made with, or remove the folder's files", name, info.Size(), x.slots, x.size, x.fileSize())
		}
		f, err := x.fs.OpenFile(name, os.O_RDWR)
		if err != nil {
			return nil, err
		}
		var b [indexHeader]byte
		if err := readFull(f, b[:], 0); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		x.files = append(x.files, &indexFile{name: name, f: f, h: decodeIndexHead(b[:])})
	}
	sort.Slice(x.files, func(i, j int) bool { return x.files[i].name < x.files[j].name })
	x.takeEnd()
	return x, nil
}

// readFull reads all of b, whose range must lie in the file.
func readFull(f vfs.File, b []byte, at int64) error {
	n, err := f.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// takeEnd makes the files' end the index's. A file without entries has the end of the one before it; without such a
// one nothing is indexed, not even the record at 0.
func (x *index) takeEnd() {
	x.pending, x.endTime, x.endPhys = nil, 0, -1
	if n := len(x.files); n > 0 {
		if h := x.files[n-1].h; h.next > 1 || h.endPhys > 0 {
			x.endTime, x.endPhys = h.endTime, h.endPhys
		}
	}
}

// add takes the keys of a record: its unique key, then each word of KEYS. Records of rolled-back transactions have
// none, and neither has what is indexed already.
func (x *index) add(topic string, sysFlag message.SysFlag, props []byte, physical, storeTime int64) {
	if sysFlag.Transaction() == message.Rollback || len(props) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if physical <= x.endPhys {
		return
	}
	if indexKeys(sysFlag, props, func(key []byte) { x.addLocked(topic, key, physical, storeTime) }) {
		x.endTime, x.endPhys = storeTime, physical
	}
}

// indexKeys calls f for each key of a record: its unique key, then each word of KEYS. It reports whether the record has
// either property.
func indexKeys(sysFlag message.SysFlag, props []byte, f func(key []byte)) bool {
	if sysFlag.Transaction() == message.Rollback {
		return false
	}
	unique, _ := message.Property(props, message.PropertyUniqueKey)
	keys, _ := message.Property(props, message.PropertyKeys)
	has := len(unique) > 0 || len(keys) > 0
	if len(unique) > 0 {
		f(unique)
	}
	for len(keys) > 0 {
		word := keys
		if i := bytes.IndexByte(keys, ' '); i >= 0 {
			word, keys = keys[:i], keys[i+1:]
		} else {
			keys = nil
		}
		if len(word) > 0 {
			f(word)
		}
	}
	return has
}

func (x *index) addLocked(topic string, key []byte, physical, storeTime int64) {
	if len(x.pending) >= maxPendingKeys || x.lost {
		if !x.lost {
			x.log.Error("index: keys can't be written; from here on messages are not found by key until the broker is started again", "physicalOffset", physical)
		}
		x.lost = true
		return
	}
	x.pending = append(x.pending, pendingKey{indexHash(topic, key), physical, storeTime})
}

// behind reports whether so many keys wait that they should be written now.
func (x *index) behind() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.pending) >= flushKeys
}

// flush writes the keys that wait. What can't be written goes on waiting.
func (x *index) flush() error {
	x.writing.Lock()
	defer x.writing.Unlock()
	for {
		x.mu.RLock()
		keys := x.pending[:len(x.pending):len(x.pending)]
		x.mu.RUnlock()
		if len(keys) == 0 {
			return nil
		}
		f, err := x.current()
		if err != nil {
			return fmt.Errorf("index: %w", err)
		}
		keys = keys[:min(len(keys), x.size-f.h.next, flushKeys)]
		h, err := x.write(f, keys)
		if err != nil {
			return fmt.Errorf("index %s: %w", f.name, err)
		}
		x.mu.Lock()
		f.h = h
		if x.pending = x.pending[len(keys):]; len(x.pending) == 0 {
			x.pending = nil
		}
		x.mu.Unlock()
	}
}

// write puts keys behind f's entries: the entries, then the slots that lead to them, then the header, which it
// returns. A second try after a failure writes the same bytes.
func (x *index) write(f *indexFile, keys []pendingKey) (indexHead, error) {
	f.dirty = true
	h := f.h
	if h.next <= 1 {
		h.beginTime, h.beginPhys = keys[0].time, keys[0].physical
	}
	// By slot, and of one slot as they came: the slot in the high half, the place in keys in the low one.
	order := make([]uint64, len(keys))
	for i := range order {
		order[i] = uint64(x.slotOf(keys[i].hash))<<32 | uint64(i)
	}
	slices.Sort(order)
	prevs := make([]int, len(keys))
	var pages slotPages
	for i := 0; i < len(order); {
		slot := int(order[i] >> 32)
		prev, err := pages.get(x, f, slot)
		if err != nil {
			return h, err
		}
		if prev == 0 {
			h.used++
		}
		for ; i < len(order) && int(order[i]>>32) == slot; i++ {
			at := int(uint32(order[i]))
			prevs[at] = prev
			prev = h.next + at
		}
		pages.set(slot, prev)
	}
	entries := make([]byte, 0, len(keys)*indexEntry)
	for i, k := range keys {
		seconds := min(max((k.time-h.beginTime)/1000, 0), 1<<31-1)
		entries = indexRecord{k.hash, k.physical, int32(seconds), prevs[i]}.append(entries)
	}
	if _, err := f.f.WriteAt(entries, x.entryAt(h.next)); err != nil {
		return h, err
	}
	if err := pages.write(x, f); err != nil {
		return h, err
	}
	last := keys[len(keys)-1]
	h.next += len(keys)
	h.endTime, h.endPhys = last.time, last.physical
	_, err := f.f.WriteAt(h.encode(), 0)
	return h, err
}

// slotPages is the part of a file's slots that a write changes. Slots are asked for in ascending order.
type slotPages struct {
	list []slotPage
}

const slotsPerPage = 1024

type slotPage struct {
	first     int // slot
	b         []byte
	low, high int // slots that changed, high exclusive
}

// get returns the newest whole entry of a slot. A slot may lead to entries that a failed write left: they lead on.
func (p *slotPages) get(x *index, f *indexFile, slot int) (int, error) {
	first := slot - slot%slotsPerPage
	if n := len(p.list); n == 0 || p.list[n-1].first != first {
		b := make([]byte, 4*min(slotsPerPage, x.slots-first))
		if err := readFull(f.f, b, x.slotAt(first)); err != nil {
			return 0, err
		}
		p.list = append(p.list, slotPage{first: first, b: b, low: slot, high: slot + 1})
	}
	page := &p.list[len(p.list)-1]
	return x.whole(f, slot, int(int32(binary.BigEndian.Uint32(page.b[4*(slot-first):]))), f.h.next)
}

// set changes the slot that get was last called with.
func (p *slotPages) set(slot, entry int) {
	page := &p.list[len(p.list)-1]
	binary.BigEndian.PutUint32(page.b[4*(slot-page.first):], uint32(entry))
	page.high = slot + 1
}

func (p *slotPages) write(x *index, f *indexFile) error {
	for _, page := range p.list {
		b := page.b[4*(page.low-page.first) : 4*(page.high-page.first)]
		if _, err := f.f.WriteAt(b, x.slotAt(page.low)); err != nil {
			return err
		}
	}
	return nil
}

// whole follows a slot's chain from entry n to the first one below next; 0 when the chain ends or makes no sense.
func (x *index) whole(f *indexFile, slot, n, next int) (int, error) {
	for n >= next {
		e, err := x.entry(f, n)
		if err != nil {
			return 0, err
		}
		if e.hash < 0 || x.slotOf(e.hash) != slot || e.prev >= n {
			return 0, nil
		}
		n = e.prev
	}
	return max(n, 0), nil
}

func (x *index) entry(f *indexFile, n int) (indexRecord, error) {
	if n <= 0 || n >= x.size {
		return indexRecord{hash: -1}, nil
	}
	var b [indexEntry]byte
	if err := readFull(f.f, b[:], x.entryAt(n)); err != nil {
		return indexRecord{}, err
	}
	return decodeIndexRecord(b[:]), nil
}

// current returns the file that the next key goes to, making one when there is none or the last is full. The caller holds
// writing.
func (x *index) current() (*indexFile, error) {
	at, h := x.now().UnixMilli(), indexHead{next: 1}
	if n := len(x.files); n > 0 {
		last := x.files[n-1]
		if !x.full(last) {
			return last, nil
		}
		// Names order the files, whatever the clock does.
		if t, ok := indexTime(path.Base(last.name)); ok {
			at = max(at, t+1)
		}
		h = indexHead{beginTime: last.h.endTime, endTime: last.h.endTime, beginPhys: last.h.endPhys, endPhys: last.h.endPhys, next: 1}
	}
	var b [20]byte
	stamp := time.UnixMilli(at).AppendFormat(b[:0], indexName)
	name := path.Join(x.dir, string(stamp[:14])+string(stamp[15:]))
	f, err := x.fs.OpenFile(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	err = f.Truncate(x.fileSize())
	if err == nil {
		_, err = f.WriteAt(h.encode(), 0)
	}
	if err := errors.Join(err, f.Sync(), x.fs.SyncDir(x.dir)); err != nil {
		return nil, errors.Join(err, f.Close(), x.fs.Remove(name))
	}
	file := &indexFile{name: name, f: f, h: h}
	x.mu.Lock()
	x.files = append(x.files, file)
	x.mu.Unlock()
	return file, nil
}

// sync makes the files durable.
func (x *index) sync() error {
	x.writing.Lock()
	defer x.writing.Unlock()
	for _, f := range x.files {
		if !f.dirty {
			continue
		}
		if err := f.f.Datasync(); err != nil {
			return fmt.Errorf("index %s: %w", f.name, err)
		}
		f.dirty = false
	}
	return nil
}

// indexEnd is where the index files end: what a checkpoint notes of them.
type indexEnd struct {
	file     string // "" for none
	next     int
	time     int64
	physical int64
}

// end returns the files' end, or an error when keys that came before it are in no file.
func (x *index) end() (indexEnd, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.lost {
		return indexEnd{}, errors.New("index: keys were left out; the checkpoint stays where it is until the broker is started again")
	}
	if n := len(x.files); n > 0 {
		f := x.files[n-1]
		return indexEnd{path.Base(f.name), f.h.next, f.h.endTime, f.h.endPhys}, nil
	}
	return indexEnd{physical: -1}, nil
}

// restore brings the files back to a checkpoint's end after a crash: newer files go, and slots that lead beyond the
// end lead to the newest entry before it again. What lies beyond the end may be missing in part, down to the last
// field of an entry, so nothing there is followed: the slots are looked for in the entries before it, from the end
// backwards. That reads one file at most.
//
// It reports false when the files are not what the checkpoint knew: the index must be built from the log.
func (x *index) restore(e indexEnd) (ok bool, err error) {
	for n := len(x.files); n > 0 && path.Base(x.files[n-1].name) > e.file; n = len(x.files) {
		if err := x.drop(n - 1); err != nil {
			return false, err
		}
	}
	n := len(x.files)
	if e.file == "" {
		x.takeEnd()
		return true, nil
	}
	if n == 0 || path.Base(x.files[n-1].name) != e.file || e.next < 1 || e.next > x.size {
		return false, nil
	}
	f := x.files[n-1]
	f.h.next, f.h.endTime, f.h.endPhys = e.next, e.time, e.physical
	if err := x.restoreSlots(f); err != nil {
		return false, fmt.Errorf("index %s: %w", f.name, err)
	}
	if _, err := f.f.WriteAt(f.h.encode(), 0); err != nil {
		return false, err
	}
	f.dirty = true
	x.takeEnd()
	return true, nil
}

func (x *index) restoreSlots(f *indexFile) error {
	lost := make([]bool, x.slots)
	n, used := 0, 0
	buf := make([]byte, 4*min(x.slots, 1<<16))
	for first := 0; first < x.slots; first += len(buf) / 4 {
		b := buf[:4*min(len(buf)/4, x.slots-first)]
		if err := readFull(f.f, b, x.slotAt(first)); err != nil {
			return err
		}
		for i := 0; i < len(b); i += 4 {
			entry := int(int32(binary.BigEndian.Uint32(b[i:])))
			if entry < 0 || entry >= f.h.next {
				lost[first+i/4] = true
				n++
			} else if entry > 0 {
				used++
			}
		}
	}
	found, err := x.findEntries(f, lost, n)
	if err != nil {
		return err
	}
	f.h.used = used + found
	return nil
}

// findEntries sets each lost slot to its newest entry, to 0 where it has none, and returns how many have one.
func (x *index) findEntries(f *indexFile, lost []bool, n int) (found int, err error) {
	const step = 1 << 14
	buf := make([]byte, step*indexEntry)
	set := func(slot, entry int) error {
		lost[slot] = false
		n--
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(entry))
		_, err := f.f.WriteAt(b[:], x.slotAt(slot))
		return err
	}
	for hi := f.h.next; hi > 1 && n > 0; {
		lo := max(hi-step, 1)
		b := buf[:(hi-lo)*indexEntry]
		if err := readFull(f.f, b, x.entryAt(lo)); err != nil {
			return 0, err
		}
		for i := hi - 1; i >= lo && n > 0; i-- {
			hash := int32(binary.BigEndian.Uint32(b[(i-lo)*indexEntry:]))
			if hash < 0 {
				continue
			}
			if slot := x.slotOf(hash); lost[slot] {
				found++
				if err := set(slot, i); err != nil {
					return 0, err
				}
			}
		}
		hi = lo
	}
	for slot := range lost {
		if lost[slot] {
			if err := set(slot, 0); err != nil {
				return 0, err
			}
		}
	}
	return found, nil
}

// drop removes the i-th file. The caller holds writing and mu, or opens the store.
func (x *index) drop(i int) error {
	f := x.files[i]
	x.files = append(x.files[:i], x.files[i+1:]...)
	return errors.Join(f.f.Close(), x.fs.Remove(f.name), x.fs.SyncDir(x.dir))
}

// dropAfter removes the files that are not full or end after ms: a crash of a Java broker may have left them half
// written.
func (x *index) dropAfter(ms int64) error {
	for n := len(x.files); n > 0 && (x.files[n-1].h.endTime > ms || !x.full(x.files[n-1])); n = len(x.files) {
		if err := x.drop(n - 1); err != nil {
			return err
		}
	}
	x.takeEnd()
	return nil
}

// dropAll removes all files.
func (x *index) dropAll() error {
	for len(x.files) > 0 {
		if err := x.drop(len(x.files) - 1); err != nil {
			return err
		}
	}
	x.takeEnd()
	return nil
}

// clean removes files whose records are all gone from the log; the last file stays.
func (x *index) clean(minPhysical int64) error {
	x.writing.Lock()
	defer x.writing.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.files) > 1 && x.files[0].h.endPhys < minPhysical {
		if err := x.drop(0); err != nil {
			return err
		}
	}
	return nil
}

func (x *index) close() {
	x.writing.Lock()
	defer x.writing.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.files {
		_ = f.f.Close()
	}
	x.files = nil
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

// Query returns messages of a topic by key in the order of the log, the newest maxNum of those stored between begin
// and end (ms). Only the key's hash is compared: the caller compares the key itself where it matters.
func (s *Store) Query(topic, key string, maxNum int, begin, end int64) (QueryResult, error) {
	var r QueryResult
	if s.index == nil {
		return r, nil
	}
	at, lastTime, lastPhysical, err := s.index.find(indexHash(topic, []byte(key)), min(max(maxNum, 1), maxQuery), begin, end)
	if err != nil {
		return r, fmt.Errorf("query %s by key: %w", topic, err)
	}
	r.LastTimestamp, r.LastPhysicalOffset = lastTime, lastPhysical
	sort.Slice(at, func(i, j int) bool { return at[i] < at[j] })
	for _, physical := range at {
		rec, g, err := s.record(physical)
		if err != nil {
			continue // its file is gone, or it isn't readable yet
		}
		r.segments = append(r.segments, g)
		r.Records = append(r.Records, rec)
	}
	return r, nil
}

func (x *index) find(hash int32, maxNum int, begin, end int64) (found []int64, lastTime, lastPhysical int64, err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	seen := map[int64]bool{}
	take := func(physical int64) {
		if !seen[physical] {
			seen[physical] = true
			found = append(found, physical)
		}
	}
	for i := len(x.pending) - 1; i >= 0 && len(found) < maxNum; i-- {
		if k := x.pending[i]; k.hash == hash && k.time >= begin && k.time <= end {
			take(k.physical)
		}
	}
	slot := x.slotOf(hash)
	for i := len(x.files) - 1; i >= 0 && len(found) < maxNum; i-- {
		f := x.files[i]
		if f.h.next <= 1 || f.h.beginTime > end {
			continue
		}
		if f.h.endTime < begin {
			break
		}
		var b [4]byte
		if err := readFull(f.f, b[:], x.slotAt(slot)); err != nil {
			return nil, 0, 0, err
		}
		n, err := x.whole(f, slot, int(int32(binary.BigEndian.Uint32(b[:]))), f.h.next)
		for err == nil && n > 0 && len(found) < maxNum {
			var e indexRecord
			if e, err = x.entry(f, n); err != nil {
				break
			}
			// The entry's time has whole seconds: a second of slack on both sides.
			if t := f.h.beginTime + int64(e.seconds)*1000; e.hash == hash && t+1000 > begin && t <= end {
				take(e.physical)
			}
			if e.prev >= n {
				break // entries lead to older ones only
			}
			n = e.prev
		}
		if err != nil {
			return nil, 0, 0, err
		}
		if f.h.beginTime < begin {
			break
		}
	}
	return found, x.endTime, max(x.endPhys, 0), nil
}
