package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apogeemq/apogee/internal/filter"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// Fetching waits on the broker for suspend, and answerMargin longer for the answer's way.
const (
	suspend      = 15 * time.Second
	answerMargin = 5 * time.Second
	fetchRetry   = 20 * time.Millisecond // doubled up to fetchRetries
	fetchRetries = time.Second
	pullBytes    = 256 << 10
)

// begin starts to fetch from a queue whose lock is held. mu is held.
func (e *engine) begin(q *queue) {
	q.setPhase(starting)
	q.holder = ""
	started := e.run.Go(func(ctx context.Context) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		e.mu.Lock()
		if q.phase != starting {
			e.mu.Unlock()
			return
		}
		q.stop = stop
		e.mu.Unlock()
		e.fetch(ctx, q)
	})
	if !started {
		e.remove(q)
	}
}

// fetch is the goroutine of a queue.
func (e *engine) fetch(ctx context.Context, q *queue) {
	pause := time.Duration(0)
	for ctx.Err() == nil {
		err := e.settle(ctx, q)
		if err == nil {
			break
		}
		e.troubled(ctx, q, err)
		if pause = nextPause(pause); !sleep(ctx, pause) {
			return
		}
	}
	pause = 0
	for e.awaitRoom(ctx, q) {
		err := e.fetchOnce(ctx, q)
		if err == nil {
			pause = 0
			continue
		}
		if ctx.Err() != nil {
			return
		}
		e.troubled(ctx, q, err)
		if pause = nextPause(pause); !sleep(ctx, pause) {
			return
		}
	}
}

func nextPause(p time.Duration) time.Duration { return min(max(2*p, fetchRetry), fetchRetries) }

// sleep waits for d and reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// troubled notes why a queue isn't fetched, and does what may help.
func (e *engine) troubled(ctx context.Context, q *queue, err error) {
	if ctx.Err() != nil {
		return
	}
	e.mu.Lock()
	if q.trouble == nil {
		q.troubled = time.Now()
		e.log.Info("fetching fails", "queue", q.mq, "error", err)
	}
	q.trouble = err
	e.mu.Unlock()
	var refused *Error
	if !errors.As(err, &refused) {
		if errors.Is(err, ErrNoRoute) || errors.Is(err, ErrUnreachable) {
			e.wake() // the broker may be somewhere else now
		}
		return
	}
	switch protocol.ResponseCode(refused.Code) {
	case protocol.SubscriptionNotExist, protocol.SubscriptionNotLatest, 27, 28: // 27, 28: its filter data aren't there yet
		if err := e.c.heartbeatTo(ctx, refused.Addr); err != nil {
			e.log.Debug("heartbeat failed", "addr", refused.Addr, "error", err)
		}
	case protocol.TopicNotExist:
		// A new topic of that name begins with its first message, wherever this consumer stood in the old one.
		e.mu.Lock()
		delete(e.ends, q.mq)
		if q.phase == running {
			e.lose(q, "its topic is gone")
		}
		e.mu.Unlock()
		if _, err := e.c.routes.get(ctx, q.mq.Topic, fetchRetries); err != nil {
			e.wake()
		}
	}
}

