package goclient

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// soon bounds what happens at once on an idle machine; a busy one gets the time.
const soon = 20 * time.Second

func (c *testCase) admin(s *server) admin.Admin {
	c.Helper()
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{s.names})))
	c.must(err)
	c.Cleanup(func() { _ = a.Close() })
	return a
}

// topic creates a topic with so many queues and waits until the name server knows it.
func (c *testCase) topic(s *server, queues int) string {
	c.Helper()
	topic := c.unique("topic")
	c.createTopic(s, topic, queues)
	return topic
}

func (c *testCase) createTopic(s *server, topic string, queues int) {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	a := c.admin(s)
	c.must(a.CreateTopic(ctx, admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(s.broker),
		admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues)))
	c.eventually(soon, "route of the new topic", func() bool {
		found, err := a.FetchPublishMessageQueues(ctx, topic)
		return err == nil && len(found) == queues
	})
}

func (c *testCase) producer(s *server, opts ...producer.Option) rocketmq.Producer {
	c.Helper()
	p, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNameServer([]string{s.names}),
		producer.WithGroupName(c.unique("producers")),
		producer.WithInstanceName(c.unique("producer")),
		producer.WithSendMsgTimeout(10 * time.Second),
	}, opts...)...)
	c.must(err)
	c.must(p.Start())
	c.Cleanup(func() { _ = p.Shutdown() })
	return p
}

// manual makes a producer of messages that name their queue.
func (c *testCase) manual(s *server) rocketmq.Producer {
	return c.producer(s, producer.WithQueueSelector(producer.NewManualQueueSelector()))
}

// send sends messages, more than one as a batch, and fails the case unless the broker says that they are safe.
func (c *testCase) send(p rocketmq.Producer, ms ...*primitive.Message) *primitive.SendResult {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	r, err := p.SendSync(ctx, ms...)
	c.must(err)
	if r.Status != primitive.SendOK {
		c.Fatalf("send to %s: %v", ms[0].Topic, r)
	}
	return r
}

// sendBodies sends one message for each body.
func (c *testCase) sendBodies(p rocketmq.Producer, topic string, bodies ...string) {
	c.Helper()
	for _, b := range bodies {
		c.send(p, message(topic, b))
	}
}

func message(topic, body string) *primitive.Message {
	return primitive.NewMessage(topic, []byte(body))
}

// numbered returns prefix0 … prefix(n-1).
func numbered(prefix string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, prefix+itoa(i))
	}
	return out
}

type handler = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

// push says how a push consumer is to be.
type push struct {
	group  string // default: one of its own
	topic  string
	tags   string // default: everything
	handle handler
	opts   []consumer.Option
}

// newPush makes a push consumer that isn't started yet. It starts at the first message unless its options say
// otherwise.
func (c *testCase) newPush(s *server, p push) rocketmq.PushConsumer {
	c.Helper()
	if p.group == "" {
		p.group = c.unique("group")
	}
	k, err := rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNameServer([]string{s.names}),
		consumer.WithGroupName(p.group),
		consumer.WithInstance(c.unique("consumer")),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, p.opts...)...)
	c.must(err)
	c.Cleanup(func() { _ = k.Shutdown() })
	if p.topic != "" {
		c.must(k.Subscribe(p.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: p.tags}, p.handle))
	}
	return k
}

func (c *testCase) push(s *server, p push) rocketmq.PushConsumer {
	c.Helper()
	k := c.newPush(s, p)
	c.must(k.Start())
	return k
}

// inbox collects what consumers got, in the order in which they got it.
type inbox struct {
	mu  sync.Mutex
	got []received
}

type received struct {
	*primitive.MessageExt
	who string
	at  time.Time
}

// take is a handler of the consumer named who that takes every message.
func (in *inbox) take(who string) handler {
	return func(_ context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		in.add(who, ms)
		return consumer.ConsumeSuccess, nil
	}
}

func (in *inbox) add(who string, ms []*primitive.MessageExt) {
	now := time.Now()
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, m := range ms {
		in.got = append(in.got, received{m, who, now})
	}
}

func (in *inbox) count() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.got)
}

func (in *inbox) all() []received {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.got)
}

func (in *inbox) bodies() []string {
	var out []string
	for _, m := range in.all() {
		out = append(out, string(m.Body))
	}
	return out
}

func (in *inbox) has(body string) bool { return slices.Contains(in.bodies(), body) }

// exactly waits for as many messages as there are bodies, and fails the case unless these are the bodies, in any
// order, each once.
func (c *testCase) exactly(in *inbox, within time.Duration, bodies ...string) []received {
	c.Helper()
	c.eventually(within, func() string { return describe(in, bodies) }, func() bool { return in.count() >= len(bodies) })
	if got := in.bodies(); !sameSet(got, bodies) {
		c.Fatalf("%s", describe(in, bodies))
	}
	return in.all()
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

func describe(in *inbox, want []string) string {
	short := func(list []string) []string {
		var out []string
		for _, s := range list[:min(len(list), 40)] {
			out = append(out, s[:min(len(s), 40)])
		}
		return out
	}
	got := in.bodies()
	return "got " + itoa(len(got)) + " messages, want " + itoa(len(want)) + ": " + "got " + join(short(got)) + ", want " + join(short(want))
}

func join(list []string) string { return "[" + strings.Join(list, " ") + "]" }
