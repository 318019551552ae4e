package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
)

// batchItemSize is what a batch needs for a message besides its body and properties.
const batchItemSize = 22

// SendBatch sends messages of one topic together, in as few requests as WithBatchSize allows; those of a request are
// stored one behind the other in one queue, all or none. Every message has an id of its own. The results are those of
// the messages, index by index. When a request fails, what follows isn't sent: its results, and those of the failed
// request, are nil, and the error says how many were sent.
//
// Messages of a batch have one topic, no delay and no time of delivery, and all of them one ShardingKey or none; retry
// topics (%RETRY%…) take no batches.
func (p *Producer) SendBatch(ctx context.Context, ms []*Message, opts ...SendOption) ([]*SendResult, error) {
	ctx, done, err := p.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("send batch: %w", err)
	}
	defer done()
	if err := p.checkBatch(ms); err != nil {
		return nil, fmt.Errorf("send batch: %w", err)
	}
	t := p.place(ms[0])
	if err := t.wait(ctx); err != nil {
		return nil, p.explain("send batch", err)
	}
	results, err := p.sendBatch(ctx, ms, collect(opts))
	t.done(laneError(err))
	return results, p.explain("send batch", err)
}

func (p *Producer) checkBatch(ms []*Message) error {
	if len(ms) == 0 {
		return invalid("the batch holds no message")
	}
	for i, m := range ms {
		if err := p.check(m); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		switch first := ms[0]; {
		case m.Topic != first.Topic:
			return invalid("message %d has topic %s, message 0 has %s: a batch has one topic", i, m.Topic, first.Topic)
		case m.DelayLevel > 0 || !m.DeliverAt.IsZero():
			return invalid("message %d is delayed: a batch isn't, send it singly", i)
		case m.ShardingKey != first.ShardingKey:
			return invalid("message %d has sharding key %q, message 0 has %q: a batch goes to one queue", i, m.ShardingKey, first.ShardingKey)
		case len(m.Topic) > len(message.RetryPrefix) && m.Topic[:len(message.RetryPrefix)] == message.RetryPrefix:
			return invalid("message %d: topic %s takes no batches, send it singly", i, m.Topic)
		}
	}
	return nil
}

// sendBatch sends checked messages.
func (p *Producer) sendBatch(ctx context.Context, ms []*Message, so sendOptions) ([]*SendResult, error) {
	return p.hookedBatch(ctx, ms, func(ctx context.Context) ([]*SendResult, error) {
		results := make([]*SendResult, len(ms))
		sent, err := p.sendChunks(ctx, ms, so, results)
		if err != nil {
			err = fmt.Errorf("%d of %d messages sent: %w", sent, len(ms), err)
		}
		return results, err
	})
}

// batchItem is a message as a batch holds it.
type batchItem struct {
	m    *Message
	data []byte
}

func (p *Producer) item(m *Message) (batchItem, error) {
	p.identify(m)
	props, err := p.properties(m)
	if err != nil {
		return batchItem{}, err
	}
	return batchItem{m, message.AppendBatchItem(make([]byte, 0, len(m.Body)+len(props)+batchItemSize), 0, m.Body, props)}, nil
}

func (p *Producer) sendChunks(ctx context.Context, ms []*Message, so sendOptions, results []*SendResult) (sent int, err error) {
	items := make([]batchItem, len(ms))
	for i, m := range ms { // all of them first: a message that can't be right sends none
		if items[i], err = p.item(m); err != nil {
			return 0, fmt.Errorf("message %d: %w", i, err)
		}
	}
	for sent < len(items) {
		n, size := 0, 0
		for sent+n < len(items) && (n == 0 || size+len(items[sent+n].data) <= p.o.batchSize) {
			size += len(items[sent+n].data)
			n++
		}
		rs, err := p.sendItems(ctx, items[sent:sent+n], so)
		if err != nil {
			return sent, err
		}
		copy(results[sent:], rs)
		sent += n
	}
	return sent, nil
}