// settle finds out where to begin.
func (e *engine) settle(ctx context.Context, q *queue) error {
	ctx, cancel := context.WithTimeout(ctx, e.c.o.timeout)
	defer cancel()
	offset, open, known, err := e.stored(ctx, q)
	if err != nil {
		return err
	}
	if !known {
		if offset, err = e.first(ctx, q); err != nil {
			return err
		}
		// So that whoever has the queue next begins here as well, and not where it would begin by itself.
		if err := q.link.tell(ctx, q, offset, "", true); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.phase != starting {
		return nil
	}
	upTo, spans, ok := parseOpen(open)
	if !ok {
		upTo, spans = offset, nil
	}
	q.progress.resume(offset, upTo, spans)
	q.settled = true
	q.trouble = nil
	q.setPhase(running)
	return nil
}

// stored asks for the group's offset in a queue.
func (e *engine) stored(ctx context.Context, q *queue) (offset int64, open string, known bool, err error) {
	if e.local != nil {
		offset, known = e.local.get(q.mq)
		return offset, "", known, nil
	}
	addr, err := q.link.addr(q.mq.Topic)
	if err != nil {
		return 0, "", false, err
	}
	never := false
	a, err := e.c.invoke(ctx, addr, &remoting.Request{Code: protocol.QueryConsumerOffset, Header: &protocol.QueryConsumerOffsetRequest{
		ConsumerGroup: e.group, Topic: q.mq.Topic, QueueID: int32(q.mq.ID), SetZeroIfNotFound: &never}})
	if err != nil {
		return 0, "", false, err
	}
	switch protocol.ResponseCode(a.Code) {
	case protocol.Success:
	case protocol.QueryNotFound:
		return 0, "", false, nil
	default:
		return 0, "", false, refusal(addr, a)
	}
	var h protocol.QueryConsumerOffsetResponse
	if err := protocol.Decode(a.Fields, &h); err != nil {
		return 0, "", false, err
	}
	return h.Offset, h.Open, true, nil
}

// first decides where a group begins in a queue of which it has no offset.
func (e *engine) first(ctx context.Context, q *queue) (int64, error) {
	if q.mq.Topic == e.retryTopic() {
		return 0, nil
	}
	at := e.o.from.at
	switch e.o.from.kind {
	case fromEarliest:
		return 0, nil // the broker says if the queue begins later
	case fromLatest:
		e.mu.Lock()
		end, ok := e.ends[q.mq]
		complete := len(e.ends) > 0
		e.mu.Unlock()
		if ok {
			return end, nil
		}
		if complete {
			return 0, nil // made after Start
		}
		at = e.started
	}
	addr, err := q.link.addr(q.mq.Topic)
	if err != nil {
		return 0, err
	}
	return e.c.askOffset(ctx, addr, protocol.SearchOffsetByTimestamp, &protocol.SearchOffsetRequest{Topic: q.mq.Topic, QueueID: int32(q.mq.ID), Timestamp: at.UnixMilli()})
}

// awaitRoom waits until a queue may be fetched from, and reports false when it is not this consumer's any more.
func (e *engine) awaitRoom(ctx context.Context, q *queue) bool {
	for {
		e.mu.Lock()
		if q.phase != running {
			e.mu.Unlock()
			return false
		}
		q.limited = ""
		switch {
		case e.paused || q.paused:
			q.limited = "paused"
		case q.count >= e.o.queueMessages:
			q.limited = fmt.Sprintf("flow limit: %d messages of the queue are in memory, %d allowed (WithQueueLimits)", q.count, e.o.queueMessages)
		case q.bytes >= e.o.queueBytes:
			q.limited = fmt.Sprintf("flow limit: %d bytes of the queue are in memory, %d allowed (WithQueueLimits)", q.bytes, e.o.queueBytes)
		case e.count >= e.o.allMessages:
			e.starved = true
			q.limited = fmt.Sprintf("flow limit: %d messages are in memory, %d allowed (WithTotalLimits)", e.count, e.o.allMessages)
		case e.bytes >= e.o.allBytes:
			e.starved = true
			q.limited = fmt.Sprintf("flow limit: %d bytes are in memory, %d allowed (WithTotalLimits)", e.bytes, e.o.allBytes)
		}
		free := q.limited == ""
		e.mu.Unlock()
		if free {
			return ctx.Err() == nil
		}
		select {
		case <-q.room:
		case <-ctx.Done():
			return false
		}
	}
}

// fetchOnce asks for messages once and takes what comes.
func (e *engine) fetchOnce(ctx context.Context, q *queue) error {
	bound, cancel := context.WithTimeout(ctx, suspend+answerMargin)
	defer cancel()
	e.mu.Lock()
	offset, epoch, replica := q.progress.next, q.epoch, q.replica
	q.interrupt = cancel
	e.mu.Unlock()
	addr, id, ok := e.c.routes.cached(q.mq.Topic).replica(q.mq.Broker, replica)
	if !ok {
		return fmt.Errorf("broker %s: %w", q.mq.Broker, ErrNoRoute)
	}
	if id == 0 {
		if _, err := q.link.addr(q.mq.Topic); err != nil {
			return err
		}
	}
	h := &protocol.PullMessageRequest{ConsumerGroup: []byte(e.group), Topic: []byte(q.mq.Topic), QueueID: int32(q.mq.ID), QueueOffset: offset, MaxMsgNums: int32(e.o.pullBatch),
		SysFlag: protocol.PullSuspend, SuspendTimeoutMillis: suspend.Milliseconds(), SubVersion: q.sub.version,
		ExpressionType: []byte(q.sub.expr.kind), BrokerName: []byte(q.mq.Broker)}
	if q.sub.expr.kind == filter.TypeTag { // so that another member's subscription can't take its place
		h.SysFlag |= protocol.PullSubscription
		h.Subscription = []byte(q.sub.expr.text)
	}
	a, err := e.c.invoke(bound, addr, &remoting.Request{Code: protocol.PullMessage, Header: h})
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return nil // the offset was set meanwhile: see restart
	}
	if err != nil {
		return err
	}
	var p protocol.PullMessageResponse
	if len(a.Fields) > 0 {
		if err := p.DecodeFields(a.Fields); err != nil {
			return err
		}
	}
	var ms []*Message
	switch protocol.ResponseCode(a.Code) {
	case protocol.Success:
		if ms, err = e.c.decode(q.mq.Broker, a.Body, q.sub.tags); err != nil {
			return err
		}
	case protocol.PullNotFound, protocol.PullRetryImmediately:
	case protocol.PullOffsetMoved:
		if offset > p.MaxOffset && p.MinOffset == 0 {
			// The queue is a new one: the topic was deleted and made again. Brokers since 5.0 name its end; what came
			// before that would be missed.
			p.NextBeginOffset = 0
		}
		e.moved(q, epoch, p.NextBeginOffset)
		return nil
	default:
		return refusal(addr, a)
	}
	e.fetched(q, epoch, ms, p)
	return nil
}

