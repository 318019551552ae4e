package storetool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/store"
	"github.com/apogeemq/apogee/internal/vfs"
)

// hole is a part of the log that holds no whole record, between parts that do.
type hole struct {
	from, to int64
	why      error
	missing  bool // there is no such file
	short    bool // the file ends before it should
	tail     bool // nothing whole follows, though something did once
}

// walker is told what a walk over the log meets. record may keep nothing of m and rec.
type walker struct {
	record func(m *message.Message, rec []byte) error
	hole   func(hole) error
	blank  func(at int64, n int)
}

// errStop ends a walk early.
var errStop = errors.New("stop")

// walk goes over the records of the log from a physical offset on, at which one must begin, in order. Bytes that are none
// are a hole when there are records behind them that must follow; otherwise the log ends there: end is that place,
// and behind says how many bytes that are not zero lie there in the last file, at least.
//
// atLeast is a place up to which the log is known to have gone once.
func (d *Folder) walk(from, atLeast int64, w walker) (end, behind int64, err error) {
	at := from
	if len(d.segments) > 0 {
		at = max(at, d.segments[0].base)
	}
	for i, g := range d.segments {
		segEnd := g.base + d.o.SegmentSize
		if at >= segEnd {
			continue
		}
		if at < g.base {
			if err := w.hole(hole{from: at, to: g.base, why: errors.New("there is no such file"), missing: true}); err != nil {
				return at, 0, stopped(err)
			}
			at = g.base
		}
		var done bool
		if at, behind, done, err = d.walkSegment(i, at, atLeast, w); err != nil || done {
			return at, behind, stopped(err)
		}
	}
	return at, 0, nil
}

func stopped(err error) error {
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

func (d *Folder) walkSegment(i int, at, atLeast int64, w walker) (next, behind int64, done bool, err error) {
	g := d.segments[i]
	f, err := d.fs.OpenFile(g.name, os.O_RDONLY)
	if err != nil {
		return at, 0, true, err
	}
	defer f.Close()
	size := min(g.size, d.o.SegmentSize)
	r := store.NewLogReader(f, g.name, g.base, size)
	segEnd := g.base + d.o.SegmentSize
	last := i == len(d.segments)-1
	for at < segEnd {
		var m message.Message
		rec, n, err := r.Record(at, &m)
		if err == nil {
			if err := w.record(&m, rec); err != nil {
				return at, 0, true, err
			}
			at += int64(n)
			continue
		}
		if errors.Is(err, message.ErrBlank) && size == d.o.SegmentSize {
			if last {
				return at, 0, true, nil
			}
			if w.blank != nil {
				w.blank(at, n)
			}
			return segEnd, 0, false, nil
		}
		if !store.IsDamage(err) && !errors.Is(err, message.ErrBlank) {
			return at, 0, true, err
		}
		h := hole{from: at, to: segEnd, why: err}
		found, nonZero, err := d.resync(f, r, g, at, size)
		if err != nil {
			return at, 0, true, err
		}
		if found < 0 {
			follows, err := d.laterRecords(i)
			if err != nil {
				return at, 0, true, err
			}
			if !follows && at >= atLeast {
				return at, nonZero, true, nil
			}
			h.short = g.size < d.o.SegmentSize
			if h.tail = !follows; h.tail {
				h.to = atLeast
			}
		} else {
			// A Java broker leaves what it cut off behind the log's end: records that nothing leads to.
			if at >= atLeast {
				follows, err := d.laterRecords(i)
				if err != nil {
					return at, 0, true, err
				}
				if !follows {
					return at, nonZero, true, nil
				}
			}
			h.to = found
		}
		if err := w.hole(h); err != nil {
			return at, 0, true, err
		}
		if h.tail {
			return at, 0, true, nil
		}
		if at = h.to; found < 0 {
			return at, 0, at < segEnd, nil
		}
	}
	return at, 0, false, nil
}

// resync looks behind a place for the next whole record of the segment, or for the blank one that ends it; -1 when there
// is none. nonZero counts what is there instead, up to what was found.
func (d *Folder) resync(f vfs.File, r *store.LogReader, g segment, at, size int64) (found, nonZero int64, err error) {
	const step = 1 << 20
	buf := make([]byte, step+message.BlankSize)
	for from := at; from < g.base+size; from += step {
		b := buf[:min(int64(len(buf)), g.base+size-from)]
		if err := readFull(f, b, from-g.base); err != nil {
			return -1, nonZero, fmt.Errorf("read %s: %w", g.name, err)
		}
		if allZero(b) {
			continue
		}
		for i := range min(step, len(b)) {
			if b[i] != 0 {
				nonZero++
			}
			if i+8 > len(b) || from+int64(i) == at || !magic(b[i+4:]) {
				continue
			}
			var m message.Message
			_, _, err := r.Record(from+int64(i), &m)
			if err == nil || errors.Is(err, message.ErrBlank) {
				return from + int64(i), nonZero, nil
			}
			if !store.IsDamage(err) {
				return -1, nonZero, err
			}
		}
	}
	return -1, nonZero, nil
}

// magic reports whether b begins with a magic number of a record.
func magic(b []byte) bool {
	switch binary.BigEndian.Uint32(b) {
	case 0xDAA320A7, 0xDAA320AB, 0xCBD43194:
		return true
	}
	return false
}

func allZero(b []byte) bool { return bytes.Count(b, []byte{0}) == len(b) }

// laterRecords reports whether a segment behind the i-th begins with a whole record.
func (d *Folder) laterRecords(i int) (bool, error) {
	for _, g := range d.segments[i+1:] {
		f, err := d.fs.OpenFile(g.name, os.O_RDONLY)
		if err != nil {
			return false, err
		}
		var m message.Message
		_, _, err = store.NewLogReader(f, g.name, g.base, min(g.size, d.o.SegmentSize)).Record(g.base, &m)
		_ = f.Close()
		if err == nil {
			return true, nil
		}
		if !store.IsDamage(err) && !errors.Is(err, message.ErrBlank) {
			return false, err
		}
	}
	return false, nil
}

// segmentOf returns the segment that holds a physical offset, nil for none.
func (d *Folder) segmentOf(at int64) *segment {
	for i := range d.segments {
		if g := &d.segments[i]; at >= g.base && at < g.base+d.o.SegmentSize {
			return g
		}
	}
	return nil
}

// record reads one record.
func (d *Folder) record(at int64, m *message.Message) error {
	g := d.segmentOf(at)
	if g == nil {
		return fmt.Errorf("%w: no file holds %d", message.ErrTruncated, at)
	}
	f, err := d.fs.OpenFile(g.name, os.O_RDONLY)
	if err != nil {
		return err
	}
	_, _, err = store.NewLogReader(f, g.name, g.base, min(g.size, d.o.SegmentSize)).Record(at, m)
	return errors.Join(err, f.Close())
}
