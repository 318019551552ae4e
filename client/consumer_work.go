package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// ErrHandlerTimeout is the error of a message whose handler didn't end in its time (WithHandlerTimeout).
var ErrHandlerTimeout = errors.New("the handler didn't end in its time")

// deliverable reports whether a queue has something to hand out now. mu is held.
func (e *engine) deliverable(q *queue) bool {
	return q.phase == running && len(q.ready) > 0 && !q.busy && !q.paused && !e.paused && e.state == active
}

// push puts a queue into the ring of those with work. mu is held.
func (e *engine) push(q *queue) {
	if q.inRing || !e.deliverable(q) {
		return
	}
	q.inRing = true
	e.ring = append(e.ring, q)
}

// dispatch starts as many handlers as there is work for and may be. mu is held.
func (e *engine) dispatch() {
	if len(e.ring) == 0 {
		return
	}
	if e.polls() {
		e.signalArrived()
		return
	}
	for range min(len(e.ring), e.o.concurrency-e.active) {
		e.active++
		if !e.work.Go(e.worker) {
			e.active--
			return
		}
	}
}

// polls reports whether messages are fetched by Poll. mu need not be held.
func (e *engine) polls() bool { return e.poller }

// worker handles batches until there are none.
func (e *engine) worker(context.Context) {
	for {
		e.mu.Lock()
		var t *task
		if e.active <= e.o.concurrency { // it may have been lowered
			t = e.next()
		}
		if t == nil {
			e.active--
			e.mu.Unlock()
			return
		}
		if len(e.ring) > 0 {
			e.dispatch()
		}
		e.mu.Unlock()
		if !e.handle(t) {
			return // its place was given to another one
		}
	}
}

// next takes a batch from the queue whose turn it is, nil when there is none. mu is held.
func (e *engine) next() *task {
	for len(e.ring) > 0 {
		q := e.ring[0]
		e.ring[0] = nil
		e.ring = e.ring[1:]
		q.inRing = false
		if !e.deliverable(q) {
			continue
		}
		if e.o.ordered || e.o.broadcast {
			if wait := time.Until(q.notUntil); wait > 0 {
				continue // later pushes it again
			}
		}
		n := 1
		for n < min(e.o.batch, len(q.ready)) && q.ready[n].Topic == q.ready[0].Topic {
			n++
		}
		t := &task{q: q, epoch: q.epoch, ms: slices.Clone(q.ready[:n]), since: time.Now()}
		clear(q.ready[:n])
		q.ready = q.ready[n:]
		q.inflight[t] = struct{}{}
		if e.o.ordered {
			q.busy = true
		} else {
			e.push(q)
		}
		return t
	}
	return nil
}

// handle runs the handler on a batch. It reports false when the worker was given up for lost meanwhile.
func (e *engine) handle(t *task) bool {
	if e.limit != nil {
		_ = e.limit.WaitN(t.q.ctx, len(t.ms)) // an error means that the queue is lost, which the handler sees
	}
	ctx, cancel := context.WithTimeout(t.q.ctx, e.o.timeout)
	defer cancel()
	late := time.AfterFunc(e.o.timeout+abandonGrace, func() { e.abandon(t) })
	defer late.Stop()
	err := e.call(ctx, t)
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.abandoned {
		return false
	}
	e.finish(t, err)
	return true
}

