package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/internal/testkit"
)

func newProducer(t testing.TB, c *client.Client, opts ...client.ProducerOption) *client.Producer {
	t.Helper()
	p, err := c.NewProducer(unique(t, "g"), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// readAll reads n messages of a topic from its beginning; more of them within a moment are an error of the caller's.
func readAll(t testing.TB, c *client.Client, topic string, n int) []*client.Message {
	t.Helper()
	r, err := c.Read(short(t), topic, "*", client.Earliest)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out []*client.Message
	for range n {
		m, err := r.Next(short(t))
		if err != nil {
			t.Fatalf("%d of %d messages read: %v", len(out), n, err)
		}
		out = append(out, m)
	}
	return out
}

func TestSendKeepsEverythingOfAMessage(t *testing.T) {
	c := newClient(t, nameServer(t))
	p := newProducer(t, c)
	topic := unique(t, "t")
	m := &client.Message{Topic: topic, Tags: "标签", Keys: []string{"k1", "k2"}, Properties: map[string]string{"a": "1", "ü": "§"}, Body: []byte("body"), ShardingKey: "user-7"}
	res, err := p.Send(short(t), m)
	if err != nil {
		t.Fatal(err)
	}
	if res.Status != client.StatusOK || res.ID != m.ID || len(res.ID) < 32 || len(res.OffsetID) < 32 || res.TransactionID != m.ID || res.Topic != topic || res.MessageQueue().Broker == "" {
		t.Errorf("result %+v", res)
	}
	got := readAll(t, c, topic, 1)[0]
	if got.ID != m.ID || got.OffsetID != res.OffsetID || got.Tags != m.Tags || !slices.Equal(got.Keys, m.Keys) || !maps.Equal(got.Properties, m.Properties) ||
		string(got.Body) != "body" || got.ShardingKey != "user-7" || got.MessageQueue() != res.MessageQueue() || got.QueueOffset != res.QueueOffset {
		t.Errorf("got %+v, sent %+v", got, m)
	}
}

func TestBadMessagesAreRefusedWithWhatIsAllowed(t *testing.T) {
	c := newClient(t, nameServer(t))
	p := newProducer(t, c, client.WithMaxMessageSize(100))
	ok := func() *client.Message { return &client.Message{Topic: "T", Body: []byte("x")} }
	for want, change := range map[string]func(m *client.Message){
		"topic is empty":          func(m *client.Message) { m.Topic = "" },
		"127 are allowed":         func(m *client.Message) { m.Topic = strings.Repeat("t", 128) },
		"letters, digits":         func(m *client.Message) { m.Topic = "a b" },
		"belongs to the broker":   func(m *client.Message) { m.Topic = "SCHEDULE_TOPIC_XXXX" },
		"at least one byte":       func(m *client.Message) { m.Body = nil },
		"at most 100 are allowed": func(m *client.Message) { m.Body = make([]byte, 101) },
		"separate properties":     func(m *client.Message) { m.Tags = "a\x01b" },
		"is blank":                func(m *client.Message) { m.Tags = " " },
		"separate theirs by ||":   func(m *client.Message) { m.Tags = "a||b" },
		"no white space":          func(m *client.Message) { m.Keys = []string{"a b"} },
		"is not empty":            func(m *client.Message) { m.Keys = []string{"a", ""} },
		"may be blank":            func(m *client.Message) { m.Properties = map[string]string{"a": " "} },
		"belongs to RocketMQ":     func(m *client.Message) { m.Properties = map[string]string{"UNIQ_KEY": "1"} },
		`property "a\x02"`:        func(m *client.Message) { m.Properties = map[string]string{"a\x02": "1"} },
		"at most 32767":           func(m *client.Message) { m.Properties = map[string]string{"a": strings.Repeat("v", 32767)} },
		"sharding key":            func(m *client.Message) { m.ShardingKey = "\x01" },
		"allowed are 0 (none)":    func(m *client.Message) { m.DelayLevel = -1 },
		"exclude each other":      func(m *client.Message) { m.DelayLevel, m.DeliverAt = 1, time.Now() },
	} {
		m := ok()
		change(m)
		calls := map[string]func() error{
			"Send":       func() error { _, err := p.Send(short(t), m); return err },
			"SendOneWay": func() error { return p.SendOneWay(short(t), m) },
			"SendBatch":  func() error { _, err := p.SendBatch(short(t), []*client.Message{m}); return err },
			"SendAsync": func() error {
				got := make(chan error, 1)
				p.SendAsync(short(t), m, func(_ *client.SendResult, err error) { got <- err })
				return <-got
			},
			"Request": func() error { _, err := p.Request(short(t), m); return err },
		}
		for call, f := range calls {
			if err := f(); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want ErrInvalid with %q", call, err, want)
			}
		}
	}
	if _, err := p.Send(short(t), nil); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("nil: %v", err)
	}
}

