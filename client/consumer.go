package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/apogeemq/apogee/internal/filter"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/run"
)

// Consumer handles the messages of its topics as a member of a consumer group.
//
// The group's queues are shared out among its members. Before a queue goes from one member to another, the first one
// stops fetching, lets its handlers finish (WithDrainTimeout), commits, and frees the queue's lock on the broker; only
// then the other one begins. So neither a join nor a leave brings a message twice, as long as all members are of this
// package, or ordered ones of Java's.
type Consumer struct{ *engine }

// engine is what Consumers and Pollers share: membership, queues, fetching, offsets.
//
// How it works: one goroutine (control) finds out which queues are this member's. A link for each broker gets their
// locks and tells the broker of offsets. Each queue has a goroutine that fetches. Handlers run on goroutines that
// start when there is work and end when there is none.
type engine struct {
	c      *Client
	name   string // as the user gave it
	group  string // wrapped
	o      consumerOptions
	log    *slog.Logger
	run    *run.Group
	work   *run.Group // handlers: they outlive run
	limit  *rate.Limiter
	local  *localOffsets // broadcasting
	poller bool          // messages go out through Poll

	wakes   chan struct{} // control looks again, capacity 1
	arrived chan struct{} // Poll looks again, capacity 1

	mu      sync.Mutex // guards what follows, and all queues
	state   state
	subs    map[string]*subscription // by wrapped topic
	queues  map[MessageQueue]*queue
	links   map[string]*link // by broker name
	ring    []*queue         // with work to hand out
	active  int              // handlers that run
	count   int              // messages in memory
	bytes   int
	starved bool // some queue waits for the limits over all
	paused  bool
	manual  bool                    // Assign chose the queues
	chosen  []MessageQueue          // by Assign
	owners  map[MessageQueue]string // client ids, as far as known
	ends    map[MessageQueue]int64  // where queues ended when Start was called
	started time.Time
	drainBy time.Time     // Close's limit
	grace   time.Duration // for handlers that don't heed the end of their context
	empty   chan struct{} // closed when the last queue is gone while closing
}

type state int

const (
	created state = iota
	active
	closing
	closed
)

// NewConsumer returns a consumer of a group, which a Client can have one of. It does nothing until Start.
func (c *Client) NewConsumer(group string, opts ...ConsumerOption) (*Consumer, error) {
	o := defaultConsumerOptions()
	e, err := c.newEngine(group, o, opts)
	if err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	if len(e.subs) == 0 {
		return nil, fmt.Errorf("consumer: %w", invalid("no topic: use WithHandler or WithBatchHandler"))
	}
	for topic, s := range e.subs {
		if s.single == nil && s.handler == nil && topic != e.retryTopic() {
			return nil, fmt.Errorf("consumer: %w", invalid("topic %s has no handler: WithSubscription is for Pollers", topic))
		}
	}
	return &Consumer{e}, nil
}

func (c *Client) newEngine(group string, o consumerOptions, opts []ConsumerOption) (*engine, error) {
	if err := checkGroup(group); err != nil {
		return nil, err
	}
	if group == "DEFAULT_CONSUMER" {
		return nil, invalid("group DEFAULT_CONSUMER is reserved: choose another name")
	}
	for _, f := range opts {
		if err := f(&o); err != nil {
			return nil, err
		}
	}
	if !o.broadcast && (o.offsetsDir != "" || o.instance != "") {
		return nil, invalid("WithOffsetsDir is for broadcasting consumers: add WithBroadcast, or leave it out")
	}
	e := &engine{grace: abandonGrace, c: c, name: group, group: c.wrap(group), o: o, log: c.log.With("group", group),
		run: run.NewGroup(context.Background()), work: run.NewGroup(context.Background()),
		wakes: make(chan struct{}, 1), arrived: make(chan struct{}, 1), subs: map[string]*subscription{}, queues: map[MessageQueue]*queue{},
		links: map[string]*link{}, owners: map[MessageQueue]string{}, ends: map[MessageQueue]int64{}}
	if o.rate > 0 {
		e.limit = rate.NewLimiter(rate.Limit(o.rate), max(o.batch, 1))
	}
	for _, s := range o.subs {
		s.topic = c.wrap(s.topic)
		e.subs[s.topic] = &s
	}
	if !o.broadcast && len(e.subs) > 0 {
		e.subs[e.retryTopic()] = &subscription{topic: e.retryTopic(), expr: All, version: time.Now().UnixMilli()}
	}
	return e, nil
}

func (e *engine) retryTopic() string { return message.RetryPrefix + e.group }

