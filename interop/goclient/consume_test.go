package goclient

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// One consumer of two topics, several messages a call.
func TestPushConcurrent(t *testing.T) {
	c := begin(t, "push-concurrent")
	s := c.server()
	one, two, in := c.topic(s, 4), c.topic(s, 3), &inbox{}
	p := c.producer(s)
	early, late := numbered("early", 200), numbered("late", 200)
	for i, body := range early {
		c.sendBodies(p, []string{one, two}[i%2], body)
	}
	var mu sync.Mutex
	biggest := 0
	handle := func(ctx context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mu.Lock()
		biggest = max(biggest, len(ms))
		mu.Unlock()
		return in.take("")(ctx, ms...)
	}
	k := c.newPush(s, push{topic: one, handle: handle, opts: []consumer.Option{consumer.WithConsumeMessageBatchMaxSize(8), consumer.WithConsumeGoroutineNums(5)}})
	c.must(k.Subscribe(two, consumer.MessageSelector{}, handle))
	c.must(k.Start())
	for i, body := range late {
		c.sendBodies(p, []string{one, two}[i%2], body)
	}
	for _, m := range c.exactly(in, soon, append(early, late...)...) {
		if m.Topic != one && m.Topic != two {
			c.Errorf("topic %q", m.Topic)
		}
	}
	if biggest < 2 || biggest > 8 {
		c.Errorf("at most %d messages a call, want 2 to 8", biggest)
	}
}

