package client_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apogeemq/apogee/apogeetest"
	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/testkit"
)

const patience = 15 * time.Second

// inbox counts what handlers got, by body.
type inbox struct {
	mu   sync.Mutex
	seen map[string]int
	last []string
}

func (b *inbox) handle(_ context.Context, m *client.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen == nil {
		b.seen = map[string]int{}
	}
	b.seen[string(m.Body)]++
	b.last = append(b.last, string(m.Body))
	return nil
}

func (b *inbox) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.seen)
}

func (b *inbox) times(body string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen[body]
}

func (b *inbox) twice() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for k, n := range b.seen {
		if n > 1 {
			out = append(out, fmt.Sprintf("%s ×%d", k, n))
		}
	}
	return out
}

// named returns a topic's or group's name of this test, since servers may be shared.
func named(t testing.TB, what string) string {
	return fmt.Sprintf("%s-%s-%d", what, strings.ReplaceAll(t.Name(), "/", "_"), os.Getpid())
}

// send sends messages with the given bodies to a topic, of 4 queues when it is new.
func send(t testing.TB, c *client.Client, topic string, bodies ...string) {
	t.Helper()
	sendNew(t, c, topic, 4, bodies...)
}

// sendNew sends to a topic that gets so many queues when it is new.
func sendNew(t testing.TB, c *client.Client, topic string, queues int, bodies ...string) {
	t.Helper()
	p, err := c.NewProducer("test-producer", client.WithNewTopicQueues(queues))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(short(t))
	for _, b := range bodies {
		if _, err := p.Send(short(t), &client.Message{Topic: topic, Body: []byte(b)}); err != nil {
			t.Fatal(err)
		}
	}
}

func numbered(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(prefix, i)
	}
	return out
}

