package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/testkit"
)

func msg(key string) *client.Message {
	return &client.Message{Topic: "T", ShardingKey: key, Body: []byte("x")}
}

// sendBoth runs f with Send and with SendAsync.
func sendBoth(t *testing.T, f func(t *testing.T, send func(ctx context.Context, p *client.Producer, m *client.Message) (*client.SendResult, error))) {
	t.Run("Send", func(t *testing.T) {
		f(t, func(ctx context.Context, p *client.Producer, m *client.Message) (*client.SendResult, error) {
			return p.Send(ctx, m)
		})
	})
	t.Run("SendAsync", func(t *testing.T) {
		f(t, func(ctx context.Context, p *client.Producer, m *client.Message) (*client.SendResult, error) {
			type end struct {
				res *client.SendResult
				err error
			}
			got := make(chan end, 1)
			p.SendAsync(ctx, m, func(res *client.SendResult, err error) { got <- end{res, err} })
			e := <-got
			return e.res, e.err
		})
	})
}

func TestCodesThatJavaRetriesGoToAnotherBroker(t *testing.T) {
	sendBoth(t, func(t *testing.T, send func(context.Context, *client.Producer, *client.Message) (*client.SendResult, error)) {
		for code, again := range map[protocol.ResponseCode]bool{
			protocol.SystemError: true, protocol.SystemBusy: true, protocol.TopicNotExist: true, protocol.ServiceNotAvailable: true, protocol.NoPermission: true, 204: true, 205: true,
			protocol.MessageIllegal: false, protocol.InvalidParameter: false, protocol.RequestCodeNotSupported: false,
		} {
			f := startFake(t, 2, "a", "b")
			f.brokers[0].do(func(int, fakeRequest) *remoting.Response { return refuse(code, "no") })
			p := newProducer(t, newClient(t, f.names))
			for range 4 { // round robin: every second begins with the broker that refuses
				m := msg("")
				res, err := send(short(t), p, m)
				switch {
				case again && (err != nil || res.Broker != "b" || res.ID != m.ID):
					t.Errorf("code %d: %+v %v", code, res, err)
				case !again && err == nil && res.Broker != "b":
					t.Errorf("code %d: %+v", code, res)
				case !again && err != nil:
					var refused *client.Error
					if !errors.As(err, &refused) || refused.Code != int(code) || client.Classify(err).Retriable {
						t.Errorf("code %d: %v", code, err)
					}
				}
			}
			if n := len(f.brokers[0].requests()); n == 0 {
				t.Errorf("code %d: broker a wasn't asked", code)
			}
			if n := len(f.brokers[1].requests()); again && n != 4 {
				t.Errorf("code %d: broker b was asked %d times", code, n)
			}
		}
	})
}

func TestADeadBrokerLeavesTimeForAnother(t *testing.T) {
	sendBoth(t, func(t *testing.T, send func(context.Context, *client.Producer, *client.Message) (*client.SendResult, error)) {
		// One queue each: of two sends one begins with the dead broker.
		f := startFake(t, 1, "a", "b")
		f.brokers[0].do(func(int, fakeRequest) *remoting.Response { return nil }) // takes everything, answers nothing
		p := newProducer(t, newClient(t, f.names))
		for range 3 { // of two queues each: one of three in a row is the dead broker's
			ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
			res, err := send(ctx, p, msg(""))
			cancel()
			if err != nil || res.Broker != "b" {
				t.Fatalf("%+v %v", res, err)
			}
		}
		if len(f.brokers[0].requests()) == 0 {
			t.Error("the dead broker wasn't asked: the test shows nothing")
		}
	})
}

func TestAttemptsAreCounted(t *testing.T) {
	for _, retries := range []int{0, 1, 4} {
		f := startFake(t, 1, "a")
		f.brokers[0].do(func(int, fakeRequest) *remoting.Response { return refuse(protocol.SystemBusy, "busy") })
		p := newProducer(t, newClient(t, f.names), client.WithRetries(retries))
		m := msg("")
		_, err := p.Send(short(t), m)
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Code != int(protocol.SystemBusy) {
			t.Errorf("%v", err)
		}
		seen := f.brokers[0].requests()
		if len(seen) != retries+1 {
			t.Errorf("%d attempts, want %d", len(seen), retries+1)
		}
		for _, r := range seen {
			if r.props["UNIQ_KEY"] != m.ID {
				t.Errorf("an attempt with id %s of message %s", r.props["UNIQ_KEY"], m.ID)
			}
		}
	}
}

