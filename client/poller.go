package client

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/apogeemq/apogee/internal/protocol"
)

// Poller is a consumer that is asked for messages. It shares its topics' queues with the other members of its group
// (WithSubscription), or reads the queues that Assign names. What Poll returned is done when it is committed: a crash
// before that brings it again.
//
// Poll and Commit are for one goroutine, or for several that the caller keeps in step.
type Poller struct{ *engine }

// NewPoller returns a polling consumer of a group, which a Client can have one of. It does nothing until Start. Handlers
// are refused.
func (c *Client) NewPoller(group string, opts ...ConsumerOption) (*Poller, error) {
	o := defaultConsumerOptions()
	o.batch = 32
	e, err := c.newEngine(group, o, opts)
	if err != nil {
		return nil, fmt.Errorf("poller: %w", err)
	}
	e.poller = true
	for _, s := range e.o.subs {
		if s.single != nil || s.handler != nil {
			return nil, fmt.Errorf("poller: %w", invalid("topic %s has a handler: use WithSubscription, or a Consumer", s.topic))
		}
	}
	if e.o.ordered {
		return nil, fmt.Errorf("poller: %w", invalid("WithOrdered is for Consumers: Poll returns each queue's messages in their order anyway"))
	}
	delete(e.subs, e.retryTopic()) // nothing is given back
	return &Poller{e}, nil
}