func start(t testing.TB, c *client.Client, group string, opts ...client.ConsumerOption) *client.Consumer {
	t.Helper()
	co, err := c.NewConsumer(group, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if err := co.Start(short(t)); err != nil {
		t.Fatal(err)
	}
	return co
}

func TestConsumeAndGoOn(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	send(t, c, named(t, "Orders"), numbered("a", 200)...)
	var got inbox
	co := start(t, newClient(t, ns), named(t, "g"), client.WithHandler(named(t, "Orders"), client.All, got.handle), client.WithFrom(client.FromEarliest))
	testkit.Eventually(t, patience, "200 messages", func() bool { return got.count() == 200 })
	if err := co.Close(short(t)); err != nil {
		t.Fatal(err)
	}
	send(t, c, named(t, "Orders"), numbered("b", 50)...)
	start(t, newClient(t, ns), named(t, "g"), client.WithHandler(named(t, "Orders"), client.All, got.handle), client.WithFrom(client.FromEarliest))
	testkit.Eventually(t, patience, "250 messages", func() bool { return got.count() == 250 })
	if d := got.twice(); d != nil {
		t.Errorf("twice: %v", d)
	}
}

func TestTags(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	p, err := c.NewProducer("p")
	if err != nil {
		t.Fatal(err)
	}
	for i, tag := range []string{"A", "B", "", "Aa", "BB", "A"} { // Aa and BB share a hash
		if _, err := p.Send(short(t), &client.Message{Topic: named(t, "Tagged"), Tags: tag, Body: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
	}
	var got inbox
	start(t, c, named(t, "g"), client.WithHandler(named(t, "Tagged"), client.Tags("A || BB"), got.handle), client.WithFrom(client.FromEarliest))
	testkit.Eventually(t, patience, "three messages", func() bool { return got.count() == 3 })
	if !maps.Equal(got.seen, map[string]int{"0": 1, "4": 1, "5": 1}) {
		t.Error(got.seen)
	}
}

func TestLatest(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	send(t, c, named(t, "Old"), "before")
	var got inbox
	start(t, newClient(t, ns), named(t, "g"), client.WithHandler(named(t, "Old"), client.All, got.handle), client.WithHandler(named(t, "New"), client.All, got.handle),
		client.WithRebalanceInterval(100*time.Millisecond))
	send(t, c, named(t, "Old"), "after")
	send(t, c, named(t, "New"), "first of a new topic")
	testkit.Eventually(t, patience, "both messages", func() bool { return got.count() >= 2 })
	if got.times("before") != 0 || got.times("after") != 1 || got.times("first of a new topic") != 1 {
		t.Error(got.seen)
	}
}

func TestRetriesAndDeadLetters(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	var attempts atomic.Int32
	var dead atomic.Value
	var lettered inbox
	co := start(t, c, named(t, "g"), client.WithMaxAttempts(3), client.WithBackoff(func(int) time.Duration { return time.Second }),
		client.WithHandler(named(t, "Bad"), client.All, func(_ context.Context, m *client.Message) error {
			if m.Topic != named(t, "Bad") || int32(m.Retries)+1 != attempts.Add(1) {
				t.Errorf("topic %s, %d retries, attempt %d", m.Topic, m.Retries, attempts.Load())
			}
			if m.Retries == 1 {
				panic("the second time")
			}
			return errors.New("no")
		}),
		client.WithConsumerHooks(client.ConsumerHooks{DeadLettered: func(m *client.Message, err error) { dead.Store(m.ID) }}))
	send(t, c, named(t, "Bad"), "x")
	testkit.Eventually(t, patience, "the message in the dead-letter queue", func() bool { return dead.Load() != nil })
	if attempts.Load() != 3 {
		t.Errorf("%d attempts", attempts.Load())
	}
	start(t, newClient(t, ns), named(t, "undertaker"), client.WithHandler("%DLQ%"+named(t, "g"), client.All, lettered.handle), client.WithFrom(client.FromEarliest))
	testkit.Eventually(t, patience, "the dead letter", func() bool { return lettered.times("x") == 1 })
	if err := co.Close(short(t)); err != nil {
		t.Fatal(err)
	}
}

func TestOrdered(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	sendNew(t, c, named(t, "Steps"), 1, numbered("", 9)...)
	var mu sync.Mutex
	var calls []string
	dead := make(chan string, 1)
	start(t, c, named(t, "g"), client.WithOrdered(), client.WithFrom(client.FromEarliest), client.WithMaxAttempts(3), client.WithBatch(4),
		client.WithBackoff(func(int) time.Duration { return 10 * time.Millisecond }),
		client.WithConsumerHooks(client.ConsumerHooks{DeadLettered: func(m *client.Message, _ error) { dead <- string(m.Body) }}),
		client.WithHandler(named(t, "Steps"), client.All, func(_ context.Context, m *client.Message) error {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, string(m.Body))
			if string(m.Body) == "5" {
				return errors.New("never")
			}
			return nil
		}))
	testkit.Eventually(t, patience, "the last message", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(calls) > 0 && calls[len(calls)-1] == "8"
	})
	if got := strings.Join(calls, " "); got != "0 1 2 3 4 5 5 5 6 7 8" {
		t.Error(got)
	}
	if got := <-dead; got != "5" {
		t.Error(got)
	}
}

// TestHandover lets consumers come and go under load: nothing is handled twice, nothing is missed.
func TestHandover(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	sendNew(t, c, named(t, "Moving"), 16, "warm-up")
	var got inbox
	join := func() *client.Consumer {
		return start(t, newClient(t, ns), named(t, "g"), client.WithFrom(client.FromEarliest), client.WithHandler(named(t, "Moving"), client.All, func(ctx context.Context, m *client.Message) error {
			select { // work that takes a moment, so that there is always some under way
			case <-time.After(2 * time.Millisecond):
			case <-ctx.Done():
			}
			return got.handle(ctx, m)
		}))
	}
	stop, sent := make(chan struct{}), make(chan int)
	go func() {
		p, err := c.NewProducer("p")
		if err != nil {
			t.Error(err)
		}
		n := 0
		for ; n < 20_000; n++ {
			select {
			case <-stop:
				sent <- n
				return
			default:
			}
			if _, err := p.Send(short(t), &client.Message{Topic: named(t, "Moving"), Body: fmt.Append(nil, n)}); err != nil {
				t.Error(err)
			}
		}
		sent <- n
	}()
	members := []*client.Consumer{join()}
	for range 3 {
		members = append(members, join())
		before := got.count()
		testkit.Eventually(t, patience, "progress after a join", func() bool { return got.count() > before+200 })
	}
	for len(members) > 1 {
		if err := members[0].Close(short(t)); err != nil {
			t.Fatal(err)
		}
		members = members[1:]
		before := got.count()
		testkit.Eventually(t, patience, "progress after a leave", func() bool { return got.count() > before+200 })
	}
	close(stop)
	n := <-sent
	testkit.Eventually(t, patience, "all messages", func() bool { return got.count() == n+1 })
	if d := got.twice(); d != nil {
		t.Errorf("%d of %d handled twice: %v", len(d), n, d[:min(len(d), 10)])
	}
}

func TestHungMessageHoldsBackNobody(t *testing.T) {
	onlyApogee(t, "the server restarts, or drops its connections")
	s := apogeetest.Start(t)
	c := newClient(t, s.NameServer())
	sendNew(t, c, named(t, "Hung"), 1, numbered("", 300)...)
	release := make(chan struct{})
	var got inbox
	first := newClient(t, s.NameServer())
	co := start(t, first, named(t, "g"), client.WithFrom(client.FromEarliest), client.WithQueueLimits(50, 1<<20), client.WithHandler(named(t, "Hung"), client.All, func(ctx context.Context, m *client.Message) error {
		if string(m.Body) == "7" {
			<-release
			return errors.New("never done")
		}
		return got.handle(ctx, m)
	}))
	testkit.Eventually(t, patience, "all but the one that hangs", func() bool { return got.count() == 299 })
	testkit.Eventually(t, patience, "a reason", func() bool {
		return slices.ContainsFunc(co.Status(), func(q client.QueueStatus) bool {
			return strings.Contains(q.Reason, "handler running for") && q.InFlight == 1 && q.Lag == 293
		})
	})
	// It is gone without a word: what another one gets is only what wasn't done.
	testkit.Eventually(t, patience, "the offset on the broker", func() bool { return committedThrough(t, co) })
	s.DropConnections()
	bye, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := co.Close(bye); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close with a handler that hangs: %v", err)
	}
	var again inbox
	start(t, newClient(t, s.NameServer()), named(t, "g"), client.WithFrom(client.FromEarliest), client.WithHandler(named(t, "Hung"), client.All, again.handle))
	testkit.Eventually(t, patience, "the one that hung", func() bool { return again.times("7") == 1 })
	send(t, c, named(t, "Hung"), "next")
	testkit.Eventually(t, patience, "the next one", func() bool { return again.times("next") == 1 })
	if again.count() != 2 {
		t.Errorf("%d messages came again: %v", again.count()-2, again.last)
	}
	close(release)
	if err := first.Close(short(t)); err != nil {
		t.Error(err)
	}
}

