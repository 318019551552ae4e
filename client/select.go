package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apogeemq/apogee/internal/message"
)

// Selector picks the queue of a message: it returns an index into queues, which are sorted by broker name and then
// by queue id as a Java producer has them, and are never empty. An index outside of them refuses the message with an
// error that wraps ErrInvalid. A Selector is called by several goroutines at once.
type Selector func(m *Message, queues []MessageQueue) int

// HashQueue is the Selector that messages with a ShardingKey have without asking: Java's
// SelectMessageQueueByHash with the key as its argument, so that a Java producer puts the same key into the same
// queue.
func HashQueue(m *Message, queues []MessageQueue) int {
	i := int(message.HashCode(m.ShardingKey)) % len(queues)
	if i < 0 {
		return -i
	}
	return i
}

// RandomQueue is a Selector that picks any queue.
func RandomQueue(_ *Message, queues []MessageQueue) int { return rand.IntN(len(queues)) }

// turns count round robin, one topic at a time: with one counter for all of them a producer that alternates between
// two topics would use every second queue only.
type turns struct{ m sync.Map }

func (t *turns) next(topic string) uint32 {
	v, ok := t.m.Load(topic)
	if !ok {
		first := new(atomic.Uint32)
		first.Store(rand.Uint32())
		v, _ = t.m.LoadOrStore(topic, first)
	}
	return v.(*atomic.Uint32).Add(1)
}

// pick takes the next queue in turn whose broker none of the wishes refuses. Wishes go from the strictest to the
// mildest; when none can be met any queue will do.
func pick(qs []MessageQueue, next func() uint32, wishes ...func(broker string) bool) MessageQueue {
	for _, refused := range wishes {
		for range qs {
			if q := qs[next()%uint32(len(qs))]; !refused(q.Broker) {
				return q
			}
		}
	}
	return qs[next()%uint32(len(qs))]
}

// writeQueues returns the queues that a message of a topic may go to. What is known is used at once, and renewed in
// the background when it is old or refresh asks for it.
func (p *Producer) writeQueues(ctx context.Context, topic string, refresh bool) (*route, []MessageQueue, error) {
	r, err := p.c.routes.use(ctx, topic, refresh)
	limit := -1
	if errors.Is(err, ErrNoRoute) {
		// The broker makes the topic at the first send, where it may.
		if r, err = p.c.routes.use(ctx, message.TemplateTopic, refresh); errors.Is(err, ErrNoRoute) {
			return nil, nil, fmt.Errorf("topic %s: %w, and brokers don't make topics by themselves: create it", p.c.unwrap(topic), ErrNoRoute)
		}
		limit = p.o.newQueues
	}
	if err != nil {
		return nil, nil, err
	}
	var qs []MessageQueue
	if limit < 0 {
		qs = r.write
	} else {
		for _, q := range r.write {
			if q.ID < limit {
				qs = append(qs, MessageQueue{topic, q.Broker, q.ID})
			}
		}
	}
	if len(qs) == 0 {
		return nil, nil, fmt.Errorf("topic %s: %w with a writable queue", p.c.unwrap(topic), ErrNoRoute)
	}
	return r, qs, nil
}

// Queues returns the queues that messages of a topic may go to, as a Selector gets them.
func (p *Producer) Queues(ctx context.Context, topic string) ([]MessageQueue, error) {
	ctx, done, err := p.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	_, qs, err := p.writeQueues(ctx, p.c.wrap(topic), true)
	return p.unwrapQueues(qs), err
}

// unwrapQueues returns queues with the topic as users name it.
func (p *Producer) unwrapQueues(qs []MessageQueue) []MessageQueue {
	out := make([]MessageQueue, len(qs))
	for i, q := range qs {
		out[i] = MessageQueue{p.c.unwrap(q.Topic), q.Broker, q.ID}
	}
	return out
}

// choose decides where a message goes. A message with a queue of its own stays there, whatever attempt it is; others
// avoid the broker that failed before.
func (p *Producer) choose(ctx context.Context, out *outgoing, failed string) (r *route, q MessageQueue, brokers int, err error) {
	r, qs, err := p.writeQueues(ctx, out.topic, failed != "")
	if err != nil {
		return nil, q, 0, err
	}
	if out.queue == nil && out.selector != nil {
		i := out.selector(out.m, p.unwrapQueues(qs))
		if i < 0 || i >= len(qs) {
			return nil, q, 0, invalid("topic %s: the selector returned queue index %d, there are %d", out.m.Topic, i, len(qs))
		}
		out.queue = &qs[i]
	}
	if out.queue != nil {
		return r, *out.queue, 1, nil
	}
	next := func() uint32 { return p.turns.next(out.topic) }
	last := func(b string) bool { return b == failed }
	brokers = countBrokers(qs)
	switch now := time.Now(); {
	case brokers == 1:
		q = pick(qs, next)
	case p.slow != nil:
		q = pick(qs, next, func(b string) bool { return last(b) || p.slow.avoid(b, now) }, func(b string) bool { return last(b) || p.slow.silent(b, now) }, last)
	default:
		q = pick(qs, next, last)
	}
	return r, q, brokers, nil
}

// countBrokers counts the brokers of queues that are sorted by them.
func countBrokers(qs []MessageQueue) (n int) {
	for i, q := range qs {
		if i == 0 || q.Broker != qs[i-1].Broker {
			n++
		}
	}
	return n
}
