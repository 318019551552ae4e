package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/filter"
	"github.com/apogeemq/apogee/internal/message"
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

// readerGroup is a group that every broker has.
const readerGroup = "TOOLS_CONSUMER"

const (
	pullBatch   = 32
	pullSuspend = 15 * time.Second
	pullMargin  = 5 * time.Second // the answer's way, beyond the broker's hold
	readerRetry = 200 * time.Millisecond
	maxBody     = 64 << 20 // a decompressed one
)

// Read starts a reader. tags is a tag expression ("A || B"; "" or "*" for everything). ctx bounds the start only.
func (c *Client) Read(ctx context.Context, topic, tags string, start Start) (*Reader, error) {
	f, err := filter.Compile(filter.TypeTag, tags)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", topic, err)
	}
	d, err := c.route(ctx, topic, true)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	qs := queues(d, 4, func(q protocol.QueueData) int32 { return q.ReadQueueNums })
	if len(qs) == 0 {
		return nil, fmt.Errorf("read %s: %w with a readable queue", topic, ErrNoRoute)
	}
	code := protocol.GetMinOffset
	if start == Latest {
		code = protocol.GetMaxOffset
	}
	offsets := make([]int64, len(qs))
	for i, q := range qs {
		a, err := c.invoke(ctx, q.addr, &remoting.Request{Code: code, Header: &protocol.QueueRequest{Topic: topic, QueueID: q.id}})
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
func (r *Reader) loop(ctx context.Context, q queue, offset int64) {
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

func (r *Reader) pull(ctx context.Context, q queue, offset int64) ([]*Message, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, pullSuspend+pullMargin)
	defer cancel()
	h := &protocol.PullMessageRequest{ConsumerGroup: []byte(readerGroup), Topic: []byte(r.topic), QueueID: q.id, QueueOffset: offset, MaxMsgNums: pullBatch,
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
		ms, err := decode(a.Body, r.tags)
		return ms, p.NextBeginOffset, err
	case protocol.PullNotFound, protocol.PullRetryImmediately, protocol.PullOffsetMoved:
		return nil, p.NextBeginOffset, nil
	}
	return nil, 0, refusal(q.addr, a)
}

// decode reads the messages of a pull's body; tags that only share a hash with the expression's are dropped.
func decode(body []byte, tags *filter.Tags) ([]*Message, error) {
	var out []*Message
	for len(body) > 0 {
		var m message.Message
		n, err := message.DecodeRecord(body, &m, true)
		if err != nil {
			return out, fmt.Errorf("pull answer: %w", err)
		}
		body = body[n:]
		x := &Message{Topic: m.Topic, Queue: int(m.QueueID), QueueOffset: m.QueueOffset, OffsetID: message.OffsetID(m.StoreHost, m.PhysicalOffset),
			Born: time.UnixMilli(m.BornTimestamp), Stored: time.UnixMilli(m.StoreTimestamp), Retries: int(m.ReconsumeTimes), Properties: map[string]string{}}
		for k, v := range message.PropertyMap(m.Properties) {
			switch k {
			case message.PropertyTags:
				x.Tags = v
			case message.PropertyKeys:
				x.Keys = strings.Fields(v)
			case message.PropertyUniqueKey:
				x.ID = v
			case message.PropertyWaitStoreMsgOK, message.PropertyCluster, message.PropertyMsgRegion, message.PropertyTraceOn:
			default:
				x.Properties[k] = v
			}
		}
		if !tags.MatchTag(x.Tags) {
			continue
		}
		if x.Body, err = message.Decompress(m.SysFlag, m.Body, maxBody); err != nil {
			return out, errors.Join(fmt.Errorf("message %s", x.ID), err)
		}
		out = append(out, x)
	}
	return out, nil
}