// committedThrough reports whether the broker was told of everything.
func committedThrough(t testing.TB, co *client.Consumer) bool {
	for _, q := range co.Status() {
		if q.Queue.Topic == named(t, "Hung") && (q.Committed != 7 || q.Next != 300) {
			return false
		}
	}
	return true
}

func TestBroadcast(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	send(t, c, named(t, "News"), numbered("", 20)...)
	dir := t.TempDir()
	join := func(instance string, b *inbox) (*client.Client, *client.Consumer) {
		own := newClient(t, ns)
		return own, start(t, own, named(t, "g"), client.WithBroadcast(), client.WithOffsetsDir(dir, instance), client.WithFrom(client.FromEarliest), client.WithHandler(named(t, "News"), client.All, b.handle))
	}
	var a, b inbox
	_, one := join("one", &a)
	join("two", &b)
	testkit.Eventually(t, patience, "everything twice", func() bool { return a.count() == 20 && b.count() == 20 })
	other := newClient(t, ns)
	third, err := other.NewConsumer(named(t, "g"), client.WithBroadcast(), client.WithOffsetsDir(dir, "two"), client.WithHandler(named(t, "News"), client.All, b.handle))
	if err != nil {
		t.Fatal(err)
	}
	if err := third.Start(short(t)); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("a second consumer of one file: %v", err)
	}
	if err := one.Close(short(t)); err != nil {
		t.Fatal(err)
	}
	send(t, c, named(t, "News"), "later")
	join("one", &a)
	testkit.Eventually(t, patience, "what came later", func() bool { return a.times("later") == 1 && b.times("later") == 1 })
	if a.twice() != nil || b.twice() != nil {
		t.Errorf("twice: %v %v", a.twice(), b.twice())
	}
}

