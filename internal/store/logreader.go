package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/apogeemq/apogee/internal/message"
)

// logReader walks one segment's records with plain reads through a window. Opening uses it rather than the mapping:
// it looks at parts of files that may be holes or damaged, where a read gives zeros or an error and a mapped page
// may end the process.
type logReader struct {
	g    *segment
	size int64 // of the segment
	buf  []byte
	from int64 // place in the segment of buf's first byte
	step int
}

func newLogReader(g *segment, size int64) *logReader {
	return &logReader{g: g, size: size, step: 1 << 20}
}

// bytes returns n bytes at a place in the segment; they are valid until the next call.
func (r *logReader) bytes(at int64, n int) ([]byte, error) {
	if at < 0 || at+int64(n) > r.size {
		return nil, io.ErrUnexpectedEOF
	}
	if at < r.from || at+int64(n) > r.from+int64(len(r.buf)) {
		want := int(min(int64(max(n, r.step)), r.size-at))
		if cap(r.buf) < want {
			r.buf = make([]byte, want)
		}
		r.buf, r.from = r.buf[:want], at
		if err := readFull(r.g.file, r.buf, at); err != nil {
			r.buf = r.buf[:0]
			return nil, fmt.Errorf("read %s at %d: %w", r.g.name, at, err)
		}
	}
	return r.buf[at-r.from : at-r.from+int64(n)], nil
}

// record decodes the record at a physical offset into m, with its bytes, and checks that it says it lies there. A
// blank record gives message.ErrBlank and the number of bytes it fills. An error that is neither that nor wraps
// ErrTruncated or ErrCorrupt of package message comes from the disk.
func (r *logReader) record(physical int64, m *message.Message, verify bool) (rec []byte, n int, err error) {
	at := physical - r.g.base
	left := r.size - at
	if left < message.BlankSize {
		return nil, 0, message.ErrTruncated
	}
	b, err := r.bytes(at, int(min(left, headerSize)))
	if err != nil {
		return nil, 0, err
	}
	h, err := message.DecodeHeader(b)
	if err != nil {
		return nil, 0, err
	}
	if h.Blank {
		if int64(h.Size) != left {
			return nil, 0, fmt.Errorf("%w: blank record of %d bytes, %d are left", message.ErrCorrupt, h.Size, left)
		}
		return nil, int(left), message.ErrBlank
	}
	if int64(h.Size) > left {
		return nil, 0, fmt.Errorf("%w: size %d, %d bytes left", message.ErrTruncated, h.Size, left)
	}
	if h.PhysicalOffset != physical {
		return nil, 0, fmt.Errorf("%w: it says it lies at %d", message.ErrCorrupt, h.PhysicalOffset)
	}
	if rec, err = r.bytes(at, int(h.Size)); err != nil {
		return nil, 0, err
	}
	if n, err = message.DecodeRecord(rec, m, verify); err == nil && verify && torn(m, at, rec) {
		err = fmt.Errorf("%w: a part of it is zeros", message.ErrCorrupt)
	}
	return rec, n, err
}

// sector is the smallest unit in which a disk loses a write.
const sector = 512

// torn reports whether a record that decodes lost its end or a part behind its body. The record's CRC covers the body
// only, and what a power cut takes reads as zeros: behind the log's end there is nothing else. So a topic has no zero
// in it, properties don't end in one, and none of their sectors is all zeros. Append refuses properties that are.
func torn(m *message.Message, at int64, rec []byte) bool {
	if strings.IndexByte(m.Topic, 0) >= 0 || endsInZero(m.Properties) {
		return true
	}
	from := at + int64(len(rec)-len(m.Properties))
	for s := (from + sector - 1) / sector * sector; s+sector <= at+int64(len(rec)); s += sector {
		if allZero(rec[s-at : s-at+sector]) {
			return true
		}
	}
	return false
}

func endsInZero(b []byte) bool { return len(b) > 0 && b[len(b)-1] == 0 }

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// looksTorn reports whether recovery could take properties for torn ones, wherever they come to lie.
func looksTorn(props []byte) bool {
	if bytes.IndexByte(props, 0) < 0 {
		return false
	}
	run := 0
	for _, c := range props {
		if run++; c != 0 {
			run = 0
		}
		if run >= sector {
			return true
		}
	}
	return endsInZero(props)
}

// headerSize is enough of a record for message.DecodeHeader, with an IPv6 host.
const headerSize = 96

// isDamage reports whether a record's error says that the bytes are none, rather than that they couldn't be read.
func isDamage(err error) bool {
	return errors.Is(err, message.ErrCorrupt) || errors.Is(err, message.ErrTruncated)
}