// call runs the handler of a batch; a panic becomes an error.
func (e *engine) call(ctx context.Context, t *task) (err error) {
	trace := e.c.traceConsume(e.group, t.ms)
	outcome := consumeSuccess
	defer func() {
		if p := recover(); p != nil {
			outcome = consumeException
			err = fmt.Errorf("the handler panicked: %v", p)
			e.log.Error("a handler panicked", "topic", t.ms[0].Topic, "id", t.ms[0].ID, "panic", p, "stack", string(debug.Stack()))
		}
		switch {
		case outcome != consumeSuccess || err == nil:
		case ctx.Err() != nil:
			outcome = consumeTimeOut
		default:
			outcome = consumeFailed
		}
		trace.after(err == nil, outcome)
	}()
	e.mu.Lock()
	sub := e.subs[e.c.wrap(t.ms[0].Topic)]
	e.mu.Unlock()
	if sub == nil {
		return fmt.Errorf("topic %s came through the retry topic and has no handler", t.ms[0].Topic)
	}
	run := func(ctx context.Context) error { return sub.run(ctx, t.ms, e.o.ordered) }
	if h := e.o.hooks.Handle; h != nil {
		return h(ctx, t.ms, run)
	}
	return run(ctx)
}

// run calls the handler. Of single messages an ordered consumer stops at the first that fails.
func (s *subscription) run(ctx context.Context, ms []*Message, ordered bool) error {
	if s.handler != nil {
		return s.handler(ctx, ms)
	}
	var failed *PartialError
	for i, m := range ms {
		err := s.single(ctx, m)
		if err == nil {
			continue
		}
		if len(ms) == 1 {
			return err
		}
		if failed == nil {
			failed = &PartialError{}
		}
		failed.Failed, failed.Err = append(failed.Failed, i), err
		if ordered {
			return failed
		}
	}
	if failed == nil {
		return nil
	}
	return failed
}

// abandon stops to wait for a handler whose time is up.
func (e *engine) abandon(t *task) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := t.q.inflight[t]; !ok || t.abandoned {
		return
	}
	e.log.Warn("a handler doesn't end", "queue", t.q.mq, "id", t.ms[0].ID, "for", time.Since(t.since).Round(time.Millisecond))
	if e.o.ordered || e.o.broadcast {
		return // what comes behind it has to wait
	}
	t.abandoned = true
	e.finish(t, ErrHandlerTimeout)
	// Its goroutine may never come back: another one takes its place.
	if len(e.ring) == 0 || !e.work.Go(e.worker) {
		e.active--
	}
}

// finish takes a batch off its queue, by what its handler returned. mu is held.
func (e *engine) finish(t *task, err error) {
	q := t.q
	delete(q.inflight, t)
	q.busy = false
	defer e.dispatch()
	defer e.push(q)
	defer q.checkIdle()
	if q.phase == lost || q.epoch != t.epoch {
		for _, m := range t.ms {
			e.account(q, m, -1)
		}
		return
	}
	failed := t.ms[:0:0]
	var partial *PartialError
	switch {
	case err == nil:
	case errors.As(err, &partial):
		err = partial.Err
		for i, m := range t.ms {
			if slices.Contains(partial.Failed, i) || e.o.ordered && len(failed) > 0 || e.o.ordered && len(partial.Failed) > 0 && i > partial.Failed[0] {
				failed = append(failed, m)
			}
		}
	default:
		failed = t.ms
	}
	for _, m := range t.ms {
		if !slices.Contains(failed, m) {
			e.done(q, m)
		}
	}
	if len(failed) == 0 {
		return
	}
	if e.o.ordered || e.o.broadcast {
		e.again(q, failed, err)
		return
	}
	for _, m := range failed {
		q.pending++
		if !e.run.Go(func(ctx context.Context) { e.giveBack(ctx, q, t.epoch, m, err) }) {
			q.pending--
			e.account(q, m, -1)
		}
	}
}

// done takes a message off its queue for good. mu is held.
func (e *engine) done(q *queue, m *Message) {
	e.account(q, m, -1)
	if q.progress.done(m.QueueOffset) {
		e.moveOn(q)
	}
}