// Start joins the group and begins to fetch. It returns when the brokers know the consumer and it is settled where the
// queues begin (see WithFrom); topics that don't exist yet are no error. It fails when no name server answers, or a
// broker can't filter as wanted. ctx bounds it; a consumer that failed to start can be started again.
func (e *engine) Start(ctx context.Context) (err error) {
	e.mu.Lock()
	if e.state != created {
		s := e.state
		e.mu.Unlock()
		if s >= closing {
			return ErrClosed
		}
		return invalid("the consumer of group %s is started already", e.name)
	}
	e.state, e.started = active, time.Now()
	topics := slices.Sorted(maps.Keys(e.subs))
	e.mu.Unlock()
	ctx, cancel := e.c.bound(ctx)
	defer cancel()
	if e.o.broadcast {
		if e.local, err = openLocalOffsets(e.o.offsetsDir, e.o.instance, e.group); err != nil {
			e.backToCreated()
			return err
		}
	}
	if err := e.register(); err != nil {
		e.backToCreated()
		return err
	}
	if err := e.introduce(ctx, topics); err != nil {
		e.unregister()
		e.backToCreated()
		return fmt.Errorf("start of group %s: %w", e.name, err)
	}
	e.assign(ctx)
	if !e.run.Go(e.control) {
		return ErrClosed
	}
	return nil
}

