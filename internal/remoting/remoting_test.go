package remoting

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fieldMap(f protocol.Fields) map[string]string {
	m := map[string]string{}
	for _, x := range f {
		m[string(x.Key)] = string(x.Value)
	}
	return m
}

// TestGoldenFrames decodes recorded frames, by the fast scanner and by the tolerant decoder, compares them with
// the recorder's own decoding, and encodes them again.
func TestGoldenFrames(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.jsonl")
	total, fast := 0, 0
	for _, file := range files {
		for i, f := range testkit.Frames(t, file) {
			total++
			size, err := frameSize(f.Raw, MaxFrame)
			if err != nil || size != len(f.Raw) {
				t.Fatalf("%s frame %d: size %d, %v", file, i, size, err)
			}
			var d decoder
			var c Command
			if err := d.decode(f.Raw, &c); err != nil {
				t.Fatalf("%s frame %d: %v", file, i, err)
			}
			check := func(how string) {
				t.Helper()
				want := f.Header
				remark := ""
				if want.Remark != nil {
					remark = *want.Remark
				}
				if c.Code != want.Code || c.Flag != want.Flag || c.Opaque != want.Opaque || c.Version != want.Version ||
					c.Language.String() != want.Language || c.Remark != remark || !maps.Equal(fieldMap(c.Fields), want.ExtFields) && len(c.Fields)+len(want.ExtFields) > 0 {
					t.Fatalf("%s frame %d, %s:\n got %+v %v\nwant %+v", file, i, how, c, fieldMap(c.Fields), want)
				}
			}
			check("decoded")
			h := head{typ: c.Type, code: c.Code, language: c.Language, version: c.Version, opaque: c.Opaque, flag: c.Flag, remark: c.Remark}
			var header any
			if f.Header.ExtFields != nil {
				header = protocol.Empty{}
			}
			again := append(appendFrame(nil, h, header, c.Fields, len(c.Body)), c.Body...)
			if !bytes.Equal(again, f.Raw) && c.Type == Binary {
				t.Fatalf("%s frame %d: encoded again:\n got %x\nwant %x", file, i, again, f.Raw)
			}
			var d2 decoder
			if err := d2.decode(again, &c); err != nil {
				t.Fatalf("%s frame %d: encoded again: %v", file, i, err)
			}
			check("encoded again")
			if c.Type == JSON {
				s := scanHeader(f.Raw)
				if s {
					fast++
				}
				var d3 decoder
				n := int(binary.BigEndian.Uint32(f.Raw[4:]) & 0xFFFFFF)
				if err := d3.tolerantJSON(f.Raw[8:8+n], &c); err != nil {
					t.Fatal(err)
				}
				c.Fields = d3.fields
				check("tolerant")
			} else {
				fast++
			}
		}
	}
	if total < 300 || fast != total {
		t.Fatalf("%d frames, %d by the fast scanner", total, fast)
	}
}

func scanHeader(raw []byte) bool {
	var d decoder
	var c Command
	n := int(binary.BigEndian.Uint32(raw[4:]) & 0xFFFFFF)
	return d.scanJSON(raw[8:8+n], &c)
}

func frame(typ byte, header string, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(typ)<<24|uint32(len(header)))
	return append(append(b, header...), body...)
}

func TestTolerantHeader(t *testing.T) {
	for header, want := range map[string]string{
		`{'Code':'105','ext_fields':{topic:'T',n:5,b:true,o:{"a":1},x:null},opaque:7,}`: `105 7 0 map[b:true n:5 o:{"a":1} topic:T]`,
		`{"code":34,"opaque":1,"language":9,"flag":2,"other":[1]}`:                      `34 1 2 map[]`,
		`{"code":34,"opaque":1,"extFields":{"a":"x\u0001\"\\\n\ud83d\ude00"}}`:          "34 1 0 map[a:x\x01\"\\\n😀]",
		`{"code":34,"opaque":-5,"extFields":null,"remark":null}`:                        `34 -5 0 map[]`,
	} {
		var d decoder
		var c Command
		if err := d.decode(frame(0, header, "body"), &c); err != nil {
			t.Errorf("%s: %v", header, err)
			continue
		}
		if got := fmt.Sprint(c.Code, c.Opaque, c.Flag, fieldMap(c.Fields)); got != want || string(c.Body) != "body" {
			t.Errorf("%s\n got %s\nwant %s", header, got, want)
		}
	}
	for _, header := range []string{``, `null`, `[]`, `{"code":"x"}`, `{"code":1`, `{"code":99999999999}`, `{"language":14}`, `{"extFields":[1]}`, "\x00\x01"} {
		var d decoder
		var c Command
		var fe *FrameError
		if err := d.decode(frame(0, header, ""), &c); !errors.As(err, &fe) {
			t.Errorf("header %q: %v", header, err)
		}
	}
}