func TestBadProducersAreRefused(t *testing.T) {
	c := newClient(t, "127.0.0.1:1")
	for want, f := range map[string]func() (*client.Producer, error){
		"group is empty":     func() (*client.Producer, error) { return c.NewProducer("") },
		"default group":      func() (*client.Producer, error) { return c.NewProducer("DEFAULT_PRODUCER") },
		"WithRetries":        func() (*client.Producer, error) { return c.NewProducer("g", client.WithRetries(-1)) },
		"WithSendTimeout":    func() (*client.Producer, error) { return c.NewProducer("g", client.WithSendTimeout(0)) },
		"WithAttemptTimeout": func() (*client.Producer, error) { return c.NewProducer("g", client.WithAttemptTimeout(-1)) },
		"level 10": func() (*client.Producer, error) {
			return c.NewProducer("g", client.WithCompression(client.ZSTD, 0, 10))
		},
		"kind 9":          func() (*client.Producer, error) { return c.NewProducer("g", client.WithCompression(9, 0, 1)) },
		"WithOutstanding": func() (*client.Producer, error) { return c.NewProducer("g", client.WithOutstanding(0, 1)) },
		"WithAutoBatch":   func() (*client.Producer, error) { return c.NewProducer("g", client.WithAutoBatch(0, 1)) },
		"already": func() (*client.Producer, error) {
			if _, err := c.NewProducer("twice"); err != nil {
				t.Fatal(err)
			}
			return c.NewProducer("twice")
		},
	} {
		if _, err := f(); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ErrInvalid with %q", err, want)
		}
	}
}

func TestRoundRobinUsesAllQueuesOfEachTopic(t *testing.T) {
	c := newClient(t, nameServer(t))
	p := newProducer(t, c)
	topics := []string{unique(t, "a"), unique(t, "b")}
	seen := map[client.MessageQueue]int{}
	for _, topic := range topics {
		warm(t, p, topic)
	}
	for range 16 {
		for _, topic := range topics { // in turn: one counter for both would leave out every second queue
			res, err := p.Send(short(t), &client.Message{Topic: topic, Body: []byte("x")})
			if err != nil {
				t.Fatal(err)
			}
			seen[res.MessageQueue()]++
		}
	}
	for _, topic := range topics {
		qs, err := p.Queues(short(t), topic)
		if err != nil {
			t.Fatal(err)
		}
		if len(qs) < 2 {
			t.Fatalf("topic has %d queues", len(qs))
		}
		for _, q := range qs {
			if seen[q] != 16/len(qs) {
				t.Errorf("queue %s got %d of 16", q, seen[q])
			}
		}
	}
}

// warm makes a topic and waits until its route is known.
func warm(t testing.TB, p *client.Producer, topic string) []client.MessageQueue {
	t.Helper()
	if _, err := p.Send(short(t), &client.Message{Topic: topic, Body: []byte("warm")}); err != nil {
		t.Fatal(err)
	}
	var qs []client.MessageQueue
	testkit.Eventually(t, 20*time.Second, "the route of "+topic, func() bool {
		var err error
		qs, err = p.Queues(short(t), topic)
		return err == nil && len(qs) > 0
	})
	return qs
}