func TestServerRestarts(t *testing.T) {
	onlyApogee(t, "the server restarts, or drops its connections")
	s := apogeetest.Start(t)
	c := newClient(t, s.NameServer())
	var got inbox
	start(t, c, named(t, "g"), client.WithHandler(named(t, "Again"), client.All, got.handle))
	send(t, c, named(t, "Again"), "one")
	testkit.Eventually(t, patience, "the first message", func() bool { return got.times("one") == 1 })
	for i := range 2 {
		s.Restart()
		body := fmt.Sprint("after restart ", i)
		send(t, c, named(t, "Again"), body)
		testkit.Eventually(t, patience, body, func() bool { return got.times(body) == 1 })
	}
	s.DropConnections()
	send(t, c, named(t, "Again"), "after a reset")
	testkit.Eventually(t, patience, "the message after a reset", func() bool { return got.times("after a reset") == 1 })
	if d := got.twice(); d != nil {
		t.Errorf("twice: %v", d)
	}
}

func TestPauseAndStatus(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	var got inbox
	co := start(t, c, named(t, "g"), client.WithHandler(named(t, "Paused"), client.All, got.handle))
	send(t, c, named(t, "Paused"), "one")
	testkit.Eventually(t, patience, "the first message", func() bool { return got.count() == 1 })
	co.Pause()
	send(t, c, named(t, "Paused"), numbered("later", 4)...)
	testkit.Eventually(t, patience, "a reason for each queue", func() bool {
		n := 0
		for _, q := range co.Status() {
			if q.Queue.Topic == named(t, "Paused") && q.Reason == "paused" && q.Owner == c.ID() && q.Mine {
				n++
			}
		}
		return n == 4
	})
	if got.count() != 1 {
		t.Error("handled while paused")
	}
	co.Resume()
	testkit.Eventually(t, patience, "the rest", func() bool { return got.count() == 5 })
}

