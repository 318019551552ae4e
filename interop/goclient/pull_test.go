package goclient

import (
	"context"
	"errors"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// newPull makes a pull consumer that isn't started yet.
func (c *testCase) newPull(s *server, group string, opts ...consumer.Option) rocketmq.PullConsumer {
	c.Helper()
	k, err := rocketmq.NewPullConsumer(append([]consumer.Option{
		consumer.WithNameServer([]string{s.names}),
		consumer.WithGroupName(group),
		consumer.WithInstance(c.unique("puller")),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithMaxReconsumeTimes(16),
		consumer.WithPullBatchSize(10),
	}, opts...)...)
	c.must(err)
	c.Cleanup(func() { _ = k.Shutdown() })
	return k
}

// poll polls until so many messages are in, and acknowledges each list.
func (c *testCase) poll(k rocketmq.PullConsumer, in *inbox, n int) {
	c.Helper()
	c.eventually(soon, func() string { return "polled " + itoa(in.count()) + " messages, want " + itoa(n) }, func() bool {
		list, err := k.Poll(context.Background(), 200*time.Millisecond)
		if errors.Is(err, consumer.ErrNoNewMsg) {
			return in.count() >= n
		}
		c.must(err)
		in.add("", list.GetMsgList())
		k.ACK(context.Background(), list, consumer.ConsumeSuccess)
		return in.count() >= n
	})
}

// The lite pull consumer's way: queues of one's own choice, seek, poll.
func TestLitePullAssign(t *testing.T) {
	c := begin(t, "lite-pull-assign")
	s := c.server()
	topic, group := c.topic(s, 4), c.unique("group")
	p := c.manual(s)
	var first, second []string
	for i := range 40 {
		m := message(topic, "m"+itoa(i))
		m.Queue = s.queue(c, topic, i%4)
		c.send(p, m)
		if i%4 < 2 {
			first = append(first, string(m.Body))
		} else if i%4 == 2 && i/4 >= 5 {
			second = append(second, string(m.Body))
		}
	}
	k := c.newPull(s, group)
	c.must(k.Assign(topic, []*primitive.MessageQueue{s.queue(c, topic, 0), s.queue(c, topic, 1)}))
	c.must(k.Start())
	in := &inbox{}
	c.poll(k, in, len(first))
	for _, m := range c.exactly(in, soon, first...) {
		if m.Queue.QueueId > 1 {
			c.Errorf("%s came from queue %d, which wasn't assigned", m.Body, m.Queue.QueueId)
		}
	}
	at, err := k.OffsetForTimestamp(s.queue(c, topic, 2), time.Now().Add(-time.Hour).UnixMilli())
	if err != nil || at != 0 {
		c.Errorf("offset of an hour ago: %d %v, want 0", at, err)
	}
	k.SeekOffset(s.queue(c, topic, 2), 5)
	c.must(k.Assign(topic, []*primitive.MessageQueue{s.queue(c, topic, 2)}))
	again := &inbox{}
	c.poll(k, again, len(second))
	c.exactly(again, soon, second...)
	// What was acknowledged is committed at the end.
	c.must(k.Shutdown())
	next := c.newPull(s, group)
	c.must(next.Assign(topic, []*primitive.MessageQueue{s.queue(c, topic, 2)}))
	c.must(next.Start())
	c.eventually(soon, "the committed offset", func() bool {
		at, err := next.CurrentOffset(s.queue(c, topic, 2))
		return err == nil && at == 10
	})
}

// The lite pull consumer's way by subscription: the group shares the queues, and goes on where it stopped.
func TestLitePullSubscribe(t *testing.T) {
	c := begin(t, "lite-pull-subscribe")
	s := c.server()
	topic, group := c.topic(s, 4), c.unique("group")
	p := c.producer(s)
	var wanted []string
	for i := range 60 {
		m := message(topic, "m"+itoa(i))
		m.WithTag([]string{"A", "B", "C"}[i%3])
		c.send(p, m)
		if i%3 < 2 {
			wanted = append(wanted, string(m.Body))
		}
	}
	start := func() rocketmq.PullConsumer {
		k := c.newPull(s, group)
		c.must(k.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "A || B"}))
		c.must(k.Start())
		return k
	}
	k, in := start(), &inbox{}
	c.poll(k, in, len(wanted))
	c.exactly(in, soon, wanted...)
	c.must(k.Shutdown())
	late := message(topic, "late")
	late.WithTag("B")
	c.send(p, late)
	k, in = start(), &inbox{}
	c.poll(k, in, 1)
	c.exactly(in, soon, "late")
	_, err := k.Poll(context.Background(), 500*time.Millisecond)
	if !errors.Is(err, consumer.ErrNoNewMsg) {
		c.Errorf("one poll more: %v", err)
	}
}

// The old pull consumer's way: offsets are the caller's affair.
func TestOldPullConsumer(t *testing.T) {
	c := begin(t, "old-pull-consumer")
	s := c.server()
	topic, group := c.topic(s, 2), c.unique("group")
	p := c.manual(s)
	for i := range 50 {
		m := message(topic, "m"+itoa(i))
		m.Queue = s.queue(c, topic, i%2)
		c.send(p, m)
	}
	k := c.newPull(s, group)
	c.must(k.Subscribe(topic, consumer.MessageSelector{}))
	c.must(k.Start())
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	route, err := k.GetTopicRouteInfo(topic)
	if err != nil || len(route) != 2 {
		c.Fatalf("route %v, %v", route, err)
	}
	for q := range 2 {
		queue := s.queue(c, topic, q)
		offset, want := int64(0), q
		for offset < 25 {
			r, err := k.PullFrom(ctx, queue, offset, 7)
			c.must(err)
			if r.Status != primitive.PullFound || r.MinOffset != 0 || r.MaxOffset != 25 {
				c.Fatalf("pull from %d: %v", offset, r)
			}
			ms := r.GetMessageExts()
			if len(ms) != int(min(7, 25-offset)) || r.NextBeginOffset != offset+int64(len(ms)) {
				c.Fatalf("pull of 7 from %d: %d messages, next %d", offset, len(ms), r.NextBeginOffset)
			}
			for _, m := range ms {
				if string(m.Body) != "m"+itoa(want) || m.QueueOffset != offset {
					c.Fatalf("queue %d, offset %d: %q at %d", q, offset, m.Body, m.QueueOffset)
				}
				want, offset = want+2, offset+1
			}
		}
		if at, err := k.CurrentOffset(queue); err != nil || at != 0 {
			c.Errorf("the group has no offset yet: %d %v", at, err)
		}
		// Beyond either end.
		r, err := k.PullFrom(ctx, queue, 1000, 7)
		if err != nil || r.Status != primitive.PullOffsetIllegal || r.NextBeginOffset != 25 {
			c.Errorf("pull from 1000: %v %v", r, err)
		}
		c.must(k.UpdateOffset(queue, 13))
		if at, err := k.CurrentOffset(queue); err != nil || at != 13 {
			c.Errorf("offset updated to 13: %d %v", at, err)
		}
	}
	c.must(k.PersistOffset(ctx, topic))
	c.must(k.Shutdown())
	next := c.newPull(s, group)
	c.must(next.Subscribe(topic, consumer.MessageSelector{}))
	c.must(next.Start())
	c.eventually(soon, "the committed offset", func() bool {
		at, err := next.CurrentOffset(s.queue(c, topic, 1))
		return err == nil && at == 13
	})
}