// echo answers with the request's fields and body, refuses code 404, and panics at 500.
type echo struct{}

func (echo) Serve(c *Conn, req *Command) {
	switch req.Code {
	case 404:
		_ = c.Reply(req, NotSupported(req.Code))
	case 500:
		panic("as asked")
	default:
		cp := req.Clone()
		_ = c.Reply(req, &Response{Header: protocol.Empty{}, Extra: cp.Fields, Body: cp.Body})
	}
}

func serve(t *testing.T, h Handler, l Limits) (*Server, string) {
	t.Helper()
	ln, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(ServerOptions{Handler: h, Limits: l})
	s.Serve(ln)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s, ln.Addr().String()
}

func dial(t *testing.T, addr string) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(nil); c.Wait() })
	return c
}

func TestInvoke(t *testing.T) {
	s, addr := serve(t, echo{}, Limits{})
	c := dial(t, addr)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			body := bytes.Repeat([]byte{byte(i)}, i*100)
			a, err := c.Invoke(t.Context(), &Request{Code: 1, Header: protocol.Empty{}, Extra: protocol.Fields{{Key: []byte("k"), Value: fmt.Appendf(nil, "v%d", i)}}, Body: body})
			if err != nil || a.Code != 0 || !bytes.Equal(a.Body, body) {
				t.Errorf("%d: %v %v", i, a, err)
				return
			}
			if v, _ := a.Fields.Get("k"); string(v) != fmt.Sprint("v", i) {
				t.Errorf("%d: field %s", i, v)
			}
		})
	}
	wg.Wait()
	a, err := c.Invoke(t.Context(), &Request{Code: 404})
	if err != nil || a.Code != int32(protocol.RequestCodeNotSupported) || a.Remark != " request type 404 not supported" {
		t.Errorf("%+v, %v", a, err)
	}
	a, err = c.Invoke(t.Context(), &Request{Code: 500})
	if err != nil || a.Code != int32(protocol.SystemError) || s.o.Stats.Panics.Load() != 1 {
		t.Errorf("%+v, %v", a, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Invoke(ctx, &Request{Code: 1}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// silent never answers, so that a call waits until its connection goes.
type silent struct{ seen chan struct{} }

func (h silent) Serve(*Conn, *Command) { h.seen <- struct{}{} }

func TestCloseFailsCalls(t *testing.T) {
	h := silent{make(chan struct{}, 1)}
	_, addr := serve(t, h, Limits{})
	c := dial(t, addr)
	go func() { <-h.seen; c.Close(io.ErrUnexpectedEOF) }()
	if _, err := c.Invoke(t.Context(), &Request{Code: 1}); !errors.Is(err, ErrClosed) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if _, err := c.Invoke(t.Context(), &Request{Code: 1}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// TestBadFrames sends what can't be a frame: its connection is closed and counted, another one goes on.
func TestBadFrames(t *testing.T) {
	s, addr := serve(t, echo{}, Limits{})
	good := dial(t, addr)
	for kind, raw := range map[string][]byte{
		"negative_length": {0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0},
		"short_length":    {0, 0, 0, 3, 0, 0, 0, 0},
		"too_long":        {0x01, 0, 0, 0, 0, 0, 0, 0},
		"header_length":   {0, 0, 0, 4, 0, 0, 0, 9},
		"serialize_type":  frame(7, "{}", ""),
		"bad_header":      frame(0, "nonsense", ""),
		"tls":             {0x16, 3, 1, 2, 0, 1, 0, 1},
		"http":            []byte("GET / HTTP/1.1\r\n\r\n"),
		"proxy":           []byte("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"),
	} {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Write(raw); err != nil {
			t.Fatal(err)
		}
		_ = nc.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := nc.Read(make([]byte, 1)); n != 0 || errors.Is(err, context.DeadlineExceeded) || strings.Contains(fmt.Sprint(err), "timeout") {
			t.Errorf("%s: not closed: %d, %v", kind, n, err)
		}
		_ = nc.Close()
		if n := s.o.Stats.BadFrames()[kind]; n != 1 {
			t.Errorf("%s: counted %d times: %v", kind, n, s.o.Stats.BadFrames())
		}
	}
	if _, err := good.Invoke(t.Context(), &Request{Code: 1}); err != nil {
		t.Error(err)
	}
}

func TestIdleConnectionsTimeOut(t *testing.T) {
	s, addr := serve(t, echo{}, Limits{IdleTimeout: 50 * time.Millisecond})
	for i := range 100 {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if i%2 == 0 {
			_, _ = nc.Write([]byte{0, 0, 16, 0, 0, 0, 0, 5}) // the start of a frame that never ends
		}
		if i%4 == 0 { // and goes on, behind a whole frame
			_, _ = nc.Write(append(frame(0, `{"code":1,"opaque":1}`, ""), 0, 0, 16, 0, 0, 0, 0, 5))
			go func() {
				for {
					if _, err := nc.Write([]byte{0}); err != nil {
						return
					}
					<-time.After(10 * time.Millisecond)
				}
			}()
		}
	}
	testkit.Eventually(t, 10*time.Second, "idle connections closed", func() bool { return s.o.Stats.Idle.Load() == 100 && s.Conns() == 0 })
}

// TestSlowReader: a peer that asks and never reads is held back, then cut off; memory stays bounded.
func TestSlowReader(t *testing.T) {
	s, addr := serve(t, echo{}, Limits{HighWater: 256 << 10, WriteTimeout: 200 * time.Millisecond})
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	f := frame(0, `{"code":1,"opaque":1}`, strings.Repeat("x", 64<<10))
	_ = nc.SetWriteDeadline(time.Now().Add(10 * time.Second))
	for range 10_000 {
		if _, err := nc.Write(f); err != nil {
			break
		}
	}
	testkit.Eventually(t, 10*time.Second, "cut off", func() bool { return s.o.Stats.Slow.Load() == 1 })
}

// TestRelease: a response's Release is called once, whether it was written or dropped.
func TestRelease(t *testing.T) {
	tickets := make(chan Ticket, 2)
	_, addr := serve(t, handlerFunc(func(c *Conn, req *Command) { tickets <- req.Ticket(c) }), Limits{})
	c := dial(t, addr)
	for range 2 {
		if err := c.request(&Request{Code: 1}, 1, 0); err != nil {
			t.Fatal(err)
		}
	}
	released := make(chan int, 4)
	_ = (<-tickets).Reply(&Response{Body: make([]byte, 100_000), Release: func() { released <- 1 }})
	if <-released != 1 {
		t.Fatal()
	}
	second := <-tickets
	second.Conn().Close(nil)
	if err := second.Reply(&Response{Release: func() { released <- 2 }}); err == nil {
		t.Error("reply on a closed connection succeeded")
	}
	if <-released != 2 || len(released) != 0 {
		t.Error("released more than once")
	}
}

type handlerFunc func(*Conn, *Command)

func (f handlerFunc) Serve(c *Conn, req *Command) { f(c, req) }

func FuzzFrame(f *testing.F) {
	f.Add(frame(0, `{"code":10,"opaque":1,"extFields":{"a":"b\u0001"}}`, "body"))
	f.Add(frame(1, "\x00\x69\x00\x01\xdf\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0c\x00\x05topic\x00\x00\x00\x01T", ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 8 {
			return
		}
		size, err := frameSize(b, MaxFrame)
		if err != nil || size > len(b) || size < frameHeader {
			return
		}
		var d decoder
		var c Command
		if d.decode(b[:size], &c) != nil {
			return
		}
		h := head{typ: c.Type, code: c.Code, language: c.Language, version: c.Version, opaque: c.Opaque, flag: c.Flag, remark: c.Remark}
		if c.Type == JSON {
			for _, x := range c.Fields { // keys of our own are plain ASCII
				for _, k := range x.Key {
					if k < ' ' || k >= 0x7f || k == '"' || k == '\\' {
						return
					}
				}
			}
		}
		var d2 decoder
		var c2 Command
		again := append(appendFrame(nil, h, protocol.Empty{}, c.Fields, len(c.Body)), c.Body...)
		if err := d2.decode(again, &c2); err != nil {
			t.Fatalf("encoded again %q: %v", again, err)
		}
		if c2.Code != c.Code || len(c2.Fields) != len(c.Fields) {
			t.Fatalf("%+v became %+v", c, c2)
		}
	})
}

func BenchmarkDecodeSend(b *testing.B) {
	raw := frame(0, `{"code":310,"extFields":{"a":"bench","b":"BenchTopic","c":"TBW102","d":"4","e":"2","f":"0","g":"1796098137112","h":"0","i":"UNIQ_KEY\u00017F0000013B574E0E2F2A00E3EC170000\u0002WAIT\u0001true\u0002","j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":2,"serializeTypeCurrentRPC":"JSON","version":479}`, strings.Repeat("x", 1024))
	var d decoder
	var c Command
	var h protocol.SendMessageRequest
	b.ReportAllocs()
	for b.Loop() {
		if err := d.decode(raw, &c); err != nil {
			b.Fatal(err)
		}
		if err := h.DecodeFields(c.Fields); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeSendAnswer(b *testing.B) {
	var out batch
	h := &protocol.SendMessageResponse{MsgID: "7F000001000078BF0000000000000000", TransactionID: "7F0000013B574E0E2F2A00E3EC170000", Region: "DefaultRegion", TraceOn: "true"}
	b.ReportAllocs()
	for b.Loop() {
		out.buf, out.segments, out.size = out.buf[:0], out.segments[:0], 0
		out.frame(head{opaque: 7, flag: 1, version: 479}, h, nil, nil, nil)
	}
}