func TestPoller(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	sendNew(t, c, named(t, "Polled"), 2, numbered("", 100)...)
	poll := func(p *client.Poller, want int) map[string]int {
		seen := map[string]int{}
		for n := 0; n < want; {
			ms, err := p.Poll(short(t))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range ms {
				seen[string(m.Body)]++
			}
			n += len(ms)
		}
		return seen
	}
	open := func(c *client.Client) *client.Poller {
		p, err := c.NewPoller(named(t, "g"), client.WithSubscription(named(t, "Polled"), client.All), client.WithFrom(client.FromEarliest))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(short(t)); err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := open(c)
	if seen := poll(p, 100); len(seen) != 100 {
		t.Errorf("%d messages", len(seen))
	}
	if err := p.Close(short(t)); err != nil { // nothing was committed
		t.Fatal(err)
	}
	p = open(c)
	if seen := poll(p, 100); len(seen) != 100 {
		t.Errorf("%d messages after a close without a commit", len(seen))
	}
	if err := p.CommitSync(short(t)); err != nil {
		t.Fatal(err)
	}
	queues, err := c.Queues(short(t), named(t, "Polled"))
	if err != nil || len(queues) != 2 {
		t.Fatal(queues, err)
	}
	if err := p.Seek(queues[0], 40); err != nil {
		t.Fatal(err)
	}
	if seen := poll(p, 10); len(seen) != 10 {
		t.Errorf("%d messages after a seek", len(seen))
	}
	p.Commit()
	if err := p.Close(short(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Poll(short(t)); !errors.Is(err, client.ErrClosed) {
		t.Error(err)
	}
	// Whatever a group does: assigned queues are read by whoever wants to.
	p, err = c.NewPoller(named(t, "assigned"), client.WithFrom(client.FromEarliest))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(short(t)); err != nil {
		t.Fatal(err)
	}
	if err := p.Assign(short(t), queues[1]); err != nil {
		t.Fatal(err)
	}
	if seen := poll(p, 50); len(seen) != 50 {
		t.Errorf("%d messages of one queue", len(seen))
	}
}

func TestFiftyClientsHaveFiftyIDs(t *testing.T) {
	ids := map[string]bool{}
	for range 50 {
		ids[newClient(t, "127.0.0.1:1").ID()] = true
	}
	if len(ids) != 50 {
		t.Errorf("%d ids", len(ids))
	}
}

// TestCloseDuringStart: a consumer that goes before it knows where to begin leaves the group's offsets alone.
func TestCloseDuringStart(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	send(t, c, named(t, "Brief"), numbered("", 40)...)
	var got inbox
	for i := range 20 {
		co := start(t, newClient(t, ns), named(t, "g"), client.WithFrom(client.FromEarliest), client.WithHandler(named(t, "Brief"), client.All, got.handle))
		if i == 0 {
			testkit.Eventually(t, patience, "all messages", func() bool { return got.count() == 40 })
		}
		if err := co.Close(short(t)); err != nil {
			t.Fatal(err)
		}
	}
	if d := got.twice(); d != nil {
		t.Errorf("%d handled twice", len(d))
	}
}

func TestOptionsThatCantBeRight(t *testing.T) {
	c := newClient(t, "127.0.0.1:1")
	h := client.WithHandler("T", client.All, (&inbox{}).handle)
	for name, opts := range map[string][]client.ConsumerOption{
		"no topic":                       {},
		"two handlers of a topic":        {h, h},
		"nil handler":                    {client.WithHandler("T", client.All, nil)},
		"bad topic":                      {client.WithHandler("no spaces", client.All, (&inbox{}).handle)},
		"no tag":                         {client.WithHandler("T", client.Tags("||"), (&inbox{}).handle)},
		"empty SQL":                      {client.WithHandler("T", client.SQL(""), (&inbox{}).handle)},
		"batch":                          {h, client.WithBatch(0)},
		"attempts":                       {h, client.WithMaxAttempts(0)},
		"rate":                           {h, client.WithRate(-1)},
		"back-off":                       {h, client.WithBackoff(nil)},
		"a folder without broadcasting":  {h, client.WithOffsetsDir("/x", "y")},
		"zero strategy":                  {h, client.WithStrategy(client.Strategy{})},
		"zero time":                      {h, client.WithFrom(client.FromTime(time.Time{}))},
		"a subscription without handler": {client.WithSubscription("T", client.All)},
	} {
		if co, err := c.NewConsumer(named(t, "g"), opts...); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%s: %v, %v", name, co, err)
		}
	}
	if _, err := c.NewConsumer("", h); !errors.Is(err, client.ErrInvalid) {
		t.Error(err)
	}
	if _, err := c.NewPoller(named(t, "g"), h); !errors.Is(err, client.ErrInvalid) {
		t.Error(err)
	}
}

func TestSQLIsRefusedWithTheBrokersWords(t *testing.T) {
	onlyApogee(t, "a Java broker can be told to filter by SQL")
	ns := nameServer(t)
	c := newClient(t, ns)
	send(t, c, named(t, "Filtered"), "x")
	co, err := c.NewConsumer(named(t, "g"), client.WithHandler(named(t, "Filtered"), client.SQL("a > 3"), (&inbox{}).handle))
	if err != nil {
		t.Fatal(err)
	}
	var refused *client.Error
	if err := co.Start(short(t)); !errors.As(err, &refused) || !strings.Contains(refused.Remark, "SQL92") {
		t.Error(err)
	}
}

func TestSubscribeAndUnsubscribe(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	send(t, c, named(t, "First"), "f1")
	send(t, c, named(t, "Second"), "s1")
	var got inbox
	co := start(t, c, named(t, "g"), client.WithHandler(named(t, "First"), client.All, got.handle), client.WithFrom(client.FromEarliest))
	testkit.Eventually(t, patience, "the first topic", func() bool { return got.times("f1") == 1 })
	if err := co.Subscribe(short(t), named(t, "Second"), client.All, got.handle); err != nil {
		t.Fatal(err)
	}
	if err := co.Subscribe(short(t), named(t, "Second"), client.All, got.handle); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("twice: %v", err)
	}
	testkit.Eventually(t, patience, "the second topic", func() bool { return got.times("s1") == 1 })
	if err := co.Unsubscribe(short(t), named(t, "First")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, "its queues given up", func() bool {
		return !slices.ContainsFunc(co.Status(), func(q client.QueueStatus) bool { return q.Queue.Topic == named(t, "First") })
	})
	send(t, c, named(t, "First"), "f2")
	send(t, c, named(t, "Second"), "s2")
	testkit.Eventually(t, patience, "the second topic again", func() bool { return got.times("s2") == 1 })
	if got.times("f2") != 0 {
		t.Error("a topic that isn't subscribed any more is handled")
	}
}

func TestHandlerTimeout(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	send(t, c, named(t, "Slow"), "stuck", "quick")
	var got inbox
	release, ended := make(chan struct{}), make(chan error, 1)
	start(t, c, named(t, "g"), client.WithFrom(client.FromEarliest), client.WithConcurrency(1), client.WithHandlerTimeout(100*time.Millisecond),
		client.WithBackoff(func(int) time.Duration { return time.Second }),
		client.WithHandler(named(t, "Slow"), client.All, func(ctx context.Context, m *client.Message) error {
			if string(m.Body) == "stuck" && m.Retries == 0 {
				<-ctx.Done()
				ended <- ctx.Err()
				<-release // it doesn't heed its context
				return nil
			}
			return got.handle(ctx, m)
		}))
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	testkit.Eventually(t, patience, "the other message, and the one whose time was up", func() bool { return got.times("quick") == 1 && got.times("stuck") == 1 })
	close(release)
}

// TestWaitingForALock: a queue whose owner doesn't let go yet says whom it waits for.
func TestWaitingForALock(t *testing.T) {
	ns := nameServer(t)
	sendNew(t, newClient(t, ns), named(t, "Held"), 1, "x")
	release, working := make(chan struct{}), make(chan struct{})
	var once sync.Once
	first := start(t, newClient(t, ns, client.WithClientID("b")), named(t, "g"), client.WithFrom(client.FromEarliest), client.WithHandler(named(t, "Held"), client.All, func(context.Context, *client.Message) error {
		once.Do(func() { close(working) })
		<-release
		return nil
	}))
	<-working
	var got inbox
	second := start(t, newClient(t, ns, client.WithClientID("a")), named(t, "g"), client.WithHandler(named(t, "Held"), client.All, got.handle)) // the one queue is its by Java's average
	reason := func(co *client.Consumer) (r client.QueueStatus) {
		for _, q := range co.Status() {
			if q.Queue.Topic == named(t, "Held") {
				r = q
			}
		}
		return r
	}
	testkit.Eventually(t, patience, "the wait for the lock", func() bool {
		q := reason(second)
		if javaServer() != "" { // which doesn't say who holds it
			return strings.HasPrefix(q.Reason, "waiting for its lock for ") && q.Mine
		}
		return strings.HasPrefix(q.Reason, "waiting for its lock, held by b, for ") && q.Owner == "b" && q.Mine
	})
	testkit.Eventually(t, patience, "the queue given up", func() bool {
		q := reason(first)
		return strings.HasPrefix(q.Reason, "given up ") && strings.HasSuffix(q.Reason, "1 handlers finish first") && q.Owner == "a"
	})
	close(release)
	testkit.Eventually(t, patience, "the queue taken", func() bool { q := reason(second); return q.Reason == "" && q.Owner == "a" && q.Committed == 1 })
	if got.count() != 0 {
		t.Errorf("handled twice: %v", got.last)
	}
}

func TestRateAndConcurrency(t *testing.T) {
	ns := nameServer(t)
	c := newClient(t, ns)
	send(t, c, named(t, "Rated"), numbered("", 40)...)
	var got inbox
	var now, most atomic.Int32
	began := time.Now()
	co := start(t, c, named(t, "g"), client.WithFrom(client.FromEarliest), client.WithRate(100), client.WithConcurrency(3), client.WithHandler(named(t, "Rated"), client.All, func(ctx context.Context, m *client.Message) error {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		return got.handle(ctx, m)
	}))
	if err := co.SetConcurrency(0); !errors.Is(err, client.ErrInvalid) {
		t.Error(err)
	}
	if err := co.SetConcurrency(2); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, patience, "all", func() bool { return got.count() == 40 })
	if took := time.Since(began); took < 350*time.Millisecond {
		t.Errorf("40 messages at 100 a second within %s", took)
	}
	if most.Load() > 3 {
		t.Errorf("%d handlers at once", most.Load())
	}
}

