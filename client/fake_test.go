package client_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/testkit"
)

// fakeCluster is a name server and brokers that do what a test tells them: real frames on real connections, and
// answers that no real server can be made to give.
type fakeCluster struct {
	names   string
	brokers []*fakeBroker // in the order of their names
	queues  int32
}

// fakeBroker answers sends with success unless script says otherwise.
type fakeBroker struct {
	name, addr string

	mu     sync.Mutex
	script func(n int, r fakeRequest) *remoting.Response // n counts the requests but heartbeats, from 1; nil: no answer
	seen   []fakeRequest
	conns  []*remoting.Conn
	beats  []string // bodies of heartbeats
	byes   []string // producer groups that said goodbye
}

// fakeRequest is one request as a broker got it.
type fakeRequest struct {
	code   protocol.RequestCode
	fields map[string]string
	props  map[string]string // of a send
	body   []byte
}

func startFake(t testing.TB, queues int32, names ...string) *fakeCluster {
	return startFakeTLS(t, nil, queues, names...)
}

func startFakeTLS(t testing.TB, cfg *tls.Config, queues int32, names ...string) *fakeCluster {
	t.Helper()
	f := &fakeCluster{queues: queues}
	serve := func(h remoting.Handler) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		if cfg != nil {
			l = tls.NewListener(l, cfg)
		}
		s := remoting.NewServer(remoting.ServerOptions{Handler: h, Stats: new(remoting.Stats)})
		s.Serve(l)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := s.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		return addr
	}
	for _, n := range names {
		b := &fakeBroker{name: n}
		b.addr = serve(b)
		f.brokers = append(f.brokers, b)
	}
	f.names = serve(f)
	return f
}

// Serve implements remoting.Handler: every topic has the queues on every broker.
func (f *fakeCluster) Serve(c *remoting.Conn, req *remoting.Command) {
	var d protocol.TopicRouteData
	for _, b := range f.brokers {
		d.BrokerDatas = append(d.BrokerDatas, protocol.BrokerData{Cluster: "FakeCluster", BrokerName: b.name, BrokerAddrs: protocol.BrokerAddrs{0: b.addr}})
		d.QueueDatas = append(d.QueueDatas, protocol.QueueData{BrokerName: b.name, ReadQueueNums: f.queues, WriteQueueNums: f.queues, Perm: 6})
	}
	body, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	_ = c.Reply(req, &remoting.Response{Body: body})
}

// Serve implements remoting.Handler.
func (b *fakeBroker) Serve(c *remoting.Conn, req *remoting.Command) {
	code := protocol.RequestCode(req.Code)
	if code == protocol.HeartBeat || code == protocol.UnregisterClient || code == protocol.GetMaxOffset {
		b.mu.Lock()
		if code == protocol.HeartBeat {
			b.beats = append(b.beats, string(req.Body))
		}
		if g, ok := req.Fields.Get("producerGroup"); ok {
			b.byes = append(b.byes, string(g))
		}
		b.mu.Unlock()
		_ = c.Reply(req, &remoting.Response{})
		return
	}
	r := fakeRequest{code: code, fields: map[string]string{}, body: append([]byte(nil), req.Body...)}
	for _, f := range req.Fields {
		r.fields[string(f.Key)] = string(f.Value)
	}
	r.props = message.PropertyMap([]byte(r.fields["i"]))
	b.mu.Lock()
	b.seen = append(b.seen, r)
	b.conns = append(b.conns, c)
	n, script := len(b.seen), b.script
	b.mu.Unlock()
	resp := accepted(n, r)
	if script != nil {
		resp = script(n, r)
	}
	if resp != nil {
		_ = c.Reply(req, resp)
	}
}

// accepted is the answer of a broker that stored a message.
func accepted(n int, r fakeRequest) *remoting.Response {
	queue, _ := strconv.Atoi(r.fields["e"])
	return &remoting.Response{Header: &protocol.SendMessageResponse{MsgID: fmt.Sprintf("7F00000100002A9F%016X", n), QueueID: int32(queue), QueueOffset: int64(n),
		TransactionID: r.props["UNIQ_KEY"], Region: "DefaultRegion", TraceOn: "true"}}
}

func refuse(code protocol.ResponseCode, remark string) *remoting.Response {
	return &remoting.Response{Code: code, Remark: remark}
}

func (b *fakeBroker) do(script func(n int, r fakeRequest) *remoting.Response) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.script = script
}

// requests returns what the broker got so far.
func (b *fakeBroker) requests() []fakeRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]fakeRequest(nil), b.seen...)
}

// push sends a request of the broker's own to the client that was last heard of.
func (b *fakeBroker) push(t testing.TB, code protocol.RequestCode, fields map[string]string, body []byte) *remoting.Conn {
	t.Helper()
	b.mu.Lock()
	c := b.conns[len(b.conns)-1]
	b.mu.Unlock()
	r := &remoting.Request{Code: code, Body: body}
	for k, v := range fields {
		r.Extra = append(r.Extra, protocol.Field{Key: []byte(k), Value: []byte(v)})
	}
	if err := c.OneWay(r); err != nil {
		t.Fatal(err)
	}
	return c
}

// recorded are the frames of one of Java's recordings.
type recorded []testkit.Frame

func recording(t testing.TB, name string) recorded {
	return testkit.Frames(t, "testdata/"+name+".jsonl")
}

// requests returns the requests with a code.
func (r recorded) requests(code protocol.RequestCode) (out []testkit.Frame) {
	for _, f := range r {
		if f.Header.Flag&1 == 0 && f.Header.Code == int32(code) {
			out = append(out, f)
		}
	}
	return out
}

// answer returns the recorded answer to a request.
func (r recorded) answer(t testing.TB, req testkit.Frame) *remoting.Response {
	t.Helper()
	for _, f := range r {
		if f.Header.Flag&1 == 1 && f.Conn == req.Conn && f.Header.Opaque == req.Header.Opaque {
			a := &remoting.Response{Code: protocol.ResponseCode(f.Header.Code), Body: frameBody(f)}
			if f.Header.Remark != nil {
				a.Remark = *f.Header.Remark
			}
			for k, v := range f.Header.ExtFields {
				a.Extra = append(a.Extra, protocol.Field{Key: []byte(k), Value: []byte(v)})
			}
			return a
		}
	}
	t.Fatalf("no answer to %d of connection %d", req.Header.Opaque, req.Conn)
	return nil
}

// frameBody is what lies behind a frame's header.
func frameBody(f testkit.Frame) []byte {
	n := int(binary.BigEndian.Uint32(f.Raw[4:]) & 0xFFFFFF)
	return f.Raw[8+n:]
}

// sameFields compares a request with Java's, but for the fields named, and the order of properties.
func sameFields(t testing.TB, got fakeRequest, want testkit.Frame, except ...string) {
	t.Helper()
	w := map[string]string{}
	for k, v := range want.Header.ExtFields {
		w[k] = v
	}
	g := got.fields
	for _, k := range except {
		g[k] = w[k]
	}
	if v, ok := w["i"]; ok {
		if a, b := fmt.Sprint(got.props), fmt.Sprint(message.PropertyMap([]byte(v))); a != b && g["i"] != w["i"] {
			t.Errorf("%v: properties %s\nJava's      %s", got.code, a, b)
		}
		g["i"] = v
	}
	if a, b := fmt.Sprint(g), fmt.Sprint(w); a != b {
		t.Errorf("%v: fields %s\nJava's  %s", got.code, a, b)
	}
	if string(got.body) != string(frameBody(want)) {
		t.Errorf("%v: body %q, Java's %q", got.code, got.body, frameBody(want))
	}
}
