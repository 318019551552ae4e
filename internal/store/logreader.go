package store

import (
	"errors"
	"fmt"
	"io"

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
	n, err = message.DecodeRecord(rec, m, verify)
	return rec, n, err
}

// headerSize is enough of a record for message.DecodeHeader, with an IPv6 host.
const headerSize = 96

// isDamage reports whether a record's error says that the bytes are none, rather than that they couldn't be read.
func isDamage(err error) bool {
	return errors.Is(err, message.ErrCorrupt) || errors.Is(err, message.ErrTruncated)
}