// Poll returns up to WithBatch messages of one queue, in their order. It waits until there is one, or ctx ends, whose
// error it returns then. After Close it returns ErrClosed.
func (p *Poller) Poll(ctx context.Context) ([]*Message, error) {
	for {
		p.mu.Lock()
		if p.state != active {
			p.mu.Unlock()
			return nil, ErrClosed
		}
		t := p.next()
		p.mu.Unlock()
		if t != nil {
			return t.ms, nil
		}
		select {
		case <-p.arrived:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Commit says that messages are done; without any, everything that Poll returned is. The broker is told within
// WithCommitInterval, and when the Poller closes or a queue goes to another member. Messages of queues that were lost
// meanwhile are passed over.
func (p *Poller) Commit(ms ...*Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := len(ms) == 0
	for _, q := range p.queues {
		for t := range q.inflight {
			keep := t.ms[:0]
			for _, m := range t.ms {
				switch {
				case !all && !slices.Contains(ms, m):
					keep = append(keep, m)
				case t.epoch != q.epoch:
					p.account(q, m, -1)
				default:
					p.done(q, m)
				}
			}
			if t.ms = keep; len(keep) == 0 {
				delete(q.inflight, t)
			}
		}
		q.checkIdle()
	}
}

// CommitSync is Commit and waits until the brokers have the offsets.
func (p *Poller) CommitSync(ctx context.Context, ms ...*Message) error {
	p.Commit(ms...)
	ctx, cancel := p.c.bound(ctx)
	defer cancel()
	var moved []*queue
	p.mu.Lock()
	for _, q := range p.queues {
		if q.phase == running && q.dirty {
			moved = append(moved, q)
		}
	}
	p.mu.Unlock()
	for _, q := range moved {
		if err := q.link.commitNow(ctx, q); err != nil {
			return fmt.Errorf("commit of %s: %w", p.public(q.mq), err)
		}
	}
	return nil
}

// Assign reads exactly these queues from now on, whoever else does: no locks, no sharing out. It can't be combined
// with WithSubscription. Queues that were read before and aren't named are given up.
func (p *Poller) Assign(ctx context.Context, queues ...MessageQueue) error {
	p.mu.Lock()
	if len(p.o.subs) > 0 {
		p.mu.Unlock()
		return invalid("Assign: this Poller subscribes topics (WithSubscription), whose queues the group shares out")
	}
	if p.state != active {
		p.mu.Unlock()
		return invalid("Assign: start the Poller first")
	}
	p.manual = true
	p.chosen = p.chosen[:0]
	for _, q := range queues {
		q.Topic = p.c.wrap(q.Topic)
		p.chosen = append(p.chosen, q)
		if p.subs[q.Topic] == nil {
			p.subs[q.Topic] = &subscription{topic: q.Topic, expr: All, version: time.Now().UnixMilli()}
		}
	}
	p.mu.Unlock()
	ctx, cancel := p.c.bound(ctx)
	defer cancel()
	if !p.assignChosen(ctx) {
		return fmt.Errorf("assign: %w", ErrNoRoute)
	}
	for addr, err := range p.c.heartbeatAll(ctx) {
		p.log.Warn("a broker doesn't know this consumer yet", "addr", addr, "error", err)
	}
	return nil
}

// assignChosen takes the queues that Assign named, as far as their topics exist.
func (e *engine) assignChosen(ctx context.Context) bool {
	e.mu.Lock()
	chosen := map[string][]MessageQueue{}
	for topic := range e.subs {
		chosen[topic] = nil
	}
	for _, q := range e.chosen {
		chosen[q.Topic] = append(chosen[q.Topic], q)
	}
	e.mu.Unlock()
	complete := true
	for topic, queues := range chosen {
		if _, err := e.c.routes.get(ctx, topic, routeFresh); err != nil {
			complete = false
			continue
		}
		e.apply(topic, queues)
	}
	return complete
}

// find returns a queue that this Poller has.
func (p *Poller) find(mq MessageQueue) (*queue, error) {
	mq.Topic = p.c.wrap(mq.Topic)
	q := p.queues[mq]
	if q == nil || q.phase != running {
		return nil, invalid("queue %s isn't this Poller's now", mq)
	}
	return q, nil
}

// Seek goes on with a queue at offset. What was polled and not committed doesn't count any more.
func (p *Poller) Seek(mq MessageQueue, offset int64) error {
	if offset < 0 {
		return invalid("Seek: offset %d is negative", offset)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	q, err := p.find(mq)
	if err != nil {
		return fmt.Errorf("seek: %w", err)
	}
	clear(q.inflight)
	p.restart(q, offset)
	return nil
}

// PauseQueues stops Poll from returning messages of these queues until ResumeQueues.
func (p *Poller) PauseQueues(queues ...MessageQueue) error { return p.pauseQueues(true, queues) }

// ResumeQueues is the reverse of PauseQueues.
func (p *Poller) ResumeQueues(queues ...MessageQueue) error { return p.pauseQueues(false, queues) }

func (p *Poller) pauseQueues(paused bool, queues []MessageQueue) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, mq := range queues {
		q, err := p.find(mq)
		if err != nil {
			return err
		}
		q.paused = paused
		q.signalRoom()
		p.push(q)
	}
	p.dispatch()
	return nil
}

// Committed returns the group's offset in a queue as the broker has it; ok is false when it has none.
func (e *engine) Committed(ctx context.Context, mq MessageQueue) (offset int64, ok bool, err error) {
	mq.Topic = e.c.wrap(mq.Topic)
	e.mu.Lock()
	q := e.queues[mq]
	e.mu.Unlock()
	if q == nil {
		return 0, false, invalid("queue %s isn't this consumer's now", e.public(mq))
	}
	ctx, cancel := e.c.bound(ctx)
	defer cancel()
	offset, _, ok, err = e.stored(ctx, q)
	return offset, ok, err
}

// Queues returns all queues of a topic, whoever reads them.
func (c *Client) Queues(ctx context.Context, topic string) ([]MessageQueue, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	r, err := c.routes.get(ctx, c.wrap(topic), time.Second)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(r.read)
	for i := range out {
		out[i].Topic = topic
	}
	return out, nil
}

// Offsets returns the first offset of a queue and the one behind its last.
func (c *Client) Offsets(ctx context.Context, mq MessageQueue) (first, end int64, err error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	r, err := c.routes.get(ctx, c.wrap(mq.Topic), routeFresh)
	if err != nil {
		return 0, 0, err
	}
	addr, ok := r.master(mq.Broker)
	if !ok {
		return 0, 0, fmt.Errorf("broker %s: %w", mq.Broker, ErrNoRoute)
	}
	h := &protocol.QueueRequest{Topic: c.wrap(mq.Topic), QueueID: int32(mq.ID)}
	if first, err = c.askOffset(ctx, addr, protocol.GetMinOffset, h); err != nil {
		return 0, 0, err
	}
	end, err = c.askOffset(ctx, addr, protocol.GetMaxOffset, h)
	return first, end, err
}

// OffsetAt returns the offset of the first message of a queue that was stored at or after t.
func (c *Client) OffsetAt(ctx context.Context, mq MessageQueue, t time.Time) (int64, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	r, err := c.routes.get(ctx, c.wrap(mq.Topic), routeFresh)
	if err != nil {
		return 0, err
	}
	addr, ok := r.master(mq.Broker)
	if !ok {
		return 0, fmt.Errorf("broker %s: %w", mq.Broker, ErrNoRoute)
	}
	return c.askOffset(ctx, addr, protocol.SearchOffsetByTimestamp, &protocol.SearchOffsetRequest{Topic: c.wrap(mq.Topic), QueueID: int32(mq.ID), Timestamp: t.UnixMilli()})
}
