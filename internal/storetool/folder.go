// Package storetool looks into a store's folder without opening the store: it checks every layer against every other,
// prints messages, tells sizes and ranges, and repairs what can be repaired. It reads stores of Java brokers as well, and
// those of a running broker of either make: reading changes nothing and takes no lock.
package storetool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"strconv"

	"github.com/apogeemq/apogee/internal/store"
	"github.com/apogeemq/apogee/internal/vfs"
)

// Options say where a store is, and what shapes its files. Sizes of 0 are found out from the files.
type Options struct {
	FS     vfs.FS // default the operating system's
	Dir    string // storePathRootDir
	LogDir string // storePathCommitLog; default Dir/commitlog

	SegmentSize int64 // mappedFileSizeCommitLog
	QueueSize   int64 // mappedFileSizeConsumeQueue
	IndexSlots  int   // maxHashSlotNum
	IndexSize   int   // maxIndexNum
}

// Folder is a store's folder as it was found. It isn't safe for concurrent use.
type Folder struct {
	o  Options
	fs vfs.FS

	Running bool // a broker has it open
	Clean   bool // the last broker stopped cleanly, or runs
	Own     *store.OwnCheckpoint
	ownBad  bool
	deleted map[string]int64

	segments []segment
	queues   []*queue        // by topic and id
	batch    map[string]bool // topics with batch consume queues, which are not looked at
	index    []*indexFile
	odd      []string        // files that don't belong where they are
	topics   map[string]bool // of topics.json; nil: none
}

// segment is one commit-log file.
type segment struct {
	name string
	base int64
	size int64 // what it has; what it should have is Options.SegmentSize
}

// queue is one consume queue's files.
type queue struct {
	topic  string
	id     int32
	dir    string
	starts []int64 // start offsets in bytes of the files, ascending
	bad    []segment
	lo, hi int64 // offsets of the first unit and behind the last one that is written

	window     []byte
	windowFrom int64 // offset of its first unit
}

type indexFile struct {
	name string
	size int64
	head store.IndexHead
}

// Open lists what is in the folder. A folder without a store is an error, and so is a store of a kind that isn't
// served.
func Open(o Options) (*Folder, error) {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.LogDir == "" {
		o.LogDir = path.Join(o.Dir, "commitlog")
	}
	d := &Folder{o: o, fs: o.FS}
	if info, err := o.FS.Stat(o.Dir); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s is no folder: give the store's folder (storePathRootDir)", o.Dir)
	}
	if err := store.CheckKind(o.FS, o.Dir, o.LogDir); err != nil {
		return nil, err
	}
	if _, err := o.FS.Stat(o.LogDir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s holds no store: there is no folder %s", o.Dir, o.LogDir)
	}
	var err error
	if d.Running, err = o.FS.Locked(path.Join(o.Dir, "lock")); err != nil {
		return nil, err
	}
	// What is derived is listed first and the log last: then, while a broker runs, what the one says is in the other.
	for _, step := range []func() error{d.readSmall, d.listQueues, d.listIndex, d.listSegments} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *Folder) path(name string) string { return path.Join(d.o.Dir, name) }

// rel is a file's name as it is shown: below the store's folder without it.
func (d *Folder) rel(name string) string {
	if rest := len(d.o.Dir) + 1; len(name) > rest && name[:rest] == d.o.Dir+"/" {
		return name[rest:]
	}
	return name
}

