package client

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// Producer sends messages. It is safe for concurrent use.
//
// A send tries up to three times (WithRetries), on other brokers where there are any, for as long as its context
// allows. What it may try again: everything that another attempt can change, which is a server that can't be reached
// or doesn't answer, and the codes on which Java retries (see Classify). A message keeps its id in all attempts, so
// that consumers can tell the copies of one whose first attempt seemed to fail and didn't.
//
// Messages with a ShardingKey stay in order: those of one topic and key are sent one at a time in the order of the
// calls, each to the queue of the key. When one fails, those that wait behind it fail, too, with ErrEarlierFailed:
// they don't overtake it. The queue is a function of the key and of the topic's list of queues. While the broker of
// the queue is away, sends with its keys fail. When the name server takes the broker out of the route (at once when it
// said goodbye, after two minutes when it crashed), or when queues are added, the list changes and keys move to other
// queues, as they do with Java's producers; a topic with a fixed order configuration keeps its list.
//
// A message belongs to the producer until the call returns or, with SendAsync, until the callback runs.
type Producer struct {
	c       *Client
	group   string // wrapped
	o       producerOptions
	gate    *gate
	stopped context.Context // ends when the producer must let go of everything
	stop    context.CancelFunc
	room    *room // of SendAsync
	checks  *room // of transaction checks
	lanes   lanes
	turns   turns
	zip     *message.Compressor // nil: off
	slow    *avoidance          // nil: off
	batcher *batcher            // nil: off
	unmet   sync.Map            // address → when the broker couldn't be met, see meet
	inner   bool                // the client's own: it isn't traced
}

// NewProducer returns a producer of a group, of which a Client has at most one producer at a time. It connects when it
// sends.
func (c *Client) NewProducer(group string, opts ...ProducerOption) (*Producer, error) {
	if err := checkGroup(group); err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	if group == "DEFAULT_PRODUCER" {
		return nil, invalid("producer: %s is the name of Java's default group, which no client may have: choose another", group)
	}
	p, err := c.makeProducer(group, opts...)
	if err != nil {
		return nil, fmt.Errorf("producer %s: %w", group, err)
	}
	c.mu.Lock()
	_, there := c.producers[p.group]
	if !there && !c.closed {
		c.producers[p.group] = p
		c.children[p] = struct{}{}
	}
	closed := c.closed
	c.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case there:
		return nil, invalid("producer: this client has a producer of group %s already: use that one, close it first, or make another client", group)
	}
	// Brokers that know the client already learn of the group now: they ask its members about transactions.
	for _, k := range c.conns.open() {
		c.run.Go(func(ctx context.Context) {
			if err := c.sendHeartbeat(ctx, k); err != nil {
				c.log.Debug("heartbeat failed", "addr", k.addr, "error", err)
			}
		})
	}
	return p, nil
}

// makeProducer makes a producer that nobody knows of.
func (c *Client) makeProducer(group string, opts ...ProducerOption) (*Producer, error) {
	o := defaultProducerOptions()
	for _, f := range opts {
		if err := f(&o); err != nil {
			return nil, err
		}
	}
	if o.batchSize > o.maxSize {
		o.batchSize = o.maxSize
	}
	p := &Producer{c: c, group: c.wrap(group), o: o, gate: newGate(), room: newRoom(o.outstanding, o.bytes), checks: newRoom(16, 1<<40)}
	p.stopped, p.stop = context.WithCancel(context.Background())
	if o.compression != NoCompression {
		var err error
		if p.zip, err = message.NewCompressor(o.compression.flag(), o.level); err != nil {
			return nil, err
		}
	}
	if o.avoidSlow {
		p.slow = new(avoidance)
	}
	if o.linger > 0 {
		p.batcher = newBatcher(p)
	}
	return p, nil
}

