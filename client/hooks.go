package client

import (
	"context"
	"runtime/debug"
	"time"
)

// Hooks are functions that a Client calls around sends and handlers, for metrics and tracing. Each may be nil. They are
// called by many goroutines at once and should be quick. A panic in one is logged.
type Hooks struct {
	// Send is called before a message is sent, once however many attempts there will be; of a batch for each member.
	// It may add to m.Properties, with a map of its own. The context it returns is the send's. The function it
	// returns, which may be nil, is called when the send has ended; res is nil after an error and after SendOneWay.
	Send func(ctx context.Context, group string, m *Message) (context.Context, func(res *SendResult, err error))
	// Attempt is called after each attempt of a send, of a batch's once.
	Attempt func(a Attempt)
	// Consume is called before a handler gets messages. The context it returns is the handler's. The function it returns,
	// which may be nil, is called with the handler's error.
	Consume func(ctx context.Context, group string, ms []*Message) (context.Context, func(err error))
}

// Attempt is one attempt to send.
type Attempt struct {
	Group string
	Queue MessageQueue
	Addr  string // the broker's
	Took  time.Duration
	Err   error
}

// WithHooks adds hooks. Several are called in the order of the options, and their functions in the reverse order.
func WithHooks(h Hooks) Option {
	return func(o *options) error {
		o.hooks = append(o.hooks, h)
		return nil
	}
}

// guard keeps a panic of a hook from ending anything else.
func (c *Client) guard(f func()) {
	defer func() {
		if v := recover(); v != nil {
			c.log.Error("a hook panicked", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	f()
}

// beforeSend calls the Send hooks. What it returns is called once when the send has ended.
func (p *Producer) beforeSend(ctx context.Context, m *Message) (context.Context, func(*SendResult, error)) {
	if len(p.c.o.hooks) == 0 || p.inner || m == nil {
		return ctx, func(*SendResult, error) {}
	}
	var after []func(*SendResult, error)
	for _, h := range p.c.o.hooks {
		if h.Send == nil {
			continue
		}
		p.c.guard(func() {
			c, f := h.Send(ctx, p.c.unwrap(p.group), m)
			if c != nil {
				ctx = c
			}
			if f != nil {
				after = append(after, f)
			}
		})
	}
	return ctx, func(res *SendResult, err error) {
		for i := len(after) - 1; i >= 0; i-- {
			p.c.guard(func() { after[i](res, err) })
		}
	}
}

func (p *Producer) attempted(q MessageQueue, addr string, took time.Duration, err error) {
	if p.inner {
		return
	}
	for _, h := range p.c.o.hooks {
		if h.Attempt != nil {
			p.c.guard(func() {
				h.Attempt(Attempt{Group: p.c.unwrap(p.group), Queue: MessageQueue{p.c.unwrap(q.Topic), q.Broker, q.ID}, Addr: addr, Took: took, Err: err})
			})
		}
	}
}

// beforeConsume calls the Consume hooks. What it returns is called once with the handler's error.
func (c *Client) beforeConsume(ctx context.Context, group string, ms []*Message) (context.Context, func(error)) {
	if len(c.o.hooks) == 0 {
		return ctx, func(error) {}
	}
	var after []func(error)
	for _, h := range c.o.hooks {
		if h.Consume == nil {
			continue
		}
		c.guard(func() {
			x, f := h.Consume(ctx, group, ms)
			if x != nil {
				ctx = x
			}
			if f != nil {
				after = append(after, f)
			}
		})
	}
	return ctx, func(err error) {
		for i := len(after) - 1; i >= 0; i-- {
			c.guard(func() { after[i](err) })
		}
	}
}