func TestKeysGoToTheQueueThatJavaTakes(t *testing.T) {
	// Java's hashCode of each key, and |hash % 8|.
	queues := make([]client.MessageQueue, 8)
	for key, want := range map[string]int{"TagA": 7, "order-created": 7, "测试": 2, "polygenelubricants": 0, "a": 1, "": 0} {
		if got := client.HashQueue(&client.Message{ShardingKey: key}, queues); got != want {
			t.Errorf("key %q: queue %d, Java takes %d", key, got, want)
		}
	}
	c := newClient(t, nameServer(t))
	p := newProducer(t, c)
	topic := unique(t, "t")
	qs := warm(t, p, topic)
	for i := range 20 {
		m := &client.Message{Topic: topic, ShardingKey: fmt.Sprint("key", i%5), Body: []byte("x")}
		res, err := p.Send(short(t), m)
		if err != nil {
			t.Fatal(err)
		}
		if want := qs[client.HashQueue(m, qs)]; res.MessageQueue() != want {
			t.Errorf("key %s went to %s, want %s", m.ShardingKey, res.MessageQueue(), want)
		}
	}
}

func TestQueuesCanBeChosen(t *testing.T) {
	c := newClient(t, nameServer(t))
	last := func(_ *client.Message, qs []client.MessageQueue) int { return len(qs) - 1 }
	p := newProducer(t, c, client.WithQueueSelector(last))
	topic := unique(t, "t")
	qs := warm(t, p, topic)
	send := func(opts ...client.SendOption) (client.MessageQueue, error) {
		res, err := p.Send(short(t), &client.Message{Topic: topic, ShardingKey: "k", Body: []byte("x")}, opts...)
		if err != nil {
			return client.MessageQueue{}, err
		}
		return res.MessageQueue(), nil
	}
	for range 3 {
		if q, err := send(); q != qs[len(qs)-1] || err != nil {
			t.Errorf("the producer's selector: %s %v", q, err)
		}
		if q, err := send(client.ToQueue(qs[1])); q != qs[1] || err != nil {
			t.Errorf("ToQueue: %s %v", q, err)
		}
		if q, err := send(client.SelectQueue(func(*client.Message, []client.MessageQueue) int { return 0 })); q != qs[0] || err != nil {
			t.Errorf("SelectQueue: %s %v", q, err)
		}
	}
	for want, opts := range map[string][]client.SendOption{
		"queue index 99":     {client.SelectQueue(func(*client.Message, []client.MessageQueue) int { return 99 })},
		"not one of the":     {client.ToQueue(client.MessageQueue{Topic: "other", Broker: "b"})},
		"exclude each other": {client.ToQueue(qs[0]), client.SelectQueue(client.RandomQueue)},
		"at least 0":         {client.ToQueue(client.MessageQueue{Topic: topic, Broker: "b", ID: -1})},
	} {
		if _, err := send(opts...); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ErrInvalid with %q", err, want)
		}
	}
}

func TestBodiesAreCompressedOnTheWayOnly(t *testing.T) {
	c := newClient(t, nameServer(t))
	topic := unique(t, "t")
	body := bytes.Repeat([]byte("a line that compresses well\n"), 1000)
	sent := 0
	for _, kind := range []client.Compression{client.NoCompression, client.ZLIB, client.LZ4, client.ZSTD} {
		for _, level := range []int{0, 1, 9} {
			p := newProducer(t, c, client.WithCompression(kind, 4096, level))
			m := &client.Message{Topic: topic, Properties: map[string]string{"kind": fmt.Sprint(kind, level)}, Body: body}
			if _, err := p.Send(short(t), m); err != nil {
				t.Fatal(kind, level, err)
			}
			if !bytes.Equal(m.Body, body) {
				t.Error("the caller's body changed")
			}
			sent++
		}
	}
	for _, m := range readAll(t, c, topic, sent) {
		if !bytes.Equal(m.Body, body) {
			t.Errorf("%s: body of %d bytes, want %d", m.Properties["kind"], len(m.Body), len(body))
		}
	}
}

