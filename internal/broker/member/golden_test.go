package member

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/broker/lock"
	"github.com/apogeemq/apogee/internal/protocol"
)

// recorded is one frame of a recording, of those that concern members and locks.
type recorded struct {
	T      int64  `json:"t"`
	Dir    string `json:"dir"`
	Conn   uint64 `json:"conn"`
	Header struct {
		Code      int32             `json:"code"`
		Flag      int32             `json:"flag"`
		Opaque    int32             `json:"opaque"`
		ExtFields map[string]string `json:"extFields"`
	} `json:"header"`
	Hex string `json:"frame"`
}

func (f recorded) body(t *testing.T) []byte {
	t.Helper()
	raw, err := hex.DecodeString(f.Hex)
	if err != nil {
		t.Fatal(err)
	}
	return raw[8+binary.BigEndian.Uint32(raw[4:])&0xffffff:]
}

func recording(t *testing.T, path string) (out []recorded) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		var f recorded
		if err := json.Unmarshal(s.Bytes(), &f); err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// TestAsJavaAnswered plays what Java's clients sent to Java's broker, and compares with what that answered and
// whom it told.
func TestAsJavaAnswered(t *testing.T) {
	for _, c := range []struct {
		file  string
		extra []string // notices that Java's broker doesn't send
	}{
		// A queue is let go of and the moment for its last offset is over: the others may have it.
		{"push_orderly", []string{"5408 40>6 golden_order"}},
		{"push_broadcast", nil},
		{"heartbeat_v2", nil},
	} {
		t.Run(c.file, func(t *testing.T) {
			g := &goldenPlay{t: t, r: New(Options{}), frames: recording(t, "testdata/"+c.file+".jsonl")}
			want := append(g.javaNotices(), c.extra...)
			g.run()
			slices.Sort(want)
			slices.Sort(g.told)
			if !slices.Equal(trimTimes(g.told, c.extra), trimTimes(want, c.extra)) {
				t.Errorf("told\n%q\nwant\n%q", g.told, want)
			}
			if g.compared < 10 {
				t.Errorf("only %d answers were compared", g.compared)
			}
		})
	}
}