// TestCycles: clients whose consumers start and close leave nothing behind.
func TestCycles(t *testing.T) {
	ns := nameServer(t)
	send(t, newClient(t, ns), named(t, "Cycle"), "x")
	counts := func() (goroutines, descriptors int) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("descriptors are counted in /proc/self/fd, which isn't there")
		}
		return runtime.NumGoroutine(), len(fds)
	}
	cycle := func(i int) {
		c, err := client.New(client.WithNameServers(ns))
		if err != nil {
			t.Fatal(err)
		}
		co, err := c.NewConsumer(fmt.Sprint(named(t, "g"), i%10), client.WithHandler(named(t, "Cycle"), client.All, (&inbox{}).handle))
		if err != nil {
			t.Fatal(err)
		}
		if err := co.Start(short(t)); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(short(t)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		cycle(i)
	}
	var g0, d0 int
	settled := func() bool {
		g, d := counts()
		same := g == g0 && d == d0
		g0, d0 = g, d
		return same
	}
	testkit.Eventually(t, patience, "a steady state", settled)
	g1, d1 := g0, d0
	for i := range 1000 {
		cycle(i)
	}
	testkit.Eventually(t, patience, "what was there before", func() bool {
		g, d := counts()
		return g <= g1+2 && d <= d1+2
	})
}