func TestSendAsyncCallsBackOnceForEach(t *testing.T) {
	c := newClient(t, nameServer(t))
	p := newProducer(t, c, client.WithOutstanding(8, 1<<20))
	topic := unique(t, "t")
	const n = 500
	var mu sync.Mutex
	calls := map[int]int{}
	ids := map[string]bool{}
	for i := range n {
		p.SendAsync(short(t), &client.Message{Topic: topic, Body: fmt.Appendf(nil, "%d", i)}, func(res *client.SendResult, err error) {
			mu.Lock()
			defer mu.Unlock()
			calls[i]++
			if err != nil {
				t.Errorf("message %d: %v", i, err)
				return
			}
			ids[res.ID] = true
		})
	}
	if err := p.Close(short(t)); err != nil { // waits for all callbacks
		t.Fatal(err)
	}
	for i := range n {
		if calls[i] != 1 {
			t.Errorf("message %d: %d callbacks", i, calls[i])
		}
	}
	for _, m := range readAll(t, c, topic, n) {
		delete(ids, m.ID)
	}
	if len(ids) != 0 {
		t.Errorf("%d acknowledged messages are not there", len(ids))
	}
	got := make(chan error, 1)
	p.SendAsync(short(t), &client.Message{Topic: topic, Body: []byte("x")}, func(_ *client.SendResult, err error) { got <- err })
	if err := <-got; !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := p.Send(short(t), &client.Message{Topic: topic, Body: []byte("x")}); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestAPanicInACallbackEndsNothing(t *testing.T) {
	c := newClient(t, nameServer(t))
	p := newProducer(t, c)
	topic := unique(t, "t")
	p.SendAsync(short(t), &client.Message{Topic: topic, Body: []byte("x")}, func(*client.SendResult, error) { panic("of the callback") })
	got := make(chan error, 1)
	p.SendAsync(short(t), &client.Message{Topic: topic, Body: []byte("x")}, func(_ *client.SendResult, err error) { got <- err },
		client.SelectQueue(func(*client.Message, []client.MessageQueue) int { panic("of the selector") }))
	if err := <-got; err == nil || !strings.Contains(err.Error(), "of the selector") {
		t.Errorf("error %v", err)
	}
	for range 2 { // the key's lane is free again, too
		_, err := p.Send(short(t), &client.Message{Topic: topic, ShardingKey: "k", Body: []byte("x")},
			client.SelectQueue(func(*client.Message, []client.MessageQueue) int { panic("of the selector") }))
		if err == nil || !strings.Contains(err.Error(), "of the selector") {
			t.Errorf("error %v", err)
		}
	}
	if _, err := p.Send(short(t), &client.Message{Topic: topic, Body: []byte("x")}); err != nil {
		t.Error(err)
	}
}

func TestSendOneWayArrives(t *testing.T) {
	c := newClient(t, nameServer(t))
	p := newProducer(t, c)
	topic := unique(t, "t")
	warm(t, p, topic)
	for range 10 {
		if err := p.SendOneWay(short(t), &client.Message{Topic: topic, Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	readAll(t, c, topic, 11)
}

func TestABatchIsSplitBySizeAndMembersKeepIDs(t *testing.T) {
	c := newClient(t, nameServer(t))
	var attempts int
	p := newProducer(t, c, client.WithBatchSize(10_000), client.WithProducerHooks(client.ProducerHooks{Attempt: func(client.Attempt) { attempts++ }}))
	topic := unique(t, "t")
	var ms []*client.Message
	for i := range 50 {
		ms = append(ms, &client.Message{Topic: topic, Tags: fmt.Sprint("T", i%3), Keys: []string{fmt.Sprint("k", i)}, Body: bytes.Repeat([]byte{byte(i + 1)}, 1000)})
	}
	ms = append(ms, &client.Message{Topic: topic, Body: make([]byte, 20_000)}) // larger than a batch: goes alone
	results, err := p.SendBatch(short(t), ms)
	if err != nil {
		t.Fatal(err)
	}
	if attempts < 6 || attempts > 8 {
		t.Errorf("%d requests, want 7 or so", attempts)
	}
	byID := map[string]*client.Message{}
	for _, m := range readAll(t, c, topic, len(ms)) {
		byID[m.ID] = m
	}
	for i, m := range ms {
		res := results[i]
		got := byID[m.ID]
		if got == nil {
			t.Fatalf("message %d: id %s isn't there", i, m.ID)
		}
		if res.ID != m.ID || res.OffsetID != got.OffsetID || res.MessageQueue() != got.MessageQueue() || res.QueueOffset != got.QueueOffset || !bytes.Equal(got.Body, m.Body) || got.Tags != m.Tags {
			t.Errorf("message %d: result %+v, read %s %s %d", i, res, got.OffsetID, got.MessageQueue(), got.QueueOffset)
		}
	}
}

func TestBatchRules(t *testing.T) {
	c := newClient(t, nameServer(t))
	p := newProducer(t, c)
	a := func(change func(*client.Message)) *client.Message {
		m := &client.Message{Topic: "T", Body: []byte("x")}
		change(m)
		return m
	}
	same := func(*client.Message) {}
	for want, ms := range map[string][]*client.Message{
		"holds no message":   nil,
		"has one topic":      {a(same), a(func(m *client.Message) { m.Topic = "U" })},
		"message 1 is del":   {a(same), a(func(m *client.Message) { m.DelayLevel = 1 })},
		"message 0 is del":   {a(func(m *client.Message) { m.DeliverAt = time.Now() })},
		"goes to one queue":  {a(same), a(func(m *client.Message) { m.ShardingKey = "k" })},
		"takes no batches":   {a(func(m *client.Message) { m.Topic = "%RETRY%g" })},
		"message 1: invalid": {a(same), a(func(m *client.Message) { m.Body = nil })},
	} {
		if _, err := p.SendBatch(short(t), ms); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ErrInvalid with %q", err, want)
		}
	}
}

func TestAutoBatchGathersAndAnswersEach(t *testing.T) {
	c := newClient(t, nameServer(t))
	var mu sync.Mutex
	attempts := 0
	p := newProducer(t, c, client.WithAutoBatch(20*time.Millisecond, 8<<10), client.WithProducerHooks(client.ProducerHooks{Attempt: func(client.Attempt) {
		mu.Lock()
		defer mu.Unlock()
		attempts++
	}}))
	topic := unique(t, "t")
	warm(t, p, topic)
	const n = 200
	var wg sync.WaitGroup
	ids := map[string]bool{}
	for i := range n {
		wg.Add(1)
		m := &client.Message{Topic: topic, Tags: fmt.Sprint("T", i%2), Body: bytes.Repeat([]byte("x"), 100)}
		p.SendAsync(short(t), m, func(res *client.SendResult, err error) {
			defer wg.Done()
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if res.ID != m.ID || ids[res.ID] {
				t.Errorf("id %s of message %s", res.ID, m.ID)
			}
			ids[res.ID] = true
		})
	}
	wg.Wait()
	if attempts > n/4 {
		t.Errorf("%d requests for %d messages", attempts, n)
	}
	for _, m := range readAll(t, c, topic, n+1) {
		delete(ids, m.ID)
	}
	if len(ids) > 0 {
		t.Errorf("%d messages are not there", len(ids))
	}
}

func TestTimerRefusalComesThrough(t *testing.T) {
	onlyApogee(t, "a Java 5 broker delivers at any time")
	c := newClient(t, nameServer(t))
	p := newProducer(t, c)
	_, err := p.Send(short(t), &client.Message{Topic: unique(t, "t"), DeliverAt: time.Now().Add(time.Hour), Body: []byte("x")})
	var refused *client.Error
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "timer message is not enabled") || !strings.Contains(err.Error(), "delay level") {
		t.Errorf("error %v", err)
	}
}

func TestDelayLevelDelays(t *testing.T) {
	c := newClient(t, nameServer(t))
	p := newProducer(t, c)
	topic := unique(t, "t")
	warm(t, p, topic)
	begin := time.Now()
	if _, err := p.Send(short(t), &client.Message{Topic: topic, DelayLevel: 1, Body: []byte("later")}); err != nil {
		t.Fatal(err)
	}
	readAll(t, c, topic, 2)
	if took := time.Since(begin); took < 900*time.Millisecond {
		t.Errorf("delivered after %s, level 1 is 1 s", took)
	}
}

// TestCloseSendsWhatIsGathered: a batch that would wait for half a minute goes when the producer closes.
func TestCloseSendsWhatIsGathered(t *testing.T) {
	c := newClient(t, nameServer(t))
	p := newProducer(t, c, client.WithAutoBatch(30*time.Second, 1<<20))
	topic := unique(t, "t")
	got := make(chan error, 3)
	for range 3 {
		p.SendAsync(short(t), &client.Message{Topic: topic, Body: []byte("x")}, func(_ *client.SendResult, err error) { got <- err })
	}
	if err := p.Close(short(t)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
	readAll(t, c, topic, 3)
}

func TestNamespaceIsPutOnAndTakenOff(t *testing.T) {
	addr := nameServer(t)
	inside, outside := newClient(t, addr, client.WithNamespace("MQ_INST_1_a")), newClient(t, addr)
	topic := unique(t, "t")
	m := &client.Message{Topic: topic, Body: []byte("x")}
	res, err := newProducer(t, inside).Send(short(t), m)
	if err != nil {
		t.Fatal(err)
	}
	if m.Topic != topic || res.Topic != topic {
		t.Errorf("the message's topic became %s, the result's %s", m.Topic, res.Topic)
	}
	if got := readAll(t, inside, topic, 1)[0]; got.Topic != topic || got.ID != m.ID {
		t.Errorf("%+v", got)
	}
	if got := readAll(t, outside, "MQ_INST_1_a%"+topic, 1)[0]; got.ID != m.ID {
		t.Errorf("%+v", got)
	}
}

// TestHooksSeeEachSend, of whatever kind.
func TestHooksSeeEachSend(t *testing.T) {
	c := newClient(t, nameServer(t))
	var mu sync.Mutex
	var seen []string
	p := newProducer(t, c, client.WithProducerHooks(client.ProducerHooks{
		Send: func(ctx context.Context, ms []*client.Message, next func(context.Context) ([]*client.SendResult, error)) error {
			for _, m := range ms {
				m.Properties = map[string]string{"traceparent": "00-1"}
			}
			res, err := next(ctx)
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprintf("%d messages, %d results, error %v", len(ms), len(res), err != nil))
			return err
		},
	}))
	topic := unique(t, "t")
	m := func() *client.Message { return &client.Message{Topic: topic, Body: []byte("x")} }
	if _, err := p.Send(short(t), m()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.SendBatch(short(t), []*client.Message{m(), m()}); err != nil {
		t.Fatal(err)
	}
	p.SendAsync(short(t), m(), nil)
	if err := p.SendOneWay(short(t), m()); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(short(t)); err != nil {
		t.Fatal(err)
	}
	slices.Sort(seen)
	if want := []string{"1 messages, 1 results, error false", "1 messages, 1 results, error false", "1 messages, 1 results, error false", "2 messages, 2 results, error false"}; !slices.Equal(seen, want) {
		t.Errorf("hook saw %q", seen)
	}
	for _, m := range readAll(t, c, topic, 5) {
		if m.Properties["traceparent"] != "00-1" {
			t.Errorf("a message without the hook's property: %+v", m)
		}
	}
}

func TestOrderByKeyHoldsWithManySenders(t *testing.T) {
	c := newClient(t, nameServer(t))
	p := newProducer(t, c)
	topic := unique(t, "t")
	warm(t, p, topic)
	const keys, each = 5, 60
	for i := range each {
		for k := range keys {
			p.SendAsync(short(t), &client.Message{Topic: topic, ShardingKey: fmt.Sprint("k", k), Body: fmt.Appendf(nil, "%d", i)}, func(_ *client.SendResult, err error) {
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	if err := p.Close(short(t)); err != nil {
		t.Fatal(err)
	}
	next := map[string]int{}
	for _, m := range readAll(t, c, topic, keys*each+1) {
		if m.ShardingKey == "" {
			continue
		}
		if want := fmt.Sprint(next[m.ShardingKey]); string(m.Body) != want {
			t.Fatalf("key %s: message %s where %s is due", m.ShardingKey, m.Body, want)
		}
		next[m.ShardingKey]++
	}
}
