package storetool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/store"
	"github.com/apogeemq/apogee/internal/vfs"
)

// indexCheck goes over the index's entries beside the log's records: both are in the order of the log.
type indexCheck struct {
	files  []*indexFile
	i      int // file at hand
	f      vfs.File
	n      int     // entry at hand
	newest []int32 // of each slot, as the entries say
	buf    []byte
	from   int // entry that buf begins with
	off    bool

	last    int64 // physical offset of the entry before
	hashes  []int32
	got     []int32
	unknown int64 // records without entries, outside of all files
	inside  int64 // inside of one
	first   int64
	found   int
}

// entriesPerRead is how many entries are read at once.
const entriesPerRead = 1 << 14

func (x *indexCheck) begin(c *checker) error {
	d := c.d
	x.last = -1
	if len(d.index) == 0 {
		x.off = true
		return nil
	}
	if d.o.IndexSlots == 0 {
		x.off = true
		c.note("index files were not looked at: %d bytes fit no ratio of slots and entries that is known; give the broker's file (--config)", d.index[0].size)
		return nil
	}
	for _, f := range d.index {
		if f.size != d.indexSize(d.o.IndexSlots, d.o.IndexSize) {
			continue // said already
		}
		if f.head.Next > d.o.IndexSize || f.head.SlotsUsed > d.o.IndexSlots {
			c.r.index = true
			c.find(d.rel(f.name), 32, repairRemedy, "its header says %d entries and %d slots, it has room for %d and %d", f.head.Next, f.head.SlotsUsed, d.o.IndexSize, d.o.IndexSlots)
			continue
		}
		x.files = append(x.files, f)
	}
	return x.openFile(c)
}

func (x *indexCheck) openFile(c *checker) error {
	if x.i >= len(x.files) {
		return nil
	}
	f, err := c.d.fs.OpenFile(x.files[x.i].name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) && c.d.Running { // deleted meanwhile
		x.i++
		return x.openFile(c)
	}
	if err != nil {
		return err
	}
	x.f, x.n, x.buf = f, 1, x.buf[:0]
	x.newest = make([]int32, c.d.o.IndexSlots)
	return nil
}

func (x *indexCheck) close() {
	if x.f != nil {
		_ = x.f.Close()
		x.f = nil
	}
}

// peek returns the entry at hand; ok is false behind the last.
func (x *indexCheck) peek(c *checker) (e store.IndexEntry, ok bool, err error) {
	for x.i < len(x.files) && x.n >= x.files[x.i].head.Next {
		if err := x.slots(c); err != nil {
			return e, false, err
		}
		x.close()
		x.i++
		if err := x.openFile(c); err != nil {
			return e, false, err
		}
	}
	if x.i >= len(x.files) {
		return e, false, nil
	}
	if at := x.n - x.from; len(x.buf) == 0 || at*store.IndexEntrySize >= len(x.buf) {
		n := min(entriesPerRead, x.files[x.i].head.Next-x.n)
		if cap(x.buf) < n*store.IndexEntrySize {
			x.buf = make([]byte, n*store.IndexEntrySize)
		}
		x.buf, x.from = x.buf[:n*store.IndexEntrySize], x.n
		if err := readFull(x.f, x.buf, x.place(c, x.n)); err != nil {
			return e, false, fmt.Errorf("%s: %w", c.d.rel(x.files[x.i].name), err)
		}
	}
	return store.DecodeIndexEntry(x.buf[(x.n-x.from)*store.IndexEntrySize:]), true, nil
}

func (x *indexCheck) place(c *checker, n int) int64 {
	return store.IndexHeaderSize + int64(c.d.o.IndexSlots)*store.IndexSlotSize + int64(n)*store.IndexEntrySize
}

// take goes behind the entry at hand, looking at its chain.
func (x *indexCheck) take(c *checker, e store.IndexEntry) {
	c.r.Keys++
	switch {
	case e.Hash < 0:
		x.bad(c, "entry %d has hash %d, which no key has", x.n, e.Hash)
	case e.Physical < x.last:
		x.bad(c, "entry %d leads to %d, behind the one before it", x.n, e.Physical)
	default:
		slot := int(e.Hash) % c.d.o.IndexSlots
		if int(x.newest[slot]) != e.Prev {
			x.bad(c, "entry %d names %d as the one before it in slot %d, that is %d", x.n, e.Prev, slot, x.newest[slot])
		}
		x.newest[slot] = int32(x.n)
		x.last = e.Physical
	}
	x.n++
}

