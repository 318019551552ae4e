package remoting

import (
	"errors"
	"io"

	"github.com/apogeemq/apogee/internal/protocol"
)

// AppendRequest appends a request's frame with the given opaque, in JSON as Conn.Invoke sends it. It is for programs
// that match answers and gather frames themselves, as a load generator does; others use a Conn.
func AppendRequest(dst []byte, r *Request, opaque int32) []byte {
	h := head{typ: JSON, code: int32(r.Code), language: r.Language, version: protocol.Version, opaque: opaque, remark: r.Remark}
	dst = appendFrame(dst, h, r.Header, r.Extra, len(r.Body))
	return append(dst, r.Body...)
}

// Stream reads frames from a byte stream without a goroutine of its own. It isn't safe for concurrent use.
type Stream struct {
	src        io.Reader
	buf        []byte
	begin, end int
	d          decoder
}

// NewStream returns a stream over src with a buffer of size bytes, which grows to the largest frame.
func NewStream(src io.Reader, size int) *Stream {
	return &Stream{src: src, buf: make([]byte, max(size, firstBuffer))}
}

// Ready reports whether a whole frame is in memory, so that Next won't read.
func (s *Stream) Ready() bool {
	size, err := s.next()
	return err != nil || size > 0
}

// next returns the size of the frame in the buffer, 0 while it is incomplete.
func (s *Stream) next() (int, error) {
	if s.end-s.begin < 4 {
		return 0, nil
	}
	size, err := frameSize(s.buf[s.begin:s.end], MaxFrame)
	switch {
	case err != nil:
		return 0, err
	case s.end-s.begin < size:
		return 0, nil
	case size < frameHeader:
		return 0, frameError("short_length", "frame of %d bytes", size)
	}
	return size, nil
}

// Next reads the next frame into c, whose fields and body are views valid until the next call. At the end of src it
// returns io.EOF between two frames and io.ErrUnexpectedEOF inside one; a *FrameError when what comes is no frame.
func (s *Stream) Next(c *Command) error {
	for {
		size, err := s.next()
		if err != nil {
			return err
		}
		if size > 0 {
			err := s.d.decode(s.buf[s.begin:s.begin+size], c)
			s.begin += size
			return err
		}
		if s.begin > 0 {
			s.end = copy(s.buf, s.buf[s.begin:s.end])
			s.begin = 0
		}
		if s.end == len(s.buf) {
			next := make([]byte, 2*len(s.buf))
			s.end = copy(next, s.buf[:s.end])
			s.buf = next
		}
		n, err := s.src.Read(s.buf[s.end:])
		s.end += n
		if err != nil && n == 0 {
			if errors.Is(err, io.EOF) && s.end > s.begin {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
}