// read returns a small file, nil when there is none.
func (d *Folder) read(name string) ([]byte, error) {
	f, err := d.fs.OpenFile(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > 1<<30 {
		return nil, fmt.Errorf("%s has %d bytes, which is too much for such a file", name, size)
	}
	b := make([]byte, size)
	return b, readFull(f, b, 0)
}

func readFull(f vfs.File, b []byte, at int64) error {
	if len(b) == 0 {
		return nil
	}
	n, err := f.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (d *Folder) readSmall() error {
	_, err := d.fs.Stat(d.path("abort"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.Clean = err != nil || d.Running
	b, err := d.read(d.path(store.CheckpointName))
	if err != nil {
		return err
	}
	if b != nil {
		if c, ok := store.DecodeCheckpoint(b); ok {
			d.Own = &c
		} else {
			d.ownBad = true
		}
	}
	return d.readDeleted()
}

func (d *Folder) readDeleted() error {
	b, err := d.read(d.path(store.DeletedName))
	if err == nil && b != nil {
		d.deleted, _ = store.DecodeDeleted(b)
	}
	return err
}

// numbered lists a folder's files that are named for an offset.
func (d *Folder) numbered(dir string) ([]segment, error) {
	entries, err := d.fs.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []segment
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		base, err := strconv.ParseInt(e.Name(), 10, 64)
		if err != nil || len(e.Name()) != 20 || e.IsDir() {
			d.odd = append(d.odd, d.rel(name))
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		out = append(out, segment{name, base, info.Size()})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].base < out[j].base })
	return out, nil
}

// usual is the size that most of the files have.
func usual(files []segment) int64 {
	n := map[int64]int{}
	var best int64
	for _, f := range files {
		if n[f.size]++; f.size > 0 && (n[f.size] > n[best] || n[f.size] == n[best] && f.size > best) {
			best = f.size
		}
	}
	return best
}

func (d *Folder) listSegments() error {
	var err error
	if d.segments, err = d.numbered(d.o.LogDir); err != nil {
		return err
	}
	if n := len(d.segments); n > 0 && d.segments[n-1].size == 0 {
		d.segments = d.segments[:n-1] // its making was cut off; the next opening removes it
	}
	if d.o.SegmentSize == 0 {
		d.o.SegmentSize = usual(d.segments)
	}
	if d.o.SegmentSize == 0 {
		d.o.SegmentSize = 1 << 30
	}
	return nil
}

func (d *Folder) listQueues() error {
	root := d.path("consumequeue")
	topics, err := d.fs.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	batches, err := d.fs.ReadDir(d.path("batchconsumequeue"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.batch = map[string]bool{}
	for _, e := range batches {
		d.batch[e.Name()] = true
	}
	var all []segment
	files := map[*queue][]segment{}
	for _, t := range topics {
		if !t.IsDir() {
			d.odd = append(d.odd, d.rel(path.Join(root, t.Name())))
			continue
		}
		ids, err := d.fs.ReadDir(path.Join(root, t.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range ids {
			dir := path.Join(root, t.Name(), e.Name())
			id, err := strconv.ParseInt(e.Name(), 10, 32)
			if err != nil || !e.IsDir() {
				d.odd = append(d.odd, d.rel(dir))
				continue
			}
			q := &queue{topic: t.Name(), id: int32(id), dir: dir}
			if files[q], err = d.numbered(dir); err != nil {
				return err
			}
			all = append(all, files[q]...)
			d.queues = append(d.queues, q)
		}
	}
	if d.o.QueueSize == 0 {
		d.o.QueueSize = usual(all)
	}
	if d.o.QueueSize < store.UnitSize {
		d.o.QueueSize = 6_000_000
	}
	for _, q := range d.queues {
		if err := d.measure(q, files[q]); err != nil {
			return fmt.Errorf("%s: %w", d.rel(q.dir), err)
		}
	}
	return nil
}

// measure finds where a queue begins and ends: units are written one behind the other, and what isn't written is zero.
func (d *Folder) measure(q *queue, files []segment) error {
	for _, f := range files {
		switch {
		case f.size == 0:
		case f.size != d.o.QueueSize || f.base%d.o.QueueSize != 0 || d.o.QueueSize%store.UnitSize != 0:
			q.bad = append(q.bad, f)
		default:
			q.starts = append(q.starts, f.base)
		}
	}
	per := d.o.QueueSize / store.UnitSize
	if len(q.starts) == 0 {
		return nil
	}
	q.lo = q.starts[0] / store.UnitSize
	q.hi = q.lo
	for i := len(q.starts) - 1; i >= 0; i-- {
		first := q.starts[i] / store.UnitSize
		last := first - 1 // the last unit that is written, looked for from behind: a hole may lie before it
		for at := first + per - 1; at >= first; {
			u, ok, err := d.unit(q, at)
			if err != nil {
				return err
			}
			if !ok {
				break // deleted meanwhile
			}
			if !u.Empty() {
				last = at
				break
			}
			at = d.skipEmpty(q, at)
		}
		if last >= first {
			q.hi = last + 1
			return nil
		}
	}
	return nil
}

// skipEmpty returns the next offset below at, in its window or before it, that isn't zeros.
func (d *Folder) skipEmpty(q *queue, at int64) int64 {
	for at > q.windowFrom {
		at--
		b := q.window[(at-q.windowFrom)*store.UnitSize:]
		if !store.DecodeUnit(b).Empty() {
			return at
		}
	}
	return q.windowFrom - 1
}

// windowUnits is how many units of a queue are held in memory at once.
const windowUnits = 512

// unit returns the unit at an offset; ok is false when no file would hold it.
func (d *Folder) unit(q *queue, offset int64) (u store.Unit, ok bool, err error) {
	if n := int64(len(q.window)) / store.UnitSize; offset < q.windowFrom || offset >= q.windowFrom+n {
		per := d.o.QueueSize / store.UnitSize
		start := offset / per * d.o.QueueSize
		i := sort.Search(len(q.starts), func(i int) bool { return q.starts[i] >= start })
		if offset < 0 || i == len(q.starts) || q.starts[i] != start {
			return u, false, nil
		}
		in := offset - start/store.UnitSize
		from := in / windowUnits * windowUnits
		n := min(windowUnits, per-from)
		f, err := d.fs.OpenFile(path.Join(q.dir, fmt.Sprintf("%020d", start)), os.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			return u, false, nil // cleaned meanwhile
		}
		if err != nil {
			return u, false, err
		}
		if cap(q.window) < int(n*store.UnitSize) {
			q.window = make([]byte, windowUnits*store.UnitSize)
		}
		q.window, q.windowFrom = q.window[:n*store.UnitSize], start/store.UnitSize+from
		err = errors.Join(readFull(f, q.window, from*store.UnitSize), f.Close())
		if err != nil {
			q.window = q.window[:0]
			return u, false, err
		}
	}
	return store.DecodeUnit(q.window[(offset-q.windowFrom)*store.UnitSize:]), true, nil
}

// at names the place of a unit: its file and the byte in it.
func (d *Folder) at(q *queue, offset int64) (file string, position int64) {
	per := d.o.QueueSize / store.UnitSize
	start := offset / per * d.o.QueueSize
	return d.rel(path.Join(q.dir, fmt.Sprintf("%020d", start))), offset*store.UnitSize - start
}

func (d *Folder) queue(topic string, id int32) *queue {
	i := sort.Search(len(d.queues), func(i int) bool {
		q := d.queues[i]
		return q.topic > topic || q.topic == topic && q.id >= id
	})
	if i < len(d.queues) && d.queues[i].topic == topic && d.queues[i].id == id {
		return d.queues[i]
	}
	return nil
}

func (d *Folder) listIndex() error {
	sort.Slice(d.queues, func(i, j int) bool {
		a, b := d.queues[i], d.queues[j]
		return a.topic < b.topic || a.topic == b.topic && a.id < b.id
	})
	entries, err := d.fs.ReadDir(d.path("index"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var sizes []segment
	for _, e := range entries {
		name := path.Join(d.path("index"), e.Name())
		if !store.IsIndexName(e.Name()) || e.IsDir() {
			d.odd = append(d.odd, d.rel(name))
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Size() == 0 {
			continue
		}
		x := &indexFile{name: name, size: info.Size()}
		if x.size >= store.IndexHeaderSize {
			if x.head, err = d.indexHead(name); err != nil {
				return err
			}
		}
		sizes = append(sizes, segment{size: x.size})
		d.index = append(d.index, x)
	}
	if d.o.IndexSlots == 0 && d.o.IndexSize == 0 {
		// Java's defaults, or others in their ratio of four entries a slot.
		size := usual(sizes)
		if n := (size - store.IndexHeaderSize) / (store.IndexSlotSize + 4*store.IndexEntrySize); n > 0 && d.indexSize(int(n), int(4*n)) == size {
			d.o.IndexSlots, d.o.IndexSize = int(n), int(4*n)
		}
	}
	return nil
}

func (d *Folder) indexHead(name string) (store.IndexHead, error) {
	f, err := d.fs.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return store.IndexHead{}, err
	}
	b := make([]byte, store.IndexHeaderSize)
	if err := errors.Join(readFull(f, b, 0), f.Close()); err != nil {
		return store.IndexHead{}, fmt.Errorf("read %s: %w", name, err)
	}
	return store.DecodeIndexHead(b), nil
}

func (d *Folder) indexSize(slots, entries int) int64 {
	return store.IndexHeaderSize + int64(slots)*store.IndexSlotSize + int64(entries)*store.IndexEntrySize
}

// begin is where the log begins.
func (d *Folder) begin() int64 {
	if len(d.segments) == 0 {
		return 0
	}
	return d.segments[0].base
}
