package goclient

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// noYoung makes no topic young: a young topic's messages are given to every new group from the first one on,
// whatever it asks for.
const noYoung = "accessMessageInMemoryMaxRatio=0"

const javaYoung = "the Java broker asks the page cache instead of the setting, so that a topic is always young in a test"

func TestStartFirst(t *testing.T) {
	c := begin(t, "start-first")
	s := c.server(noYoung)
	topic, in := c.topic(s, 4), &inbox{}
	p := c.producer(s)
	old, fresh := numbered("old", 20), numbered("new", 20)
	c.sendBodies(p, topic, old...)
	c.push(s, push{topic: topic, handle: in.take(""), opts: []consumer.Option{consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}})
	c.exactly(in, soon, old...)
	c.sendBodies(p, topic, fresh...)
	c.exactly(in, soon, append(old, fresh...)...)
}

func TestStartLast(t *testing.T) {
	c := begin(t, "start-last")
	c.apogeeOnly(javaYoung)
	s := c.server(noYoung)
	topic, group, in := c.topic(s, 4), c.unique("group"), &inbox{}
	p := c.producer(s)
	c.sendBodies(p, topic, numbered("old", 20)...)
	c.push(s, push{group: group, topic: topic, handle: in.take(""), opts: []consumer.Option{consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset)}})
	// It has begun with a queue when a message of that queue gets through to it.
	begun := map[int]bool{}
	c.eventually(soon, "it begins with all queues", func() bool {
		c.sendBodies(p, topic, numbered("probe", 4)...)
		<-time.After(50 * time.Millisecond)
		for _, m := range in.all() {
			begun[m.Queue.QueueId] = true
		}
		return len(begun) == 4
	})
	fresh := numbered("new", 20)
	c.sendBodies(p, topic, fresh...)
	c.eventually(soon, "all new messages", func() bool {
		for _, body := range fresh {
			if count(in.bodies(), body) != 1 {
				return false
			}
		}
		return true
	})
	if slices.ContainsFunc(in.bodies(), func(b string) bool { return strings.HasPrefix(b, "old") }) {
		c.Errorf("started last, got %v", in.bodies())
	}
}

func TestStartLastYoung(t *testing.T) {
	c := begin(t, "start-last-young")
	s := c.server()
	topic, in := c.topic(s, 4), &inbox{}
	p := c.producer(s)
	old := numbered("old", 20)
	c.sendBodies(p, topic, old...)
	c.push(s, push{topic: topic, handle: in.take(""), opts: []consumer.Option{consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset)}})
	c.exactly(in, soon, old...)
}

// The client takes its time stamp, seconds in local time by default, for UTC; here it is given in UTC.
func TestStartTimestamp(t *testing.T) {
	c := begin(t, "start-timestamp")
	c.apogeeOnly(javaYoung)
	s := c.server(noYoung)
	topic, in := c.topic(s, 4), &inbox{}
	p := c.producer(s)
	c.sendBodies(p, topic, numbered("old", 20)...)
	at := time.Now().Truncate(time.Second).Add(time.Second)
	until(at.Add(20 * time.Millisecond))
	fresh := numbered("new", 20)
	c.sendBodies(p, topic, fresh...)
	c.push(s, push{topic: topic, handle: in.take(""), opts: []consumer.Option{
		consumer.WithConsumeFromWhere(consumer.ConsumeFromTimestamp), consumer.WithConsumeTimestamp(at.UTC().Format("20060102150405"))}})
	c.exactly(in, soon, fresh...)
	// A time before the first message starts at the first, one after the last at the end.
	all := &inbox{}
	c.push(s, push{topic: topic, handle: all.take(""), opts: []consumer.Option{
		consumer.WithConsumeFromWhere(consumer.ConsumeFromTimestamp), consumer.WithConsumeTimestamp(at.Add(-time.Hour).UTC().Format("20060102150405"))}})
	c.exactly(all, soon, append(numbered("old", 20), fresh...)...)
}