// moved begins anew at an offset that the broker names: the old one was out of range, or an operator reset it.
func (e *engine) moved(q *queue, epoch int, offset int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.epoch != epoch || q.phase != running {
		return
	}
	e.log.Info("the broker moved the offset", "queue", q.mq, "from", q.progress.next, "to", offset)
	e.restart(q, offset)
}

// restart drops all that is known of a queue's messages and goes on at offset. mu is held.
func (e *engine) restart(q *queue, offset int64) {
	q.epoch++
	e.forget(q)
	q.progress = progress{next: offset, committed: -1}
	q.notUntil = time.Time{}
	q.dirty = true
	q.link.kickCommits()
	if q.interrupt != nil {
		q.interrupt() // what is being fetched isn't wanted
	}
}

// fetched takes messages in.
func (e *engine) fetched(q *queue, epoch int, ms []*Message, p protocol.PullMessageResponse) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.epoch != epoch || q.phase != running {
		return
	}
	q.trouble = nil
	q.maxSeen, q.replica = p.MaxOffset, p.SuggestWhichBrokerID
	before := q.progress.commit()
	for _, m := range ms {
		if !q.progress.fetched(m.QueueOffset) {
			continue
		}
		e.original(m)
		q.ready = append(q.ready, m)
		e.account(q, m, 1)
	}
	q.progress.advance(p.NextBeginOffset)
	if q.progress.commit() != before {
		e.moveOn(q)
	}
	e.push(q)
	e.dispatch()
}

// original gives a message that came back through the retry topic its own topic.
func (e *engine) original(m *Message) {
	if t, ok := m.system[message.PropertyRetryTopic]; ok && m.Topic == e.c.unwrap(e.retryTopic()) {
		m.Topic = e.c.unwrap(t)
	}
}

// moveOn notes that a queue's progress is to be committed. mu is held.
func (e *engine) moveOn(q *queue) {
	q.dirty = true
	q.link.kickCommits()
}
