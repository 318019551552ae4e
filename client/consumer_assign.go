package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/rebalance"
	"github.com/apogeemq/apogee/internal/remoting"
)

// How soon control looks again when a topic has no route yet, or something failed.
const assignRetry = time.Second

// control keeps the assignment true until the consumer closes.
func (e *engine) control(ctx context.Context) {
	again := e.o.rebalanceEvery
	if e.incomplete() {
		again = min(again, assignRetry)
	}
	t := time.NewTimer(again)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wakes:
		case <-t.C:
		}
		pass, cancel := context.WithTimeout(ctx, e.c.o.timeout)
		complete := e.assign(pass)
		cancel()
		again = e.o.rebalanceEvery
		if !complete {
			again = min(again, assignRetry)
		}
		t.Reset(again)
	}
}

// incomplete reports whether some topic has no queues yet.
func (e *engine) incomplete() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for topic := range e.subs {
		if e.c.routes.cached(topic) == nil {
			return true
		}
	}
	return false
}

// assign finds out which queues are this member's, and takes and gives up accordingly. It reports false when
// something is missing and is to be tried again soon.
func (e *engine) assign(ctx context.Context) bool {
	e.mu.Lock()
	if e.state != active {
		e.mu.Unlock()
		return true
	}
	topics := slices.Sorted(maps.Keys(e.subs))
	manual := e.manual
	e.mu.Unlock()
	if manual {
		return e.assignChosen(ctx)
	}
	found := make([]*route, len(topics))
	errs := make([]error, len(topics))
	var wg sync.WaitGroup
	for i, topic := range topics {
		age := routeFresh
		if e.c.routes.cached(topic) != nil && e.troubledTopic(topic) {
			age = assignRetry
		}
		wg.Go(func() { found[i], errs[i] = e.c.routes.get(ctx, topic, age) })
	}
	wg.Wait()
	members, listErrs := e.members(ctx, found)
	complete := true
	for i, topic := range topics {
		r := found[i]
		if errs[i] != nil {
			// No route says nothing about a topic that has queues here: while its broker restarts, there is none. That
			// the topic is gone, the broker says (see troubled).
			e.log.Debug("assignment kept", "topic", topic, "error", errs[i])
			complete = false
			continue
		}
		want := r.read
		if !e.o.broadcast {
			ids := members[e.listAddr(r)]
			if ids == nil {
				e.log.Debug("assignment kept", "topic", topic, "error", listErrs[e.listAddr(r)])
				complete = false
				continue
			}
			var err error
			if want, err = e.allocate(topic, r.read, ids); err != nil {
				e.log.Error("assignment kept: the strategy failed", "topic", topic, "error", err)
				complete = false
				continue
			}
		}
		e.apply(topic, want)
	}
	return complete
}

// troubledTopic reports whether fetching from a queue of the topic fails.
func (e *engine) troubledTopic(topic string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.queues {
		if q.mq.Topic == topic && q.trouble != nil {
			return true
		}
	}
	return false
}

// listAddr is the broker that is asked for the group's members: all brokers know all of them.
func (e *engine) listAddr(r *route) string {
	for _, name := range slices.Sorted(maps.Keys(r.brokers)) {
		if addr, _, ok := r.replica(name, 0); ok {
			return addr
		}
	}
	return ""
}

