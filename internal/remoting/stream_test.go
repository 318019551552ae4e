package remoting

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/iotest"

	"github.com/apogeemq/apogee/internal/protocol"
)

func TestStreamReadsWhatAppendRequestWrote(t *testing.T) {
	var wire []byte
	const n = 300
	for i := range n {
		h := &protocol.SendMessageRequest{ProducerGroup: []byte("P"), Topic: fmt.Appendf(nil, "T%d", i), QueueID: int32(i), Properties: []byte("K\x01v\x02")}
		wire = AppendRequest(wire, &Request{Code: protocol.SendMessageV2, Header: h, Body: bytes.Repeat([]byte{byte(i)}, i*37)}, int32(i))
	}
	for name, src := range map[string]io.Reader{"whole": bytes.NewReader(wire), "halves": iotest.HalfReader(bytes.NewReader(wire)), "bytes": iotest.OneByteReader(bytes.NewReader(wire))} {
		s := NewStream(src, 16)
		var c Command
		for i := range n {
			if err := s.Next(&c); err != nil {
				t.Fatal(name, i, err)
			}
			var h protocol.SendMessageRequest
			if err := h.DecodeFields(c.Fields); err != nil {
				t.Fatal(name, i, err)
			}
			if c.Opaque != int32(i) || h.QueueID != int32(i) || string(h.Topic) != fmt.Sprint("T", i) || string(h.Properties) != "K\x01v\x02" || len(c.Body) != i*37 || i > 0 && c.Body[0] != byte(i) {
				t.Fatalf("%s: frame %d: %+v", name, i, c)
			}
		}
		if err := s.Next(&c); !errors.Is(err, io.EOF) {
			t.Errorf("%s: at the end: %v", name, err)
		}
	}
	var c Command
	if err := NewStream(bytes.NewReader(wire[:len(wire)-1]), 16<<20).skip(n-1, &c).Next(&c); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut inside a frame: %v", err)
	}
	var bad *FrameError
	s := NewStream(bytes.NewReader([]byte{0xFF, 0xFF, 0xFF, 0xFF, 0}), 16)
	if err := s.Next(&c); !errors.As(err, &bad) || !s.Ready() {
		t.Errorf("no frame: %v", err)
	}
}

func (s *Stream) skip(n int, c *Command) *Stream {
	for range n {
		_ = s.Next(c)
	}
	return s
}

// TestPlainRun compares with the plain loop, for every byte at every place.
func TestPlainRun(t *testing.T) {
	slow := func(b []byte) int {
		n := 0
		for n < len(b) && b[n] != '"' && b[n] != '\\' && b[n] >= ' ' {
			n++
		}
		return n
	}
	for size := range 20 {
		for at := range size {
			for c := range 256 {
				for _, fill := range []byte{'x', ' ', '!', '#', '[', ']', 0x7F, 0x80, 0xFF} {
					b := bytes.Repeat([]byte{fill}, size)
					b[at] = byte(c)
					if got, want := plainRun(b), slow(b); got != want {
						t.Fatalf("%q: %d, want %d", b, got, want)
					}
				}
			}
		}
	}
}