// Close refuses new calls, waits for those under way and for callbacks, and tells the brokers goodbye. When ctx ends
// before, what still goes on fails with ErrClosed and Close returns ctx's error. A second Close does nothing. It must not
// be called from a callback.
func (p *Producer) Close(ctx context.Context) error {
	if !p.gate.shut() {
		return nil
	}
	if p.batcher != nil {
		p.batcher.flush()
	}
	err := p.gate.wait(ctx)
	p.stop()
	p.c.mu.Lock()
	if p.c.producers[p.group] == p {
		delete(p.c.producers, p.group)
	}
	p.c.mu.Unlock()
	if !p.inner {
		p.goodbye(ctx)
	}
	p.c.disown(p)
	if err != nil {
		return fmt.Errorf("close producer: %w", err)
	}
	return nil
}

// goodbye tells the brokers that are connected. A broker that doesn't hear it notices at the next heartbeat.
func (p *Producer) goodbye(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.c.o.timeout)
	defer cancel()
	conns := p.c.conns.open()
	done := make(chan struct{}, len(conns))
	for _, k := range conns {
		if !p.c.run.Go(func(context.Context) {
			_, err := k.rc.Invoke(ctx, p.c.sign(&remoting.Request{Code: protocol.UnregisterClient, Language: protocol.Go,
				Header: &protocol.UnregisterClientRequest{ClientID: p.c.id, ProducerGroup: p.group}}))
			if err != nil {
				p.c.log.Debug("a broker didn't hear that a producer closed", "addr", k.addr, "group", p.group, "error", err)
			}
			done <- struct{}{}
		}) {
			done <- struct{}{}
		}
	}
	for range conns {
		<-done
	}
}

// begin starts a call: it gives the call its deadline and ends it when the producer must stop.
func (p *Producer) begin(ctx context.Context) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if !p.gate.enter() {
		return nil, nil, ErrClosed
	}
	ctx, end := p.limit(ctx)
	return ctx, func() { end(); p.gate.leave() }, nil
}

func (p *Producer) limit(ctx context.Context) (context.Context, func()) {
	var cancel context.CancelFunc
	if _, ok := ctx.Deadline(); ok {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithTimeout(ctx, p.o.timeout)
	}
	unhook := context.AfterFunc(p.stopped, cancel)
	return ctx, func() { unhook(); cancel() }
}

// explain makes the error of a call that the producer's end cut off ErrClosed.
func (p *Producer) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	if p.stopped.Err() != nil && errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", what, ErrClosed)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Send sends m and waits until the broker has it, as safe as its flush mode promises; Status says when it is less.
// ctx bounds everything; without a deadline WithSendTimeout does. Send sets m.ID.
func (p *Producer) Send(ctx context.Context, m *Message, opts ...SendOption) (*SendResult, error) {
	ctx, done, err := p.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	defer done()
	t := p.place(m)
	if err := t.wait(ctx); err != nil {
		return nil, p.explain("send", err)
	}
	res, err := p.sendOne(ctx, m, collect(opts))
	t.done(laneError(err))
	return res, p.explain("send", err)
}

// SendOneWay sends m without an answer: nil means that it was given to a connection, and nothing more. A broker that
// can't be reached is replaced by another.
func (p *Producer) SendOneWay(ctx context.Context, m *Message, opts ...SendOption) error {
	ctx, done, err := p.begin(ctx)
	if err != nil {
		return fmt.Errorf("send one-way: %w", err)
	}
	defer done()
	t := p.place(m)
	if err := t.wait(ctx); err != nil {
		return p.explain("send one-way", err)
	}
	_, err = p.hooked(ctx, m, func(ctx context.Context) (*SendResult, error) {
		out, err := p.encode(m, collect(opts))
		if err != nil {
			return nil, err
		}
		out.oneWay = true
		return p.deliver(ctx, out)
	})
	t.done(laneError(err))
	return p.explain("send one-way", err)
}

func collect(opts []SendOption) (so sendOptions) {
	for _, f := range opts {
		f(&so)
	}
	return so
}

// place queues m behind those of its key.
func (p *Producer) place(m *Message) *laneTurn {
	if m == nil {
		return nil
	}
	return p.lanes.queue(m.Topic, m.ShardingKey)
}

// laneError is what fails those who wait behind a message. One that can't be right was never on its way: it holds
// nobody up.
func laneError(err error) error {
	if errors.Is(err, ErrInvalid) {
		return nil
	}
	return err
}