// sendItems sends one request's messages.
func (p *Producer) sendItems(ctx context.Context, items []batchItem, so sendOptions) ([]*SendResult, error) {
	first := items[0].m
	if len(items) == 1 {
		out, err := p.encode(first, so)
		if err != nil {
			return nil, err
		}
		res, err := p.deliver(ctx, out)
		return []*SendResult{res}, err
	}
	out := &outgoing{m: first, code: protocol.SendBatchMessage, topic: p.c.wrap(first.Topic)}
	if err := p.direct(out, so); err != nil {
		return nil, err
	}
	for _, it := range items {
		out.body = append(out.body, it.data...)
		out.ids = append(out.ids, it.m.ID)
	}
	// No unique id here: brokers put a batch's properties behind each member's, and the last one counts.
	out.props = message.AppendProperty(nil, message.PropertyWaitStoreMsgOK, "true")
	res, err := p.deliver(ctx, out)
	if err != nil {
		return nil, err
	}
	return split(res, items), nil
}

// split makes the members' results of a batch's.
func split(res *SendResult, items []batchItem) []*SendResult {
	ids := splitAddrs(res.OffsetID)
	out := make([]*SendResult, len(items))
	for i, it := range items {
		one := *res
		one.ID, one.OffsetID, one.QueueOffset, one.TransactionID = it.m.ID, "", res.QueueOffset+int64(i), ""
		if len(ids) == len(items) {
			one.OffsetID = ids[i]
		}
		out[i] = &one
	}
	return out
}

// batcher gathers messages into batches (WithAutoBatch).
type batcher struct {
	p *Producer

	mu     sync.Mutex
	m      map[batchKey]*gathering
	closed bool // nothing waits any more
}

type batchKey struct{ topic, tag string }

// gathering is a batch that isn't full.
type gathering struct {
	items    []batchItem
	size     int
	deadline time.Time     // the latest of its members'
	done     chan struct{} // closed when results or err are set
	results  []*SendResult
	err      error
	timer    *time.Timer
}

func newBatcher(p *Producer) *batcher { return &batcher{p: p, m: map[batchKey]*gathering{}} }

// takes reports whether a message can go with others.
func (b *batcher) takes(m *Message, so sendOptions) bool {
	return m != nil && so.queue == nil && so.selector == nil && m.ShardingKey == "" && m.DelayLevel == 0 && m.DeliverAt.IsZero() &&
		len(m.Topic) > 0 && m.Topic[0] != '%' && len(m.Body) < b.p.o.lingerBytes
}

// send puts m into a batch and waits for its result. ctx's end ends the wait; the batch goes on for the others.
func (b *batcher) send(ctx context.Context, m *Message) (*SendResult, error) {
	it, err := b.p.item(m)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	k := batchKey{m.Topic, m.Tags}
	b.mu.Lock()
	g := b.m[k]
	if g != nil && g.size+len(it.data) > b.p.o.batchSize {
		b.goLocked(k, g)
		g = nil
	}
	if g == nil {
		g = &gathering{done: make(chan struct{})}
		b.m[k] = g
		g.timer = time.AfterFunc(b.p.o.linger, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.m[k] == g {
				b.goLocked(k, g)
			}
		})
	}
	at := len(g.items)
	g.items = append(g.items, it)
	g.size += len(it.data)
	if deadline.After(g.deadline) {
		g.deadline = deadline
	}
	if g.size >= b.p.o.lingerBytes || b.closed {
		b.goLocked(k, g)
	}
	b.mu.Unlock()
	select {
	case <-g.done:
		if g.err != nil {
			return nil, g.err
		}
		return g.results[at], nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// goLocked sends a batch in a goroutine of its own.
func (b *batcher) goLocked(k batchKey, g *gathering) {
	delete(b.m, k)
	g.timer.Stop()
	if !b.p.c.run.Go(func(run context.Context) {
		defer close(g.done)
		ctx, cancel := context.WithDeadline(run, g.deadline)
		defer cancel()
		defer context.AfterFunc(b.p.stopped, cancel)()
		g.results, g.err = b.p.sendItems(ctx, g.items, sendOptions{})
		if g.err != nil && b.p.stopped.Err() != nil && errors.Is(g.err, context.Canceled) {
			g.err = ErrClosed
		}
	}) {
		g.err = ErrClosed
		close(g.done)
	}
}

// flush sends what waits, and makes what still comes go at once.
func (b *batcher) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for k, g := range b.m {
		b.goLocked(k, g)
	}
}