// Messages of a key come in the order of sending, also when one is put off three times.
func TestPushOrderly(t *testing.T) {
	c := begin(t, "push-orderly")
	s := c.server()
	topic, in := c.topic(s, 4), &inbox{}
	p := c.producer(s, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	var bodies []string
	for i := range 100 {
		key := fmt.Sprint("key", i%7)
		m := message(topic, fmt.Sprintf("%s %d", key, i))
		m.WithShardingKey(key)
		c.send(p, m)
		bodies = append(bodies, string(m.Body))
	}
	var mu sync.Mutex
	putOff := 0
	handle := func(ctx context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mu.Lock()
		defer mu.Unlock()
		if string(ms[0].Body) == bodies[10] && putOff < 3 {
			putOff++
			octx, _ := primitive.GetOrderlyCtx(ctx)
			octx.SuspendCurrentQueueTimeMillis = 50
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		return in.take("")(ctx, ms...)
	}
	c.push(s, push{topic: topic, handle: handle, opts: []consumer.Option{consumer.WithConsumerOrder(true)}})
	last := map[string]int{}
	for _, m := range c.exactly(in, soon, bodies...) {
		var key string
		var i int
		_, err := fmt.Sscan(string(m.Body), &key, &i)
		c.must(err)
		if before, ok := last[key]; ok && i <= before {
			c.Errorf("%s: %d after %d", key, i, before)
		}
		last[key] = i
		if string(m.Body) == bodies[10] && m.ReconsumeTimes != 3 {
			c.Errorf("put off three times, reconsume times are %d", m.ReconsumeTimes)
		}
	}
}

// Each member gets everything. A member that comes back goes on from the offsets in its own file.
func TestBroadcast(t *testing.T) {
	c := begin(t, "broadcast")
	s := c.server()
	topic, group := c.topic(s, 4), c.unique("group")
	p := c.producer(s)
	early, late, later := numbered("early", 20), numbered("late", 20), numbered("later", 20)
	c.sendBodies(p, topic, early...)
	a, b := &inbox{}, &inbox{}
	start := func(name string, in *inbox) rocketmq.PushConsumer {
		return c.push(s, push{group: group, topic: topic, handle: in.take(name),
			opts: []consumer.Option{consumer.WithConsumerModel(consumer.BroadCasting), consumer.WithInstance(group + name)}})
	}
	first := start("a", a)
	start("b", b)
	c.sendBodies(p, topic, late...)
	c.exactly(a, soon, append(early, late...)...)
	c.exactly(b, soon, append(early, late...)...)
	c.must(first.Shutdown()) // writes its offsets
	c.sendBodies(p, topic, later...)
	c.exactly(b, soon, append(append(early, late...), later...)...)
	again := &inbox{}
	start("a", again)
	c.exactly(again, soon, later...)
	c.forAWhile(time.Second, "nothing comes twice", func() bool { return again.count() == len(later) && a.count() == 40 && b.count() == 60 })
}

func TestTags(t *testing.T) {
	c := begin(t, "tags")
	s := c.server()
	topic := c.topic(s, 2)
	p := c.producer(s)
	// Aa and BB have the same hash code in Java, by which the broker filters; the client looks at the text.
	sendAll := func(round string) {
		for _, tag := range []string{"A", "B", "C", "", "A", "Aa", "BB"} {
			m := message(topic, round+tag)
			if tag != "" {
				m.WithTag(tag)
			}
			c.send(p, m)
		}
	}
	sendAll("early ")
	want := map[string][]string{
		"A || B": {"A", "A", "B"}, "A||B || C": {"A", "A", "B", "C"}, "*": {"A", "B", "C", "", "A", "Aa", "BB"},
		"": {"A", "B", "C", "", "A", "Aa", "BB"}, "C": {"C"}, "Aa": {"Aa"}, "nothing": nil,
	}
	got := map[string]*inbox{}
	for expression := range want {
		got[expression] = &inbox{}
		c.push(s, push{topic: topic, tags: expression, handle: got[expression].take("")})
	}
	sendAll("late ")
	for expression, tags := range want {
		var bodies []string
		for _, tag := range tags {
			bodies = append(bodies, "early "+tag, "late "+tag)
		}
		c.exactly(got[expression], soon, bodies...)
	}
	c.forAWhile(500*time.Millisecond, "nothing else comes through", func() bool {
		for expression, tags := range want {
			if got[expression].count() != 2*len(tags) {
				return false
			}
		}
		return true
	})
}

// The client takes a tag's hash code over its UTF-8 bytes where Java takes it over UTF-16 units, so that a broker
// that believes the codes in its heartbeat never matches such a tag.
func TestTagsNotASCII(t *testing.T) {
	c := begin(t, "tags-not-ascii")
	c.apogeeOnly("the Java broker believes the client's wrong hash codes, and nothing matches")
	s := c.server()
	topic, in := c.topic(s, 2), &inbox{}
	p := c.producer(s)
	for _, tag := range []string{"订单", "Größe", "A"} {
		m := message(topic, tag)
		m.WithTag(tag)
		c.send(p, m)
	}
	c.push(s, push{topic: topic, tags: "订单 || Größe", handle: in.take("")})
	c.exactly(in, soon, "订单", "Größe")
}

func TestProducerFirst(t *testing.T) {
	c := begin(t, "producer-first")
	s := c.server()
	topic := c.unique("topic") // doesn't exist yet
	p := c.producer(s)
	bodies := numbered("m", 30)
	c.sendBodies(p, topic, bodies...)
	for _, where := range []consumer.ConsumeFromWhere{consumer.ConsumeFromFirstOffset, consumer.ConsumeFromLastOffset} {
		in := &inbox{}
		c.push(s, push{topic: topic, handle: in.take(""), opts: []consumer.Option{consumer.WithConsumeFromWhere(where)}})
		c.exactly(in, soon, bodies...)
	}
}

// The client refuses to start on a topic that doesn't exist, whatever the server.
func TestConsumerFirst(t *testing.T) {
	c := begin(t, "consumer-first")
	topic := c.unique("topic")
	k := c.newPush(c.server(), push{topic: topic, handle: (&inbox{}).take("")})
	if err := k.Start(); err == nil || !strings.Contains(err.Error(), "the topic="+topic+" route info not found") {
		c.Fatalf("start on a topic that doesn't exist: %v; if the client can do it now, test it", err)
	}
	c.skip("the client itself refuses to start on a topic without a route (it asks once, and gives up); the same with the Java servers")
}

// A consumer of an existing topic that never held a message misses nothing of what is sent while it starts, though it
// asked for the end.
func TestConsumerOnEmptyTopic(t *testing.T) {
	c := begin(t, "consumer-on-empty-topic")
	c.apogeeOnly("the Java broker says that there is no offset, and what arrives before the consumer has asked for the end is skipped")
	s := c.server()
	p := c.producer(s)
	for round := range 5 {
		topic, in := c.topic(s, 4), &inbox{}
		k := c.newPush(s, push{topic: topic, handle: in.take(""), opts: []consumer.Option{consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset)}})
		bodies := numbered(fmt.Sprint(round, " "), 100)
		var starting sync.WaitGroup
		starting.Go(func() {
			if err := k.Start(); err != nil {
				c.Errorf("%v", err)
			}
		})
		c.sendBodies(p, topic, bodies...)
		starting.Wait()
		c.exactly(in, soon, bodies...)
	}
}

func TestUnsubscribe(t *testing.T) {
	c := begin(t, "unsubscribe")
	s := c.server()
	keep, leave, in := c.topic(s, 2), c.topic(s, 2), &inbox{}
	p := c.producer(s)
	k := c.newPush(s, push{topic: keep, handle: in.take("")})
	c.must(k.Subscribe(leave, consumer.MessageSelector{}, in.take("")))
	c.must(k.Start())
	c.sendBodies(p, keep, "keep")
	c.sendBodies(p, leave, "leave")
	c.exactly(in, soon, "keep", "leave")
	c.must(k.Unsubscribe(leave))
	// A pull of each queue is on its way, and brings one more message.
	for i := range 4 {
		c.sendBodies(p, leave, fmt.Sprint("on its way ", i))
	}
	c.eventually(soon, "the subscription ends", func() bool {
		n := in.count()
		c.sendBodies(p, leave, "gone", "gone")
		c.sendBodies(p, keep, "still", "still")
		c.eventually(soon, "the other topic goes on", func() bool { return in.count() >= n+2 })
		<-time.After(300 * time.Millisecond)
		return in.count() == n+2
	})
	gone := count(in.bodies(), "gone")
	c.sendBodies(p, leave, "gone")
	c.sendBodies(p, keep, "last")
	c.eventually(soon, "the other topic", func() bool { return in.has("last") })
	c.forAWhile(2*time.Second, "nothing comes of the topic that was left", func() bool { return count(in.bodies(), "gone") == gone })
}

func count(list []string, s string) int {
	n := 0
	for _, x := range list {
		if x == s {
			n++
		}
	}
	return n
}

// The client's pulls sleep 30 s when they find the consumer suspended, so that long it may take to come back.
func TestSuspendResume(t *testing.T) {
	c := begin(t, "suspend-resume")
	s := c.server()
	topic, in := c.topic(s, 2), &inbox{}
	p := c.manual(s)
	send := func(body string) {
		for q := range 2 {
			m := message(topic, fmt.Sprint(body, " ", q))
			m.Queue = s.queue(c, topic, q)
			c.send(p, m)
		}
	}
	k := c.push(s, push{topic: topic, handle: in.take("")})
	send("before")
	c.exactly(in, soon, "before 0", "before 1")
	k.Suspend()
	send("on its way") // a pull of each queue is parked at the broker
	c.exactly(in, soon, "before 0", "before 1", "on its way 0", "on its way 1")
	send("suspended")
	c.forAWhile(3*time.Second, "nothing comes while suspended", func() bool { return in.count() == 4 })
	k.Resume()
	resumed := time.Now()
	c.exactly(in, 35*time.Second, "before 0", "before 1", "on its way 0", "on its way 1", "suspended 0", "suspended 1")
	c.say("%.0f s after resuming: the client looks every 30 s", time.Since(resumed).Seconds())
}