// members asks for the group's client ids, each broker once.
func (e *engine) members(ctx context.Context, found []*route) (map[string][]string, map[string]error) {
	ids, errs := map[string][]string{}, map[string]error{}
	if e.o.broadcast {
		return ids, errs
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	asked := map[string]bool{}
	for _, r := range found {
		if r == nil {
			continue
		}
		addr := e.listAddr(r)
		if addr == "" || asked[addr] {
			continue
		}
		asked[addr] = true
		wg.Go(func() {
			list, err := e.askMembers(ctx, addr)
			if err == nil && !slices.Contains(list, e.c.id) {
				// The broker forgot this client, or never heard of it.
				if err = e.c.heartbeatTo(ctx, addr); err == nil {
					list, err = e.askMembers(ctx, addr)
				}
			}
			if err == nil && !slices.Contains(list, e.c.id) {
				err = fmt.Errorf("%s doesn't count this client among the group's members", addr)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs[addr] = err
				return
			}
			rebalance.SortClients(list)
			ids[addr] = list
		})
	}
	wg.Wait()
	return ids, errs
}

func (e *engine) askMembers(ctx context.Context, addr string) ([]string, error) {
	a, err := e.c.invoke(ctx, addr, &remoting.Request{Code: protocol.GetConsumerListByGroup, Header: &protocol.ConsumerGroupRequest{ConsumerGroup: e.group}})
	if err != nil {
		return nil, err
	}
	if a.Code != int32(protocol.Success) {
		if a.Code == int32(protocol.SystemError) { // nobody there, as Java says it
			return nil, nil
		}
		return nil, refusal(addr, a)
	}
	var list protocol.ConsumerIDList
	if err := fastjson.Unmarshal(a.Body, &list); err != nil {
		return nil, fmt.Errorf("members of %s from %s: %w", e.name, addr, err)
	}
	return list.ConsumerIDList, nil
}

// allocate returns this member's queues, and notes whose the others are.
func (e *engine) allocate(topic string, all []MessageQueue, ids []string) ([]MessageQueue, error) {
	qs := make([]rebalance.Queue, len(all))
	for i, q := range all {
		qs[i] = rebalance.Queue{Topic: q.Topic, Broker: q.Broker, ID: int32(q.ID)}
	}
	rebalance.SortQueues(qs)
	var mine []MessageQueue
	owners := map[MessageQueue]string{}
	for _, id := range ids {
		got, err := e.o.strategy.Allocate(e.group, id, qs, ids)
		if err != nil {
			return nil, err
		}
		for _, q := range got {
			mq := MessageQueue{q.Topic, q.Broker, int(q.ID)}
			owners[mq] = id
			if id == e.c.id {
				mine = append(mine, mq)
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.owners, func(q MessageQueue, _ string) bool { return q.Topic == topic })
	maps.Copy(e.owners, owners)
	return mine, nil
}

// apply takes the queues of a topic that are wanted and gives up the others.
func (e *engine) apply(topic string, want []MessageQueue) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != active {
		return
	}
	sub := e.subs[topic]
	for mq, q := range e.queues {
		if mq.Topic == topic && (sub == nil || !slices.Contains(want, mq)) {
			e.giveUp(q)
		}
	}
	if sub == nil {
		return
	}
	for _, mq := range want {
		if e.queues[mq] == nil {
			e.take(mq, sub)
		}
	}
}

// take begins with a queue: its lock is asked for first. mu is held.
func (e *engine) take(mq MessageQueue, sub *subscription) {
	l := e.links[mq.Broker]
	if l == nil {
		l = newLink(e, mq.Broker)
		if !e.run.Go(l.loop) || !e.run.Go(l.commits) {
			return
		}
		e.links[mq.Broker] = l
	}
	q := &queue{mq: mq, sub: sub, link: l, since: time.Now(), progress: progress{committed: -1}, inflight: map[*task]struct{}{},
		room: make(chan struct{}, 1), stop: func() {}}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	e.queues[mq] = q
	l.kickLocks()
}

// giveUp lets a queue go in good order: see release. mu is held.
func (e *engine) giveUp(q *queue) {
	switch q.phase {
	case locking:
		e.remove(q)
	case starting, running:
		q.setPhase(draining)
		q.stop()
		e.forget(q)
		if e.poller && e.state >= closing {
			clear(q.inflight) // whoever closes commits nothing more
		}
		q.idle = make(chan struct{})
		q.checkIdle()
		if !e.run.Go(func(ctx context.Context) { e.release(ctx, q) }) {
			e.remove(q)
		}
	}
}

// forget drops what was fetched and not handed out. It stays unfinished, so that no commit passes it. mu is held.
func (e *engine) forget(q *queue) {
	for _, m := range q.ready {
		e.account(q, m, -1)
	}
	q.ready = nil
}

// account counts a message that came into memory (1) or left it (-1). mu is held.
func (e *engine) account(q *queue, m *Message, n int) {
	q.count += n
	q.bytes += n * m.size
	e.count += n
	e.bytes += n * m.size
	if n < 0 {
		q.signalRoom()
		if e.starved {
			e.starved = false
			for _, o := range e.queues {
				o.signalRoom()
			}
		}
	}
}

// remove forgets a queue. mu is held.
func (e *engine) remove(q *queue) {
	q.stop()
	q.cancel()
	e.forget(q)
	if e.queues[q.mq] == q {
		delete(e.queues, q.mq)
	}
	e.checkEmpty()
}

// lose is what happens to a queue that is another's now, or may soon be: its handlers' contexts end, and nothing that
// they do counts. mu is held.
func (e *engine) lose(q *queue, why string) {
	if q.phase == lost {
		return
	}
	e.log.Warn("queue lost", "queue", q.mq, "why", why, "inFlight", len(q.inflight))
	q.setPhase(lost)
	e.remove(q)
	e.wake()
}

// abandonGrace is how long a handler has to return after its context ended.
const abandonGrace = time.Second

// release waits for the handlers of a queue that is given up, commits what they did, frees its lock, and lets it go.
func (e *engine) release(ctx context.Context, q *queue) {
	e.mu.Lock()
	bound := e.o.drain
	if e.state >= closing {
		bound = min(bound, time.Until(e.drainBy))
	}
	idle, grace := q.idle, e.grace
	e.mu.Unlock()
	t := time.NewTimer(max(bound, 0))
	defer t.Stop()
	select {
	case <-idle:
	case <-ctx.Done():
	case <-t.C:
		e.log.Warn("handlers didn't finish before their queue goes to another consumer", "queue", q.mq, "waited", bound)
		q.cancel()
		t.Reset(grace)
		select {
		case <-idle:
		case <-t.C:
		case <-ctx.Done():
		}
	}
	e.mu.Lock()
	still, settled := q.phase == draining, q.settled
	e.mu.Unlock()
	if still {
		if settled {
			if err := q.link.commitNow(ctx, q); err != nil {
				e.log.Warn("last commit of a queue failed: some messages may come again", "queue", q.mq, "error", err)
			}
		}
		q.link.unlock(ctx, q.mq)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.remove(q)
	e.wake()
}