func (e *engine) backToCreated() {
	if e.local != nil {
		e.local.close()
		e.local = nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == active {
		e.state = created
	}
}

func (e *engine) register() error {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	if e.c.closed {
		return ErrClosed
	}
	if _, ok := e.c.consumers[e.group]; ok {
		return invalid("this client has a consumer of group %s already: make another Client for a second one", e.name)
	}
	e.c.consumers[e.group] = e
	e.c.children[e] = struct{}{}
	return nil
}

func (e *engine) unregister() {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	if e.c.consumers[e.group] == member(e) {
		delete(e.c.consumers, e.group)
	}
	delete(e.c.children, e)
}

// introduce looks the topics up, tells the brokers of the consumer, and settles where new groups begin.
func (e *engine) introduce(ctx context.Context, topics []string) error {
	found := make([]*route, len(topics))
	errs := make([]error, len(topics))
	var wg sync.WaitGroup
	for i, topic := range topics {
		wg.Go(func() { found[i], errs[i] = e.c.routes.get(ctx, topic, time.Second) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, ErrNoRoute) {
			return err
		}
	}
	known := 0
	for _, r := range found {
		if r != nil {
			known++
		}
	}
	if known > 0 {
		var beats, ends map[string]error
		wg.Go(func() { beats = e.c.heartbeatAll(ctx) })
		if e.o.from.kind == fromLatest {
			wg.Go(func() { ends = e.noteEnds(ctx, found) })
		}
		wg.Wait()
		for addr, err := range beats {
			e.log.Warn("a broker doesn't know this consumer yet", "addr", addr, "error", err)
		}
		for broker, err := range ends {
			e.log.Warn("where queues end isn't known: the time of the start decides", "broker", broker, "error", err)
		}
	}
	for i, topic := range topics {
		e.mu.Lock()
		s := e.subs[topic]
		e.mu.Unlock()
		if s == nil || s.expr.kind != filter.TypeSQL92 || found[i] == nil {
			continue
		}
		if err := e.checkFilter(ctx, found[i], s); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// checkFilter asks a broker whether it can filter as wanted (CHECK_CLIENT_CONFIG).
func (e *engine) checkFilter(ctx context.Context, r *route, s *subscription) error {
	for broker := range r.brokers {
		addr, ok := r.master(broker)
		if !ok {
			continue
		}
		body, err := protocol.EncodeBody(protocol.CheckClientRequest{ClientID: e.c.id, Group: e.group, SubscriptionData: s.data()})
		if err != nil {
			return err
		}
		a, err := e.c.invoke(ctx, addr, &remoting.Request{Code: protocol.CheckClientConfig, Body: body})
		if err != nil {
			return err
		}
		if a.Code != int32(protocol.Success) {
			return fmt.Errorf("topic %s: %w", s.topic, refusal(addr, a))
		}
		return nil
	}
	return nil
}

// noteEnds remembers where the queues end now, for those of which the group turns out to have no offset.
func (e *engine) noteEnds(ctx context.Context, found []*route) map[string]error {
	errs := map[string]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, r := range found {
		if r == nil || r.topic == e.retryTopic() {
			continue
		}
		for _, q := range r.read {
			addr, ok := r.master(q.Broker)
			if !ok {
				continue
			}
			wg.Go(func() {
				end, err := e.c.askOffset(ctx, addr, protocol.GetMaxOffset, &protocol.QueueRequest{Topic: q.Topic, QueueID: int32(q.ID)})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					errs[q.Broker] = err
					return
				}
				e.mu.Lock()
				e.ends[q] = end
				e.mu.Unlock()
			})
		}
	}
	wg.Wait()
	return errs
}

// askOffset sends a request whose answer is an offset.
func (c *Client) askOffset(ctx context.Context, addr string, code protocol.RequestCode, header any) (int64, error) {
	a, err := c.invoke(ctx, addr, &remoting.Request{Code: code, Header: header})
	if err != nil {
		return 0, err
	}
	if a.Code != int32(protocol.Success) {
		return 0, refusal(addr, a)
	}
	var h protocol.OffsetResponse
	err = protocol.Decode(a.Fields, &h)
	return h.Offset, err
}

// Close leaves the group: it stops fetching, lets handlers finish (WithDrainTimeout, and no longer than ctx), commits,
// frees the queues and says goodbye, so that the others begin at once. It returns ctx's error when that didn't end in
// time: then other consumers may get some messages again. A second Close does nothing.
func (e *engine) Close(ctx context.Context) error {
	e.mu.Lock()
	if e.state >= closing {
		e.mu.Unlock()
		return nil
	}
	was := e.state
	e.state = closing
	e.empty = make(chan struct{})
	e.drainBy = time.Now().Add(e.o.drain)
	if d, ok := ctx.Deadline(); ok {
		// Handlers that don't heed their context's end, the last commit and the goodbye need some of the time, too.
		e.grace = min(abandonGrace, time.Until(d)/4)
		if by := d.Add(-2 * e.grace); by.Before(e.drainBy) {
			e.drainBy = by
		}
	}
	for _, q := range e.queues {
		e.giveUp(q)
	}
	e.checkEmpty()
	e.mu.Unlock()
	e.signalArrived()
	var err error
	select {
	case <-e.empty:
	case <-ctx.Done():
		err = fmt.Errorf("close of group %s: %w", e.name, ctx.Err())
	}
	if was == active && err == nil {
		e.goodbye(ctx)
	}
	e.mu.Lock()
	e.state = closed
	for _, q := range e.queues {
		q.cancel()
	}
	e.mu.Unlock()
	e.unregister()
	e.run.Stop()
	e.work.Stop()
	if e.local != nil {
		err = errors.Join(err, e.local.flush())
		e.local.close()
	}
	if werr := e.run.Wait(ctx); werr != nil && err == nil {
		err = fmt.Errorf("close of group %s: %w", e.name, werr)
	}
	if werr := e.work.Wait(ctx); werr != nil && err == nil {
		err = fmt.Errorf("close of group %s: a handler doesn't return: %w", e.name, werr)
	}
	return err
}

// goodbye tells all brokers that the consumer left (UNREGISTER_CLIENT).
func (e *engine) goodbye(ctx context.Context) {
	var wg sync.WaitGroup
	for addr := range e.c.routes.brokers(false) {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, e.c.o.timeout)
			defer cancel()
			_, err := e.c.invoke(ctx, addr, &remoting.Request{Code: protocol.UnregisterClient, Header: &protocol.UnregisterClientRequest{ClientID: e.c.id, ConsumerGroup: e.group}})
			if err != nil {
				e.log.Debug("goodbye failed", "addr", addr, "error", err)
			}
		})
	}
	wg.Wait()
}

// checkEmpty tells Close that the last queue is gone. mu is held.
func (e *engine) checkEmpty() {
	if e.empty == nil || len(e.queues) > 0 {
		return
	}
	select {
	case <-e.empty:
	default:
		close(e.empty)
	}
}

// Subscribe adds a topic while the consumer runs. All members of the group should do the same.
func (co *Consumer) Subscribe(ctx context.Context, topic string, expr Expression, h Handler) error {
	if h == nil {
		return invalid("Subscribe(%q): the handler is nil", topic)
	}
	one := consumerOptions{}
	if err := one.subscribe(topic, expr, h, nil); err != nil {
		return err
	}
	return co.addTopic(ctx, &one.subs[0])
}