func (x *indexCheck) bad(c *checker, format string, args ...any) {
	c.r.index = true
	if x.found++; x.found <= maxPerQueue {
		c.find(c.d.rel(x.files[x.i].name), x.place(c, x.n), repairRemedy, format, args...)
	}
}

// slots compares a file's slots with what its entries say. Slots may lead beyond the header's end: to entries that a
// crash left there.
func (x *indexCheck) slots(c *checker) error {
	f := x.files[x.i]
	if len(x.newest) == 0 {
		return nil
	}
	b := make([]byte, store.IndexSlotSize*min(len(x.newest), 1<<16))
	for first := 0; first < len(x.newest); first += len(b) / store.IndexSlotSize {
		n := min(len(b)/store.IndexSlotSize, len(x.newest)-first)
		if err := readFull(x.f, b[:n*store.IndexSlotSize], store.IndexHeaderSize+int64(first)*store.IndexSlotSize); err != nil {
			return fmt.Errorf("%s: %w", c.d.rel(f.name), err)
		}
		for i := range n {
			v := slotValue(b[i*store.IndexSlotSize:])
			if v == x.newest[first+i] || (c.d.Running || !c.d.Clean) && int(v) >= f.head.Next {
				continue
			}
			c.r.index = true
			if x.found++; x.found <= maxPerQueue {
				c.find(c.d.rel(f.name), store.IndexHeaderSize+int64(first+i)*store.IndexSlotSize, repairRemedy, "slot %d leads to entry %d, its newest is %d", first+i, v, x.newest[first+i])
			}
		}
	}
	return nil
}

func slotValue(b []byte) int32 {
	return int32(uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]))
}

// record compares one record's keys with the entries that lead to it.
func (x *indexCheck) record(c *checker, m *message.Message) error {
	if x.off {
		return nil
	}
	x.hashes = store.IndexHashes(x.hashes[:0], m)
	x.got = x.got[:0]
	for {
		e, ok, err := x.peek(c)
		if err != nil {
			return err
		}
		if !ok || e.Physical > m.PhysicalOffset {
			break
		}
		if e.Physical == m.PhysicalOffset {
			x.got = append(x.got, e.Hash)
			if !slices.Contains(x.hashes, e.Hash) {
				x.bad(c, "entry %d has hash %d, the record at %d has no key with that", x.n, e.Hash, e.Physical)
			}
		} else if e.Physical >= c.r.Begin && !c.inHoles(e.Physical) {
			x.bad(c, "entry %d leads to %d, where no record begins", x.n, e.Physical)
		}
		x.take(c, e)
	}
	for _, h := range x.hashes {
		if slices.Contains(x.got, h) {
			continue
		}
		if x.unknown++; x.unknown == 1 {
			x.first = m.PhysicalOffset
		}
		if x.covers(m.PhysicalOffset) {
			x.inside++
			c.r.index = true
			if x.inside <= maxPerQueue && x.i < len(x.files) {
				c.find(c.d.rel(x.files[x.i].name), -1, repairRemedy, "no entry leads to the record at %d for one of its keys", m.PhysicalOffset)
			}
		}
		break
	}
	return nil
}

func (c *checker) inHoles(at int64) bool { return c.r.inHoles(at) }

// inHoles reports whether a place of the log lies in a hole that was found.
func (r *Report) inHoles(at int64) bool {
	for _, h := range r.holes {
		if at >= h.from && at < h.to {
			return true
		}
	}
	return false
}

// covers reports whether a place of the log lies inside what the file at hand, or the one before, says it holds.
func (x *indexCheck) covers(at int64) bool {
	for _, f := range x.files {
		if f.head.Next > 1 && at >= f.head.BeginPhysical && at <= f.head.EndPhysical {
			return true
		}
	}
	return false
}

// finish looks at what is behind the log's last record.
func (x *indexCheck) finish(c *checker) error {
	if x.off {
		return nil
	}
	for {
		e, ok, err := x.peek(c)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if e.Physical >= c.r.Begin && c.d.Clean && !c.inHoles(e.Physical) {
			x.bad(c, "entry %d leads to %d, the log ends at %d", x.n, e.Physical, c.r.End)
		}
		x.take(c, e)
	}
	if x.found > maxPerQueue {
		c.find("index", -1, repairRemedy, "%d more of its entries are bad", x.found-maxPerQueue)
	}
	if outside := x.unknown - x.inside; outside > 0 && !c.d.Running && c.d.Clean {
		c.note("%d messages, the first at %d, are in no index file: they are not found by key. A crash of a Java broker leaves that; `apogee store repair --index` builds the index anew", outside, x.first)
	}
	return nil
}