// sendOne sends one message, its turn being come.
func (p *Producer) sendOne(ctx context.Context, m *Message, so sendOptions) (*SendResult, error) {
	return p.hooked(ctx, m, func(ctx context.Context) (*SendResult, error) { return p.sendEncoded(ctx, m, so) })
}

func (p *Producer) sendEncoded(ctx context.Context, m *Message, so sendOptions) (*SendResult, error) {
	if p.batcher != nil && p.batcher.takes(m, so) {
		if err := p.check(m); err != nil {
			return nil, err
		}
		return p.batcher.send(ctx, m)
	}
	out, err := p.encode(m, so)
	if err != nil {
		return nil, err
	}
	return p.deliver(ctx, out)
}

// attemptTime is how long an attempt may take. One that has others behind it on other brokers leaves them time.
func attemptTime(left time.Duration, attemptsLeft, brokers int, limit time.Duration) time.Duration {
	if brokers > 1 && attemptsLeft > 1 {
		left /= time.Duration(attemptsLeft)
	}
	if limit > 0 && limit < left {
		return limit
	}
	return left
}

// pause is how long the n-th repetition waits that goes to the broker that failed just before. Another broker is
// tried at once.
func pause(n int) time.Duration { return min(50*time.Millisecond<<min(n, 8), 2*time.Second) }

// deliver brings out to a broker, in as many attempts as there may be.
func (p *Producer) deliver(ctx context.Context, out *outgoing) (*SendResult, error) {
	var last error
	var ok *SendResult // stored, but less safe than wanted
	failed := ""
	begin := time.Now()
	attempts := p.o.retries + 1
	for n := range attempts {
		res, broker, brokers, err := p.attempt(ctx, out, failed, attempts-n)
		switch {
		case err == nil && (res.Status == StatusOK || !p.o.retryNotOK || n == attempts-1):
			p.trace(out, res, begin, nil)
			return res, nil
		case err == nil:
			ok = res
		default:
			last = err
		}
		if ctx.Err() != nil || err != nil && !repeats(err, broker == "" || brokers > 1) {
			attempts = n + 1
			break
		}
		if failed = broker; (broker == "" || brokers == 1) && n < attempts-1 {
			t := time.NewTimer(pause(n))
			select {
			case <-t.C:
			case <-ctx.Done():
			}
			t.Stop()
		}
	}
	if ok != nil { // it has been stored once
		p.trace(out, ok, begin, nil)
		return ok, nil
	}
	p.trace(out, nil, begin, last)
	if attempts > 1 {
		return nil, fmt.Errorf("%d attempts failed, the last: %w", attempts, last)
	}
	return nil, last
}

// repeats reports whether another attempt can end better than with err.
func repeats(err error, elsewhere bool) bool {
	if !Classify(err).Retriable {
		return false
	}
	var refused *Error
	if errors.As(err, &refused) && !elsewhere {
		switch protocol.ResponseCode(refused.Code) {
		case protocol.SystemError, protocol.SystemBusy, protocol.ServiceNotAvailable, protocol.GoAway:
		default:
			return false // another broker might take it, the same won't
		}
	}
	return true
}

// attempt makes one. It returns the broker it went to, "" when there was none, and how many there were to choose from.
func (p *Producer) attempt(ctx context.Context, out *outgoing, failed string, attemptsLeft int) (*SendResult, string, int, error) {
	r, q, brokers, err := p.choose(ctx, out, failed)
	if err != nil {
		return nil, "", 0, err
	}
	addr, ok := r.master(q.Broker)
	if !ok {
		p.c.routes.kick(out.topic)
		return nil, q.Broker, brokers, fmt.Errorf("queue %s: %w: its broker has no master now", q, ErrNoRoute)
	}
	one := ctx
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		if d := attemptTime(left, attemptsLeft, brokers, p.o.attempt); d < left {
			var cancel context.CancelFunc
			one, cancel = context.WithTimeout(ctx, d)
			defer cancel()
		}
	}
	begin := time.Now()
	res, err := p.sendTo(one, addr, q, out)
	took := time.Since(begin)
	if err != nil && errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%s (%s) didn't answer within %s: %w", q.Broker, addr, took.Round(time.Millisecond), err)
	}
	p.learn(q.Broker, took, err)
	p.attempted(q, addr, took, err)
	return res, q.Broker, brokers, err
}