// TestTopicDeletedAndMadeAgain: every message of the new topic comes, wherever the consumer stood in the old one.
func TestTopicDeletedAndMadeAgain(t *testing.T) {
	onlyApogee(t, "the topic is deleted through the broker's address")
	s := apogeetest.Start(t)
	c := newClient(t, s.NameServer())
	send(t, c, "Phoenix", numbered("old", 80)...)
	var got inbox
	start(t, c, "g", client.WithHandler("Phoenix", client.All, got.handle), client.WithFrom(client.FromEarliest))
	testkit.Eventually(t, patience, "the old messages", func() bool { return got.count() == 80 })
	conn, err := remoting.Dial(short(t), s.Broker(), remoting.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(nil)
	a, err := conn.Invoke(short(t), &remoting.Request{Code: protocol.DeleteTopicInBroker, Header: &protocol.TopicRequest{Topic: "Phoenix"}})
	if err != nil || a.Code != 0 {
		t.Fatal(a, err)
	}
	// More than there were, so that no offset is beyond the new queues' ends when they are looked at.
	send(t, c, "Phoenix", numbered("new", 200)...)
	testkit.Eventually(t, patience, "the new messages", func() bool { return got.count() == 280 })
	if d := got.twice(); d != nil {
		t.Errorf("twice: %v", d)
	}
}