// again puts failed messages back in their places, or, after the last attempt, deals with the first one. mu is held.
func (e *engine) again(q *queue, failed []*Message, err error) {
	m := failed[0]
	m.Retries++
	attempt := m.Retries
	last := attempt >= e.o.maxAttempts || errors.Is(err, errDeadLetter)
	if q.phase != running {
		for _, m := range failed {
			e.account(q, m, -1)
		}
		return
	}
	if last && e.o.broadcast {
		e.log.Error("message dropped after its last attempt", "queue", q.mq, "id", m.ID, "attempts", attempt, "error", err)
		if h := e.o.hooks.DeadLettered; h != nil {
			h(m, err)
		}
		e.done(q, m)
		failed = failed[1:]
	}
	if last && !e.o.broadcast {
		q.ready = append(slices.Clone(failed[1:]), q.ready...)
		q.busy = true // until it is in the dead-letter queue
		q.pending++
		epoch := q.epoch
		if !e.run.Go(func(ctx context.Context) { e.giveBack(ctx, q, epoch, m, fmt.Errorf("%w: %w", errDeadLetter, err)) }) {
			q.pending--
			e.account(q, m, -1)
		}
		return
	}
	if len(failed) == 0 {
		return
	}
	q.ready = append(slices.Clone(failed), q.ready...)
	if last {
		return
	}
	pause := time.Second
	var after *retryError
	switch {
	case errors.As(err, &after):
		pause = after.after
	case e.o.backoff != nil:
		pause = e.o.backoff(attempt)
	}
	e.later(q, pause)
}

// later hands out the head of a queue again after a while. mu is held.
func (e *engine) later(q *queue, pause time.Duration) {
	q.notUntil = time.Now().Add(pause)
	time.AfterFunc(pause, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.push(q)
		e.dispatch()
	})
}

// delays are the broker's, by level from 1 (Java's default messageDelayLevel).
var delays = [...]time.Duration{time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute,
	5 * time.Minute, 6 * time.Minute, 7 * time.Minute, 8 * time.Minute, 9 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour}

// delayLevel is the level of the first delay that is not shorter than d, or of the longest.
func delayLevel(d time.Duration) int32 {
	for i, x := range delays {
		if d <= x {
			return int32(i + 1)
		}
	}
	return int32(len(delays))
}

// How long a message waits here when the broker doesn't take it back, and how long that may take.
const (
	giveBackAgain   = 5 * time.Second
	giveBackTimeout = 5 * time.Second
)

// giveBack gives a failed message back to the broker, which brings it again later or puts it into the dead-letter
// queue. It stays unfinished until the broker has it.
func (e *engine) giveBack(ctx context.Context, q *queue, epoch int, m *Message, err error) {
	level, dead := e.level(m, err)
	bctx, cancel := context.WithTimeout(ctx, giveBackTimeout)
	defer cancel()
	failure := e.sendBack(bctx, q, m, level)
	if failure != nil {
		e.log.Debug("the broker didn't take a message back: it is sent to the retry topic", "id", m.ID, "error", failure)
		failure = e.sendRetry(bctx, m, level)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	q.pending--
	defer e.dispatch()
	defer e.push(q)
	defer q.checkIdle()
	if e.o.ordered {
		q.busy = false
	}
	if q.phase == lost || q.epoch != epoch {
		e.account(q, m, -1)
		return
	}
	if failure == nil {
		if dead {
			e.log.Warn("message went to the dead-letter queue", "queue", q.mq, "id", m.ID, "error", err)
			if h := e.o.hooks.DeadLettered; h != nil {
				h(m, err)
			}
		}
		e.done(q, m)
		return
	}
	e.log.Warn("a failed message could not be given back: it is handled here again", "queue", q.mq, "id", m.ID, "error", failure)
	if q.phase != running {
		e.account(q, m, -1)
		return
	}
	if e.o.ordered {
		q.ready = append([]*Message{m}, q.ready...)
		e.later(q, giveBackAgain)
		return
	}
	time.AfterFunc(giveBackAgain, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if q.phase != running || q.epoch != epoch {
			e.account(q, m, -1)
			return
		}
		q.ready = append([]*Message{m}, q.ready...)
		e.push(q)
		e.dispatch()
	})
}