// learn tells the avoidance how an attempt went.
func (p *Producer) learn(broker string, took time.Duration, err error) {
	if p.slow == nil {
		return
	}
	k := Classify(err)
	switch {
	case err == nil:
		p.slow.observe(broker, took, time.Now())
	case k.Who == Network || k.Who == Server:
		p.slow.failed(broker, k.Who == Network, time.Now())
	}
}

// call runs a user's callback. A panic in it is logged, and ends nothing.
func (p *Producer) call(done func(*SendResult, error), res *SendResult, err error) {
	defer func() {
		if v := recover(); v != nil {
			p.c.log.Error("a callback panicked", "group", p.group, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	if done != nil {
		done(res, err)
	}
}

// SendAsync sends m and calls done once, on another goroutine, with what Send would return. It waits for room
// (WithOutstanding) as long as ctx allows; without room done gets ctx's error. The context's end ends the send, too,
// so it must live as long as that: a context without a deadline gets WithSendTimeout. Callbacks come in any order and may
// send. A nil done is allowed; m's fate is then logged only.
func (p *Producer) SendAsync(ctx context.Context, m *Message, done func(*SendResult, error), opts ...SendOption) {
	fail := func(err error) { p.refuseAsync(done, fmt.Errorf("send: %w", err)) }
	if m == nil {
		fail(p.check(nil))
		return
	}
	if err := ctx.Err(); err != nil {
		fail(err)
		return
	}
	if !p.gate.enter() {
		fail(ErrClosed)
		return
	}
	ctx, end := p.limit(ctx)
	taken, err := p.room.take(ctx, int64(len(m.Body)))
	if err != nil {
		err = p.explain("wait for room", err)
		end()
		p.gate.leave()
		fail(err)
		return
	}
	t := p.place(m)
	p.identify(m)
	started := p.c.run.Go(func(context.Context) {
		defer p.gate.leave()
		defer end()
		err := t.wait(ctx)
		var res *SendResult
		if err == nil {
			res, err = p.sendOne(ctx, m, collect(opts))
			t.done(laneError(err)) // before the callback, which may send again
		}
		p.room.give(taken)
		if err != nil && done == nil {
			p.c.log.Warn("a message wasn't sent", "topic", m.Topic, "id", m.ID, "error", err)
		}
		p.call(done, res, p.explain("send", err))
	})
	if !started {
		end()
		if t.wait(ctx) == nil { // its turn, although the context has ended
			t.done(ErrClosed)
		}
		p.room.give(taken)
		p.gate.leave()
		fail(ErrClosed)
	}
}

// refuseAsync calls done from a goroutine of its own; from the caller's only when the client is closed.
func (p *Producer) refuseAsync(done func(*SendResult, error), err error) {
	if !p.c.run.Go(func(context.Context) { p.call(done, nil, err) }) {
		p.call(done, nil, err)
	}
}

// answerProducer serves what brokers ask producers: what became of a transaction, and the reply to a request.
func (c *Client) answerProducer(ctx context.Context, rc *remoting.Conn, req *remoting.Command) (*remoting.Response, bool) {
	switch protocol.RequestCode(req.Code) {
	case protocol.CheckTransactionState:
		c.checkTransaction(ctx, rc, req)
		return nil, true
	case protocol.PushReplyMessageToClient:
		return c.reply(req), true
	}
	return nil, false
}

// messageOf reads a stored message that a broker sent.
func (c *Client) messageOf(broker string, body []byte) (*Message, error) {
	var m message.Message
	if _, err := message.DecodeRecord(body, &m, true); err != nil {
		return nil, err
	}
	x := c.fromRecord(broker, &m)
	var err error
	x.Body, err = message.Decompress(m.SysFlag, m.Body, maxBody)
	return x, err
}
