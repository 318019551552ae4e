package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/filter"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// Start says where a Reader begins in each queue.
type Start int

// The starts.
const (
	Earliest Start = iota // with the first message that is there
	Latest                // with the first message stored from now on
)

// Reader reads all queues of a topic, outside of any consumer group: it commits no offset, and every reader gets
// every message. Messages of one queue come in their order.
type Reader struct {
	c      *Client
	topic  string
	tags   *filter.Tags
	expr   string
	out    chan *Message
	cancel context.CancelFunc
	wg     sync.WaitGroup
	done   chan struct{}
}

// place is one queue and where it is.
type place struct {
	broker, addr string
	id           int32
}

// readerGroup is a group that every broker has.
const readerGroup = "TOOLS_CONSUMER"

const (
	pullBatch   = 32
	pullSuspend = 15 * time.Second
	pullMargin  = 5 * time.Second // the answer's way, beyond the broker's hold
	readerRetry = 200 * time.Millisecond
)

// Read starts a reader. tags is a tag expression ("A || B"; "" or "*" for everything). ctx bounds the start only.
func (c *Client) Read(ctx context.Context, topic, tags string, start Start) (*Reader, error) {
	f, err := filter.Compile(filter.TypeTag, tags)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", topic, err)
	}
	d, err := c.routes.get(ctx, c.wrap(topic), 0)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	var qs []place
	for _, q := range d.read {
		if addr, ok := d.master(q.Broker); ok {
			qs = append(qs, place{broker: q.Broker, addr: addr, id: int32(q.ID)})
		}
	}
	if len(qs) == 0 {
		return nil, fmt.Errorf("read %s: %w with a readable queue", topic, ErrNoRoute)
	}
	code := protocol.GetMinOffset
	if start == Latest {
		code = protocol.GetMaxOffset
	}
	offsets := make([]int64, len(qs))
	for i, q := range qs {
		a, err := c.invoke(ctx, q.addr, &remoting.Request{Code: code, Header: &protocol.QueueRequest{Topic: c.wrap(topic), QueueID: q.id}})
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", topic, err)
		}
		if a.Code != int32(protocol.Success) {
			return nil, fmt.Errorf("read %s: %w", topic, refusal(q.addr, a))
		}
		var h protocol.OffsetResponse
		if err := protocol.Decode(a.Fields, &h); err != nil {
			return nil, fmt.Errorf("read %s: %w", topic, err)
		}
		offsets[i] = h.Offset
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &Reader{c: c, topic: topic, tags: f, expr: tags, out: make(chan *Message), cancel: cancel, done: make(chan struct{})}
	if f == nil {
		r.expr = "*"
	}
	for i, q := range qs {
		r.wg.Go(func() { r.loop(run, q, offsets[i]) })
	}
	return r, nil
}

// Next returns the next message. It ends with ctx, or with ErrClosed after Close; what a broker or the network
// does wrong meanwhile is tried again.
func (r *Reader) Next(ctx context.Context) (*Message, error) {
	select {
	case m := <-r.out:
		return m, nil
	case <-r.done:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close ends the reader and waits for its goroutines. It is called once.
func (r *Reader) Close() {
	r.cancel()
	r.wg.Wait()
	close(r.done)
}

// loop pulls one queue until the reader closes. Transport errors are tried again.
func (r *Reader) loop(ctx context.Context, q place, offset int64) {
	for ctx.Err() == nil {
		ms, next, err := r.pull(ctx, q, offset)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			t := time.NewTimer(readerRetry)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
			continue
		}
		offset = next
		for _, m := range ms {
			select {
			case r.out <- m:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (r *Reader) pull(ctx context.Context, q place, offset int64) ([]*Message, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, pullSuspend+pullMargin)
	defer cancel()
	h := &protocol.PullMessageRequest{ConsumerGroup: []byte(readerGroup), Topic: []byte(r.c.wrap(r.topic)), QueueID: q.id, QueueOffset: offset, MaxMsgNums: pullBatch,
		SysFlag: protocol.PullSuspend | protocol.PullSubscription, SuspendTimeoutMillis: pullSuspend.Milliseconds(), Subscription: []byte(r.expr),
		ExpressionType: []byte(filter.TypeTag), BrokerName: []byte(q.broker)}
	a, err := r.c.invoke(ctx, q.addr, &remoting.Request{Code: protocol.PullMessage, Header: h})
	if err != nil {
		return nil, 0, err
	}
	var p protocol.PullMessageResponse
	if err := p.DecodeFields(a.Fields); err != nil {
		return nil, 0, err
	}
	switch protocol.ResponseCode(a.Code) {
	case protocol.Success:
		ms, err := r.c.decode(q.broker, a.Body, r.tags)
		return ms, p.NextBeginOffset, err
	case protocol.PullNotFound, protocol.PullRetryImmediately, protocol.PullOffsetMoved:
		return nil, p.NextBeginOffset, nil
	}
	return nil, 0, refusal(q.addr, a)
}