// trimTimes leaves out when Java told, which is some ms after what it told of.
func trimTimes(list, but []string) (out []string) {
	for _, s := range list {
		if !slices.Contains(but, s) {
			_, s, _ = strings.Cut(s, " ")
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

type goldenPlay struct {
	t        *testing.T
	r        *Registry
	frames   []recorded
	now      time.Time
	told     []string
	compared int
	seen     map[uint64]bool
}

func (g *goldenPlay) javaNotices() (out []string) {
	for _, f := range g.frames {
		if f.Dir == "b2c" && f.Header.Flag&1 == 0 && f.Header.Code == int32(protocol.NotifyConsumerIdsChanged) {
			out = append(out, fmt.Sprintf("%d 40>%d %s", f.T, f.Conn, f.Header.ExtFields["consumerGroup"]))
		}
	}
	return out
}

func (g *goldenPlay) tell(list []Notice) {
	for _, n := range list {
		g.told = append(g.told, fmt.Sprintf("%d 40>%d %s", g.now.Sub(epoch).Milliseconds(), n.Conn, n.Group))
	}
}

func (g *goldenPlay) answer(to recorded) recorded {
	for _, f := range g.frames {
		if f.Dir == "b2c" && f.Header.Flag&1 == 1 && f.Conn == to.Conn && f.Header.Opaque == to.Header.Opaque {
			return f
		}
	}
	g.t.Fatalf("no answer to %+v", to.Header)
	return recorded{}
}

func (g *goldenPlay) decode(f recorded, v any) {
	g.t.Helper()
	if err := json.Unmarshal(f.body(g.t), v); err != nil {
		g.t.Fatalf("at %d: %v", f.T, err)
	}
}

func (g *goldenPlay) compare(f recorded, got, want any) {
	g.t.Helper()
	g.compared++
	if fmt.Sprint(got) != fmt.Sprint(want) {
		g.t.Errorf("at %d, code %d: got %v, Java answered %v", f.T, f.Header.Code, got, want)
	}
}

func (g *goldenPlay) run() {
	g.now, g.seen = epoch, map[uint64]bool{}
	for _, f := range g.frames {
		if f.Dir != "c2b" {
			continue
		}
		at := epoch.Add(time.Duration(f.T) * time.Millisecond)
		for d := g.r.NextDeadline(g.now); !d.After(at); d = g.r.NextDeadline(g.now) {
			g.now = d
			g.tell(g.r.Tick(d))
		}
		g.now = at
		if !g.seen[f.Conn] {
			g.seen[f.Conn] = true
			g.r.Opened(f.Conn)
		}
		g.play(f)
	}
}

func (g *goldenPlay) play(f recorded) {
	conn := Conn{f.Conn, netip.MustParseAddr("127.0.0.1")}
	x := f.Header.ExtFields
	switch protocol.RequestCode(f.Header.Code) {
	case protocol.HeartBeat:
		var hb protocol.HeartbeatData
		g.decode(f, &hb)
		for _, d := range hb.ConsumerDataSet {
			n, changed := g.r.Heartbeat(conn, Client{ID: hb.ClientID}, Consumer{Data: d}, hb.HeartbeatFingerprint, hb.WithoutSub, g.now)
			g.tell(n)
			g.compare(f, changed, g.answer(f).Header.ExtFields["IS_SUB_CHANGE"])
		}
		for _, d := range hb.ProducerDataSet {
			g.r.Producer(conn, Client{ID: hb.ClientID}, d.GroupName, g.now)
		}
	case protocol.UnregisterClient:
		if group := x["consumerGroup"]; group != "" {
			g.tell(g.r.Unregister(conn, x["clientID"], group, g.now))
		}
		if group := x["producerGroup"]; group != "" {
			g.r.UnregisterProducer(x["clientID"], group)
		}
		g.compare(f, 0, g.answer(f).Header.Code)
	case protocol.GetConsumerListByGroup:
		var want protocol.ConsumerIDList
		g.decode(g.answer(f), &want)
		slices.Sort(want.ConsumerIDList)
		g.compare(f, g.r.IDs(x["consumerGroup"]), want.ConsumerIDList)
	case protocol.LockBatchMQ:
		var req protocol.LockBatchRequest
		var want protocol.LockBatchResponse
		g.decode(f, &req)
		g.decode(g.answer(f), &want)
		held, n := g.r.Lock(conn, req.ConsumerGroup, req.ClientID, queuesOf(req.MQSet), g.now)
		g.tell(n)
		g.compare(f, sorted(held), sorted(queuesOf(want.LockOKMQSet)))
	case protocol.UnlockBatchMQ:
		var req protocol.LockBatchRequest
		g.decode(f, &req)
		g.tell(g.r.Unlock(conn, req.ConsumerGroup, req.ClientID, queuesOf(req.MQSet), g.now))
	case protocol.UpdateConsumerOffset:
		queue, err := strconv.Atoi(x["queueId"])
		if err != nil {
			g.t.Fatal(err)
		}
		if !g.r.MayCommit(conn, x["consumerGroup"], x["topic"], int32(queue), g.now) {
			g.t.Errorf("at %d: the commit of %s %d is refused", f.T, x["topic"], queue)
		}
		g.tell(g.r.Committed(conn, x["consumerGroup"], x["topic"], int32(queue), g.now))
	}
}

func queuesOf(list []protocol.MessageQueue) (out []lock.Queue) {
	for _, q := range list {
		out = append(out, lock.Queue{Topic: q.Topic, Broker: q.BrokerName, ID: q.QueueID})
	}
	return out
}

func sorted(list []lock.Queue) (out []string) {
	for _, q := range list {
		out = append(out, fmt.Sprint(q))
	}
	slices.Sort(out)
	return out
}