// level is the delay level to ask for: < 0 for the dead-letter queue, 0 for the broker's own ladder.
func (e *engine) level(m *Message, err error) (level int32, dead bool) {
	attempt := m.Retries + 1
	var after *retryError
	switch {
	case errors.Is(err, errDeadLetter):
		return -1, true
	case attempt >= e.o.maxAttempts:
		return -1, true
	case errors.As(err, &after):
		return delayLevel(after.after), false
	case e.o.backoff != nil:
		return delayLevel(e.o.backoff(attempt)), false
	}
	return 0, false
}

// sendBack asks the message's broker to take it back (CONSUMER_SEND_MSG_BACK).
func (e *engine) sendBack(ctx context.Context, q *queue, m *Message, level int32) error {
	addr, err := q.link.addr(q.mq.Topic)
	if err != nil {
		return err
	}
	limit := int32(e.o.maxAttempts - 1)
	a, err := e.c.invoke(ctx, addr, &remoting.Request{Code: protocol.ConsumerSendMsgBack, Header: &protocol.ConsumerSendMsgBackRequest{
		Offset: m.physical, Group: e.group, DelayLevel: level, OriginMsgID: m.ID, OriginTopic: e.c.wrap(m.Topic), MaxReconsumeTimes: &limit}})
	if err != nil {
		return err
	}
	if a.Code != int32(protocol.Success) {
		return refusal(addr, a)
	}
	return nil
}

// sendRetry sends a copy of the message to the group's retry topic, as Java's client does when the broker doesn't take
// the message back.
func (e *engine) sendRetry(ctx context.Context, m *Message, level int32) error {
	props := maps.Clone(m.system)
	delete(props, message.PropertyTransactionPrepared)
	props[message.PropertyRetryTopic] = e.c.wrap(m.Topic)
	if props[message.PropertyOriginMessageID] == "" {
		props[message.PropertyOriginMessageID] = m.ID
	}
	times, limit := m.Retries+1, e.o.maxAttempts-1
	if level < 0 {
		times = max(times, limit) // the broker sees that it was the last
	}
	if level <= 0 {
		level = int32(3 + m.Retries)
	}
	props[message.PropertyReconsumeTime] = strconv.Itoa(times)
	props[message.PropertyMaxReconsumeTimes] = strconv.Itoa(limit)
	props[message.PropertyDelayLevel] = strconv.Itoa(int(min(level, int32(len(delays)))))
	var encoded []byte
	for k, v := range m.Properties {
		encoded = message.AppendProperty(encoded, k, v)
	}
	for k, v := range props {
		encoded = message.AppendProperty(encoded, k, v)
	}
	r, err := e.c.routes.get(ctx, e.retryTopic(), routeFresh)
	if err != nil {
		return err
	}
	last := fmt.Errorf("topic %s: %w with a writable queue", e.retryTopic(), ErrNoRoute)
	for _, q := range r.write {
		addr, ok := r.master(q.Broker)
		if !ok {
			continue
		}
		h := &protocol.SendMessageRequest{ProducerGroup: []byte(innerProducer), Topic: []byte(q.Topic), DefaultTopic: []byte(message.TemplateTopic), DefaultTopicQueueNums: newTopicQueues,
			QueueID: int32(q.ID), BornTimestamp: m.Born.UnixMilli(), Properties: encoded, BrokerName: []byte(q.Broker),
			ReconsumeTimes: int32(times), MaxReconsumeTimes: int32(limit), HasMaxReconsumeTimes: true}
		a, err := e.c.invoke(ctx, addr, &remoting.Request{Code: protocol.SendMessageV2, Header: h, Body: m.Body})
		switch {
		case err != nil:
			last = err
		case a.Code != int32(protocol.Success):
			last = refusal(addr, a)
		default:
			return nil
		}
	}
	return last
}
