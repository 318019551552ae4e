package broker

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/apogeemq/apogee/internal/broker/delay"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/store"
	"github.com/apogeemq/apogee/internal/testkit"
	"github.com/apogeemq/apogee/internal/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts a broker in memory; the caller closes it.
func start(t *testing.T) (*Broker, string) {
	t.Helper()
	levels, err := delay.ParseLevels(delay.DefaultLevels)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(Options{Name: "b", Cluster: "c", Permission: 6, AutoTopic: true, AutoGroup: true, DefaultQueues: 4, Levels: levels,
		LongPolling: true, MaxHold: time.Minute, MaxParked: 100, DefaultQueryMaxNum: 32, NotifyIdsChanged: true,
		OffsetInterval: time.Hour, DelayInterval: time.Hour, RegisterEvery: time.Hour, Clean: CleanOptions{Every: time.Hour, When: "04"},
		Store:    store.Options{Dir: "/store", FS: vfs.NewMem(), SegmentSize: 1 << 20, QueueSize: 20_000, IndexSlots: 100, IndexSize: 1000},
		Settings: func() string { return "" }, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	main, err := remoting.Listen(loopback)
	if err != nil {
		t.Fatal(err)
	}
	fast, err := remoting.Listen(loopback)
	if err != nil {
		t.Fatal(err)
	}
	b.Start(main, fast)
	return b, main.Addr().String()
}

// handlerFunc is a client's side of a connection.
type handlerFunc func(c *remoting.Conn, req *remoting.Command)

func (f handlerFunc) Serve(c *remoting.Conn, req *remoting.Command) { f(c, req) }

func dial(t *testing.T, addr string, h remoting.Handler) *remoting.Conn {
	t.Helper()
	c, err := remoting.Dial(t.Context(), addr, remoting.DialOptions{Handler: h})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close(nil)
		c.Wait()
	})
	return c
}

// consumer connects a member of group g with client id "c1" whose requests go to h.
func consumer(t *testing.T, addr string, h handlerFunc) {
	t.Helper()
	c := dial(t, addr, h)
	body, err := protocol.EncodeBody(protocol.HeartbeatData{ClientID: "c1", ConsumerDataSet: []protocol.ConsumerData{{GroupName: "g",
		ConsumeType: "CONSUME_PASSIVELY", MessageModel: "CLUSTERING", ConsumeFromWhere: "CONSUME_FROM_LAST_OFFSET"}}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.Invoke(t.Context(), &remoting.Request{Code: protocol.HeartBeat, Body: body})
	if err != nil || a.Code != int32(protocol.Success) {
		t.Fatalf("heartbeat: %+v, %v", a, err)
	}
}

var runningInfo = &remoting.Request{Code: protocol.GetConsumerRunningInfo, Header: &protocol.RelayRequest{ConsumerGroup: "g", ClientID: "c1"}}

// TestRelayPassesTheAnswerOn: what the client answers is what the one who asked gets.
func TestRelayPassesTheAnswerOn(t *testing.T) {
	b, addr := start(t)
	consumer(t, addr, func(c *remoting.Conn, req *remoting.Command) {
		_ = c.Reply(req, &remoting.Response{Code: protocol.Success, Remark: "as asked", Body: []byte(`{"properties":{}}`)})
	})
	a, err := dial(t, addr, nil).Invoke(t.Context(), runningInfo)
	if err != nil || a.Code != 0 || a.Remark != "as asked" || string(a.Body) != `{"properties":{}}` {
		t.Errorf("%+v, %v", a, err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestRelaysAreBoundedAndEndWithTheBroker: a client that doesn't answer costs a bounded number of goroutines, and a
// stop waits for none of them; everyone who asked gets an answer.
func TestRelaysAreBoundedAndEndWithTheBroker(t *testing.T) {
	b, addr := start(t)
	consumer(t, addr, func(*remoting.Conn, *remoting.Command) {})
	admin := dial(t, addr, nil)
	codes := make(chan int32, maxRelays+1)
	var asked sync.WaitGroup
	ask := func() {
		asked.Go(func() {
			a, err := admin.Invoke(context.Background(), runningInfo)
			if err != nil {
				t.Error(err)
				return
			}
			codes <- a.Code
		})
	}
	for range maxRelays {
		ask()
	}
	testkit.Eventually(t, 10*time.Second, "all relays wait", func() bool { return b.relays.Running() == maxRelays })
	ask()
	if code := <-codes; code != int32(protocol.SystemBusy) {
		t.Errorf("one too many is answered %d", code)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
	asked.Wait()
	for range maxRelays {
		if code := <-codes; code != int32(protocol.SystemError) {
			t.Fatalf("answered %d", code)
		}
	}
}