func (e *engine) addTopic(ctx context.Context, s *subscription) error {
	s.topic = e.c.wrap(s.topic)
	e.mu.Lock()
	if e.state != active {
		e.mu.Unlock()
		return invalid("Subscribe: the consumer of group %s isn't running", e.name)
	}
	if e.subs[s.topic] != nil {
		e.mu.Unlock()
		return invalid("topic %s is subscribed already", e.c.unwrap(s.topic))
	}
	e.subs[s.topic] = s
	e.mu.Unlock()
	ctx, cancel := e.c.bound(ctx)
	defer cancel()
	if err := e.introduce(ctx, []string{s.topic}); err != nil {
		e.mu.Lock()
		delete(e.subs, s.topic)
		e.mu.Unlock()
		return fmt.Errorf("subscribe %s: %w", e.c.unwrap(s.topic), err)
	}
	e.wake()
	return nil
}

// Unsubscribe gives a topic's queues up, in good order, while the consumer runs. It doesn't wait for that.
func (e *engine) Unsubscribe(ctx context.Context, topic string) error {
	wire := e.c.wrap(topic)
	e.mu.Lock()
	if e.subs[wire] == nil || wire == e.retryTopic() {
		e.mu.Unlock()
		return invalid("topic %s isn't subscribed", topic)
	}
	delete(e.subs, wire)
	for mq, q := range e.queues {
		if mq.Topic == wire {
			e.giveUp(q)
		}
	}
	maps.DeleteFunc(e.owners, func(q MessageQueue, _ string) bool { return q.Topic == wire })
	e.mu.Unlock()
	ctx, cancel := e.c.bound(ctx)
	defer cancel()
	for addr, err := range e.c.heartbeatAll(ctx) {
		e.log.Debug("heartbeat failed", "addr", addr, "error", err)
	}
	e.wake()
	return nil
}

// SetConcurrency changes how many handlers run at once (WithConcurrency).
func (co *Consumer) SetConcurrency(n int) error {
	if !within(n, 1, 100_000) {
		return invalid("SetConcurrency: %d is not within 1 and 100000", n)
	}
	co.mu.Lock()
	defer co.mu.Unlock()
	co.o.concurrency = n
	co.dispatch()
	return nil
}

// Pause stops handing out messages; handlers that run go on. Queues stay this consumer's.
func (e *engine) Pause() { e.setPaused(true) }

// Resume is the reverse of Pause.
func (e *engine) Resume() { e.setPaused(false) }

func (e *engine) setPaused(p bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.paused = p
	for _, q := range e.queues {
		q.signalRoom()
		e.push(q)
	}
	e.dispatch()
}

// wake implements member: control looks at once.
func (e *engine) wake() {
	select {
	case e.wakes <- struct{}{}:
	default:
	}
}

func (e *engine) signalArrived() {
	select {
	case e.arrived <- struct{}{}:
	default:
	}
}

// disconnected implements member. What the broker was told without an answer may not have come through; locks are
// asked for again as soon as the connection is back.
func (e *engine) disconnected(addr string, _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.links {
		if l.lastAddr != addr {
			continue
		}
		l.lost()
		for _, q := range e.queues {
			if q.link != l {
				continue
			}
			q.dirty = true
			if e.o.stopWhenDisconnected && (q.phase == running || q.phase == starting) {
				e.lose(q, "the connection to its broker was lost")
			}
		}
	}
}

// stopsWhenDisconnected implements member.
func (e *engine) stopsWhenDisconnected() bool { return e.o.stopWhenDisconnected }

// heartbeatData implements member.
func (e *engine) heartbeatData() protocol.ConsumerData {
	d := protocol.ConsumerData{GroupName: e.group, ConsumeType: "CONSUME_PASSIVELY", MessageModel: "CLUSTERING", ConsumeFromWhere: "CONSUME_FROM_LAST_OFFSET"}
	switch e.o.from.kind {
	case fromEarliest:
		d.ConsumeFromWhere = "CONSUME_FROM_FIRST_OFFSET"
	case fromTime:
		d.ConsumeFromWhere = "CONSUME_FROM_TIMESTAMP"
	}
	if e.o.broadcast {
		d.MessageModel = "BROADCASTING"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, topic := range slices.Sorted(maps.Keys(e.subs)) {
		d.SubscriptionDataSet = append(d.SubscriptionDataSet, e.subs[topic].data())
	}
	return d
}

// data is what brokers are told of a subscription.
func (s *subscription) data() protocol.SubscriptionData {
	d := protocol.SubscriptionData{Topic: s.topic, SubString: s.expr.text, ExpressionType: s.expr.kind, SubVersion: s.version, TagsSet: []string{}, CodeSet: protocol.Codes{}}
	if s.tags != nil {
		d.TagsSet, d.CodeSet = s.tags.Names(), s.tags.Codes()
	}
	return d
}