func TestConsumerRestart(t *testing.T) {
	c := begin(t, "consumer-restart")
	s := c.server()
	topic, group := c.topic(s, 4), c.unique("group")
	p := c.producer(s)
	for round := range 4 {
		bodies := numbered("round "+itoa(round)+", ", 30)
		in := &inbox{}
		if round%2 == 0 { // some come before the consumer, some while it is there
			c.sendBodies(p, topic, bodies...)
		}
		k := c.push(s, push{group: group, topic: topic, handle: in.take("")})
		if round%2 == 1 {
			c.sendBodies(p, topic, bodies...)
		}
		c.exactly(in, soon, bodies...)
		c.endCommitted(s, k, group, topic, int64(30*(round+1)))
	}
}

// endCommitted ends a consumer and waits until the broker has the offsets of its group in a topic with four queues:
// together so many messages. The client notes what was consumed some time after the handler has returned, its end waits
// for nobody, and its commits are one-way.
func (c *testCase) endCommitted(s *server, k rocketmq.PushConsumer, group, topic string, want int64) {
	c.Helper()
	<-time.After(100 * time.Millisecond)
	c.eventually(soon, "the client has noted what was consumed", func() bool { return k.GetOffsetDiffMap()[topic] == 0 })
	c.must(k.Shutdown())
	look := c.newPull(s, group)
	c.must(look.Assign(topic, nil))
	c.must(look.Start())
	var sum int64
	c.eventually(soon, func() string { return fmt.Sprintf("committed offsets; together they are %d, want %d", sum, want) }, func() bool {
		sum = 0
		for q := range 4 {
			at, err := look.CurrentOffset(s.queue(c, topic, q))
			c.must(err)
			sum += max(at, 0)
		}
		return sum == want
	})
	c.must(look.Shutdown())
}

// The clients stay while the server goes and comes back on its data; so do messages, offsets and topics.
func TestServerRestart(t *testing.T) {
	c := begin(t, "server-restart")
	s := c.ownServer()
	topic, group := c.topic(s, 4), c.unique("group")
	p := c.producer(s)
	before, unread, after := numbered("before", 40), numbered("unread", 20), numbered("after", 40)
	in := &inbox{}
	c.sendBodies(p, topic, before...)
	c.push(s, push{group: group, topic: topic, handle: in.take("")})
	c.exactly(in, soon, before...)
	other := c.topic(s, 3)
	c.sendBodies(p, other, unread...)
	// A group that isn't there while the server restarts: what it read stays read.
	gone, read := c.unique("group"), &inbox{}
	k := c.push(s, push{group: gone, topic: topic, handle: read.take("")})
	c.exactly(read, soon, before...)
	c.endCommitted(s, k, gone, topic, int64(len(before)))

	c.must(s.stop())
	c.must(s.restart())
	began := time.Now()
	c.eventually(40*time.Second, "a send after the restart", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		r, err := p.SendSync(ctx, message(topic, after[0]))
		return err == nil && r.Status == primitive.SendOK
	})
	c.sendBodies(p, topic, after[1:]...)
	// A send without an answer may have been stored all the same: the client sent it again then.
	c.eventually(60*time.Second, func() string { return describe(in, append(before, after...)) }, func() bool {
		for _, body := range after {
			if !in.has(body) {
				return false
			}
		}
		return true
	})
	c.say("the consumer that stayed had all of it %.1f s after the restart", time.Since(began).Seconds())
	for _, body := range before {
		if n := count(in.bodies(), body); n != 1 {
			c.Errorf("%q came %d times", body, n)
		}
	}
	again, rest := &inbox{}, &inbox{}
	c.push(s, push{group: gone, topic: topic, handle: again.take("")})
	c.push(s, push{topic: other, handle: rest.take("")})
	c.exactly(rest, soon, unread...)
	c.eventually(soon, "what was sent since", func() bool { return again.count() >= len(after) })
	if slices.ContainsFunc(again.bodies(), func(b string) bool { return strings.HasPrefix(b, "before") }) {
		c.Errorf("a group got again what it had read before the restart: %v", again.bodies())
	}
}
