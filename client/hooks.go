package client

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"
)

// ProducerHooks are called around a producer's work, for metrics and tracing. Any may be nil. They run on the goroutine
// that sends and must be quick.
type ProducerHooks struct {
	// Send wraps every send, once however many attempts it takes: it calls next, once, and returns its error, or another. ms is
	// one message, or those of a SendBatch; their Properties may be replaced before next. Of an error next
	// returns the results of the messages that were sent, if any. SendOneWay's result tells only where it went.
	Send func(ctx context.Context, ms []*Message, next func(context.Context) ([]*SendResult, error)) error
	// Attempt is called after every attempt to send, of a batch's once.
	Attempt func(Attempt)
}

// Attempt is one attempt to send.
type Attempt struct {
	Queue MessageQueue
	Addr  string // the broker's
	Took  time.Duration
	Err   error
}

// WithProducerHooks sets hooks for metrics and tracing.
func WithProducerHooks(h ProducerHooks) ProducerOption {
	return func(o *producerOptions) error { o.hooks = h; return nil }
}

// survive makes a panic of a user's selector or hook an error: whoever waits behind the message must not wait for ever.
func (p *Producer) survive(err *error) {
	if v := recover(); v != nil {
		p.c.log.Error("a selector or hook panicked", "group", p.group, "panic", v, "stack", string(debug.Stack()))
		*err = fmt.Errorf("a selector or hook panicked: %v", v)
	}
}

// hooked sends one message inside of the Send hook.
func (p *Producer) hooked(ctx context.Context, m *Message, send func(context.Context) (*SendResult, error)) (res *SendResult, err error) {
	defer p.survive(&err)
	if p.o.hooks.Send == nil || m == nil {
		return send(ctx)
	}
	err = p.o.hooks.Send(ctx, []*Message{m}, func(ctx context.Context) ([]*SendResult, error) {
		var err error
		if res, err = send(ctx); err != nil {
			return nil, err
		}
		return []*SendResult{res}, nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// hookedBatch sends several messages inside of the Send hook.
func (p *Producer) hookedBatch(ctx context.Context, ms []*Message, send func(context.Context) ([]*SendResult, error)) (results []*SendResult, err error) {
	defer p.survive(&err)
	if p.o.hooks.Send == nil {
		return send(ctx)
	}
	err = p.o.hooks.Send(ctx, ms, func(ctx context.Context) ([]*SendResult, error) {
		var err error
		results, err = send(ctx)
		return results, err
	})
	return results, err
}

// attempted tells the Attempt hook.
func (p *Producer) attempted(q MessageQueue, addr string, took time.Duration, err error) {
	if p.o.hooks.Attempt != nil {
		p.o.hooks.Attempt(Attempt{Queue: MessageQueue{p.c.unwrap(q.Topic), q.Broker, q.ID}, Addr: addr, Took: took, Err: err})
	}
}