// TestWhatTheSameBrokerRefusesAgainIsntRepeatedThere: with one broker only, a code that says "try another" is final.
func TestWhatTheSameBrokerRefusesAgainIsntRepeatedThere(t *testing.T) {
	f := startFake(t, 2, "a")
	f.brokers[0].do(func(int, fakeRequest) *remoting.Response { return refuse(protocol.NoPermission, "no") })
	p := newProducer(t, newClient(t, f.names))
	if _, err := p.Send(short(t), msg("")); err == nil {
		t.Error("sent")
	}
	if n := len(f.brokers[0].requests()); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

func TestStatusesOfStoredMessages(t *testing.T) {
	for code, want := range map[protocol.ResponseCode]client.Status{protocol.Success: client.StatusOK, protocol.FlushDiskTimeout: client.StatusFlushDiskTimeout,
		protocol.FlushSlaveTimeout: client.StatusFlushSlaveTimeout, protocol.SlaveNotAvailable: client.StatusSlaveNotAvailable} {
		f := startFake(t, 1, "a", "b")
		f.brokers[0].do(func(n int, r fakeRequest) *remoting.Response {
			a := accepted(n, r)
			a.Code = code
			return a
		})
		c := newClient(t, f.names)
		to := client.ToQueue(client.MessageQueue{Topic: "T", Broker: "a"})
		if res, err := newProducer(t, c).Send(short(t), msg(""), to); err != nil || res.Status != want {
			t.Errorf("code %d: %+v %v", code, res, err)
		}
		again := newProducer(t, c, client.WithRetryUnlessOK())
		for range 2 {
			if res, err := again.Send(short(t), msg("")); err != nil || res.Status != client.StatusOK {
				t.Errorf("code %d, WithRetryUnlessOK: %+v %v", code, res, err)
			}
		}
		// Where there is nowhere else to go, the less safe copy counts.
		if res, err := again.Send(short(t), msg(""), to); err != nil || res.Status != want {
			t.Errorf("code %d, WithRetryUnlessOK and a fixed queue: %+v %v", code, res, err)
		}
	}
}

// TestAKeyStaysInOrderUnderRetries: the first message is refused twice; the others wait, and all go to one queue.
func TestAKeyStaysInOrderUnderRetries(t *testing.T) {
	f := startFake(t, 4, "a", "b")
	for _, b := range f.brokers {
		b.do(func(n int, r fakeRequest) *remoting.Response {
			if n <= 2 {
				return refuse(protocol.SystemBusy, "busy")
			}
			return accepted(n, r)
		})
	}
	p := newProducer(t, newClient(t, f.names))
	var wg sync.WaitGroup
	var want []string
	for i := range 5 {
		m := msg("k")
		m.Body = fmt.Appendf(nil, "%d", i)
		if i == 0 {
			want = append(want, "0", "0")
		}
		want = append(want, fmt.Sprint(i))
		wg.Add(1)
		p.SendAsync(short(t), m, func(_ *client.SendResult, err error) {
			defer wg.Done()
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var got, queues []string
	for _, b := range f.brokers {
		for _, r := range b.requests() {
			got = append(got, string(r.body))
			queues = append(queues, b.name+r.fields["e"])
		}
	}
	if !slices.Equal(got, want) || len(slices.Compact(queues)) != 1 {
		t.Errorf("bodies %q in queues %q, want %q in one", got, queues, want)
	}
}

// TestAFailedMessageIsNotOvertaken: those behind it fail as well, others don't.
func TestAFailedMessageIsNotOvertaken(t *testing.T) {
	f := startFake(t, 4, "a")
	held := make(chan struct{})
	f.brokers[0].do(func(n int, r fakeRequest) *remoting.Response {
		if string(r.body) == "bad" {
			<-held
			return refuse(protocol.MessageIllegal, "no")
		}
		return accepted(n, r)
	})
	p := newProducer(t, newClient(t, f.names))
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i, body := range []string{"bad", "behind", "behind"} {
		m := msg("k")
		m.Body = []byte(body)
		wg.Add(1)
		p.SendAsync(short(t), m, func(_ *client.SendResult, err error) { errs[i] = err; wg.Done() })
	}
	close(held)
	wg.Wait()
	var refused *client.Error
	if !errors.As(errs[0], &refused) || errors.Is(errs[0], client.ErrEarlierFailed) {
		t.Errorf("the first: %v", errs[0])
	}
	for _, err := range errs[1:3] {
		if !errors.Is(err, client.ErrEarlierFailed) || !client.Classify(err).Retriable || client.Classify(err).Unknown {
			t.Errorf("behind it: %v, %+v", err, client.Classify(err))
		}
	}
	if _, err := p.Send(short(t), msg("k")); err != nil { // the lane is free again
		t.Error(err)
	}
	if n := len(f.brokers[0].requests()); n != 2 {
		t.Errorf("%d requests: one overtook", n)
	}
}

func TestASlowBrokerIsAvoided(t *testing.T) {
	f := startFake(t, 1, "a", "b")
	f.brokers[0].do(func(int, fakeRequest) *remoting.Response { return refuse(protocol.SystemBusy, "busy") })
	p := newProducer(t, newClient(t, f.names), client.WithSlowBrokerAvoidance())
	for range 20 {
		if _, err := p.Send(short(t), msg("")); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(f.brokers[0].requests()); n != 1 {
		t.Errorf("the failing broker was asked %d times in 20 sends", n)
	}
}

// TestSendAsyncWaitsForRoom, and gives up with its context.
func TestSendAsyncWaitsForRoom(t *testing.T) {
	f := startFake(t, 1, "a")
	held := make(chan struct{})
	f.brokers[0].do(func(n int, r fakeRequest) *remoting.Response { <-held; return accepted(n, r) })
	p := newProducer(t, newClient(t, f.names), client.WithOutstanding(100, 10))
	done := make(chan error, 3)
	back := func(_ *client.SendResult, err error) { done <- err }
	m := msg("")
	m.Body = []byte("12345678")
	p.SendAsync(short(t), m, back)
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	m = msg("")
	m.Body = []byte("1234")
	p.SendAsync(ctx, m, back) // 8 + 4 > 10
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "room") {
		t.Errorf("error %v", err)
	}
	m = msg("")
	m.Body = []byte("12")
	p.SendAsync(short(t), m, back)
	close(held)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestCloseEndsWhatHangs: what goes on beyond Close's context fails with ErrClosed.
func TestCloseEndsWhatHangs(t *testing.T) {
	f := startFake(t, 1, "a")
	f.brokers[0].do(func(int, fakeRequest) *remoting.Response { return nil })
	p := newProducer(t, newClient(t, f.names))
	got := make(chan error, 2)
	go func() { _, err := p.Send(short(t), msg("k")); got <- err }()
	testkit.Eventually(t, 10*time.Second, "the message is on its way", func() bool { return len(f.brokers[0].requests()) == 1 })
	p.SendAsync(short(t), msg("k"), func(_ *client.SendResult, err error) { got <- err })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	for range 2 {
		if err := <-got; !errors.Is(err, client.ErrClosed) {
			t.Errorf("send: %v", err)
		}
	}
}

func TestALostConnectionIsMadeAnew(t *testing.T) {
	f := startFake(t, 1, "a")
	f.brokers[0].do(func(n int, r fakeRequest) *remoting.Response {
		if n == 2 {
			f.brokers[0].mu.Lock()
			defer f.brokers[0].mu.Unlock()
			f.brokers[0].conns[n-1].Close(nil)
			return nil
		}
		return accepted(n, r)
	})
	p := newProducer(t, newClient(t, f.names))
	for range 3 {
		if _, err := p.Send(short(t), msg("")); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(f.brokers[0].requests()); n != 4 {
		t.Errorf("%d requests, want 4", n)
	}
}

// TestBrokersKnowWhoIsThere: a producer made when the connection is there already is announced at once, and one that
// closes says goodbye.
func TestBrokersKnowWhoIsThere(t *testing.T) {
	f := startFake(t, 1, "a")
	b := f.brokers[0]
	c := newClient(t, f.names)
	if _, err := newProducer(t, c).Send(short(t), msg("")); err != nil {
		t.Fatal(err)
	}
	late, err := c.NewProducer("the-late-one")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 10*time.Second, "the broker hears of the new group", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return slices.ContainsFunc(b.beats, func(s string) bool { return strings.Contains(s, `"the-late-one"`) })
	})
	if err := late.Close(short(t)); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.byes, []string{"the-late-one"}) {
		t.Errorf("goodbyes %q", b.byes)
	}
}

// TestADeadBrokerDoesntHoldUpRequests: all brokers of the topic should know who asks, but one that is away costs little.
func TestADeadBrokerDoesntHoldUpRequests(t *testing.T) {
	f := startFake(t, 1, "a", "b")
	gone := f.brokers[1].addr
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never says a word
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f.brokers[1].addr = l.Addr().String()
	defer func() { f.brokers[1].addr = gone }()
	b := f.brokers[0]
	b.do(func(n int, r fakeRequest) *remoting.Response {
		b.push(t, protocol.PushReplyMessageToClient, map[string]string{"topic": "X_REPLY_TOPIC", "properties": "CORRELATION_ID\x01" + r.props["CORRELATION_ID"] + "\x02"}, []byte("re"))
		return accepted(n, r)
	})
	p := newProducer(t, newClient(t, f.names))
	to := client.ToQueue(client.MessageQueue{Topic: "T", Broker: "a"})
	for range 5 {
		if reply, err := p.Request(short(t), msg(""), to); err != nil || string(reply.Body) != "re" {
			t.Fatalf("%+v %v", reply, err)
		}
	}
}
