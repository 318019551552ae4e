package client

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// link is what a consumer does with one broker on behalf of its queues there: locks and offsets. What one broker
// doesn't answer delays no other.
type link struct {
	e      *engine
	broker string
	kick   chan struct{} // locks are to be looked at, capacity 1
	dirty  chan struct{} // offsets are to be committed, capacity 1

	// Under engine.mu.
	lastAddr string
	renewed  time.Time // when the locks were last confirmed
	trouble  error
	since    time.Time // of trouble
}

func newLink(e *engine, broker string) *link {
	return &link{e: e, broker: broker, kick: make(chan struct{}, 1), dirty: make(chan struct{}, 1), renewed: time.Now()}
}

// Locks: a lease lasts 60 s on the broker; it is renewed every 20 s, and counted as lost after 30 s without (Java's
// figures). One that somebody else holds is asked for again soon, since not every broker tells when it is free.
const (
	lockRenewal = 20 * time.Second
	lockLease   = 30 * time.Second
	lockRetry   = 50 * time.Millisecond
	lockRetries = 200 * time.Millisecond
)

func (l *link) kickLocks() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

func (l *link) kickCommits() {
	select {
	case l.dirty <- struct{}{}:
	default:
	}
}

// lost notes that the connection is gone. engine.mu is held.
func (l *link) lost() {
	l.renewed = time.Time{}
	l.kickLocks()
	l.kickCommits()
}

// addr is where the broker is now.
func (l *link) addr(topic string) (string, error) {
	addr, ok := l.e.c.routes.cached(topic).master(l.broker)
	if !ok {
		return "", fmt.Errorf("broker %s: %w", l.broker, ErrNoRoute)
	}
	l.e.mu.Lock()
	l.lastAddr = addr
	l.e.mu.Unlock()
	return addr, nil
}

// loop gets and renews the locks of the broker's queues.
func (l *link) loop(ctx context.Context) {
	t := time.NewTimer(lockRenewal)
	defer t.Stop()
	tries := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.kick:
			tries = 0
		case <-t.C:
		}
		wait := l.locks(ctx, tries)
		tries++
		t.Reset(wait)
	}
}

// locks asks for the locks that are wanted, and for those that are due, and returns when to look again.
func (l *link) locks(ctx context.Context, tries int) time.Duration {
	e := l.e
	e.mu.Lock()
	var want, held []*queue
	due := time.Since(l.renewed) >= lockRenewal
	for _, q := range e.queues {
		switch {
		case q.link != l:
		case q.phase == locking:
			want = append(want, q)
		case due && (q.phase == starting || q.phase == running || q.phase == draining):
			held = append(held, q)
		}
	}
	if e.o.broadcast || e.manual { // nothing to share
		for _, q := range want {
			e.begin(q)
		}
		l.renewed = time.Now()
		e.mu.Unlock()
		return lockRenewal
	}
	if len(want)+len(held) == 0 {
		wait := lockRenewal
		if !due {
			wait = max(lockRenewal-time.Since(l.renewed), lockRetry)
		}
		e.mu.Unlock()
		return wait
	}
	e.mu.Unlock()
	got, holders, err := l.lock(ctx, append(want, held...))
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		l.failed(err)
		if len(held) > 0 && !l.renewed.IsZero() && time.Since(l.renewed) > lockLease {
			for _, q := range held {
				e.lose(q, "its lock could not be renewed")
			}
		}
		return min(lockRetries<<min(tries, 3), time.Second)
	}
	l.trouble = nil
	if due {
		l.renewed = time.Now()
	}
	missing := 0
	for _, q := range want {
		switch {
		case !got[q.mq]:
			q.holder = holders[q.mq]
			missing++
		case e.queues[q.mq] == q && q.phase == locking:
			e.begin(q)
		default: // given up meanwhile
			e.run.Go(func(ctx context.Context) { l.unlock(ctx, q.mq) })
		}
	}
	for _, q := range held {
		if !got[q.mq] && q.phase != lost && q.phase != draining {
			e.lose(q, "another consumer has its lock")
		}
	}
	if missing > 0 {
		return min(lockRetry<<min(tries, 2), lockRetries)
	}
	return lockRenewal
}

// failed notes since when the broker doesn't answer. engine.mu is held.
func (l *link) failed(err error) {
	if l.trouble == nil {
		l.since = time.Now()
	}
	l.trouble = err
}

// lock asks for the locks of queues and returns those that are this client's, and of the others the holders as far as
// the broker tells.
func (l *link) lock(ctx context.Context, qs []*queue) (map[MessageQueue]bool, map[MessageQueue]string, error) {
	addr, err := l.addr(qs[0].mq.Topic)
	if err != nil {
		return nil, nil, err
	}
	body, err := protocol.EncodeBody(l.lockBody(qs))
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.e.c.o.timeout)
	defer cancel()
	a, err := l.e.c.invoke(ctx, addr, &remoting.Request{Code: protocol.LockBatchMQ, Body: body})
	if err != nil {
		return nil, nil, err
	}
	if a.Code != int32(protocol.Success) {
		return nil, nil, refusal(addr, a)
	}
	var r protocol.LockBatchResponse
	if err := fastjson.Unmarshal(a.Body, &r); err != nil {
		return nil, nil, fmt.Errorf("answer to a lock request: %w", err)
	}
	got, holders := map[MessageQueue]bool{}, map[MessageQueue]string{}
	for _, q := range r.LockOKMQSet {
		got[MessageQueue{q.Topic, q.BrokerName, int(q.QueueID)}] = true
	}
	for _, h := range r.Holders {
		holders[MessageQueue{h.Queue.Topic, h.Queue.BrokerName, int(h.Queue.QueueID)}] = h.ClientID
	}
	return got, holders, nil
}

func (l *link) lockBody(qs []*queue) protocol.LockBatchRequest {
	body := protocol.LockBatchRequest{ClientID: l.e.c.id, ConsumerGroup: l.e.group, WantHolders: true}
	for _, q := range qs {
		body.MQSet = append(body.MQSet, protocol.MessageQueue{Topic: q.mq.Topic, BrokerName: q.mq.Broker, QueueID: int32(q.mq.ID)})
	}
	return body
}

// unlock frees a queue's lock.
func (l *link) unlock(ctx context.Context, mq MessageQueue) {
	if l.e.o.broadcast || l.e.manual {
		return
	}
	addr, err := l.addr(mq.Topic)
	if err != nil {
		return
	}
	unlock := l.lockBody([]*queue{{mq: mq}})
	unlock.WantHolders, unlock.Committed = false, true // what was done is committed before
	body, err := protocol.EncodeBody(unlock)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.e.c.o.timeout)
	defer cancel()
	if _, err := l.e.c.invoke(ctx, addr, &remoting.Request{Code: protocol.UnlockBatchMQ, Body: body}); err != nil {
		l.e.log.Debug("unlock failed: the lock ends by itself", "queue", mq, "error", err)
	}
}

// commits tells the broker of offsets, a while after they moved at most.
func (l *link) commits(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.dirty:
		}
		pause := l.e.o.commitInterval
		if !l.flush(ctx) {
			pause = max(pause, lockRetries)
			l.kickCommits()
		}
		if pause == 0 {
			continue
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// flush commits what moved. It reports false when that failed.
func (l *link) flush(ctx context.Context) bool {
	e := l.e
	var moved []*queue
	e.mu.Lock()
	for _, q := range e.queues {
		if q.link == l && q.dirty && q.settled && (q.phase == running || q.phase == draining) {
			moved = append(moved, q)
		}
	}
	e.mu.Unlock()
	for _, q := range moved {
		if !q.sending.TryLock() {
			continue // it is being committed, and whoever does so sees what moved
		}
		err := l.commit(ctx, q, false)
		q.sending.Unlock()
		if err != nil {
			return false
		}
	}
	return true
}

// commitNow commits and waits for the answer.
func (l *link) commitNow(ctx context.Context, q *queue) error {
	ctx, cancel := context.WithTimeout(ctx, l.e.c.o.timeout)
	defer cancel()
	q.sending.Lock()
	defer q.sending.Unlock()
	return l.commit(ctx, q, true)
}

// commit tells the broker how far a queue is. queue.sending is held: what is told of a queue must not overtake what was
// told before.
func (l *link) commit(ctx context.Context, q *queue, wait bool) error {
	e := l.e
	e.mu.Lock()
	q.dirty = false
	offset, open := q.progress.commit(), q.progress.describe()
	e.mu.Unlock()
	err := l.tell(ctx, q, offset, open, wait)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		q.dirty = true
		l.kickCommits()
		return err
	}
	q.progress.committed = offset
	return nil
}

// tell sends one offset.
func (l *link) tell(ctx context.Context, q *queue, offset int64, open string, wait bool) error {
	if l.e.local != nil {
		l.e.local.set(q.mq, offset)
		return nil
	}
	addr, err := l.addr(q.mq.Topic)
	if err != nil {
		return err
	}
	r := &remoting.Request{Code: protocol.UpdateConsumerOffset, Header: &protocol.UpdateConsumerOffsetRequest{
		ConsumerGroup: l.e.group, Topic: q.mq.Topic, QueueID: int32(q.mq.ID), CommitOffset: offset, Open: open}}
	if !wait {
		return l.e.c.oneWay(ctx, addr, r)
	}
	a, err := l.e.c.invoke(ctx, addr, r)
	if err != nil {
		return err
	}
	if a.Code != int32(protocol.Success) {
		return refusal(addr, a)
	}
	return nil
}

// describe is open as the broker keeps it: "upTo:begin-end,begin-end", or nothing when all that was fetched from the
// offset on is unfinished.
func (p *progress) describe() string {
	open, upTo := p.open()
	if at := p.commit(); at == upTo || len(open) == 1 && open[0] == (span{at, upTo}) {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d:", upTo)
	for i, s := range open {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d-%d", s.begin, s.end)
	}
	return b.String()
}

// parseOpen reads what describe wrote; ok is false for anything else.
func parseOpen(s string) (upTo int64, open []span, ok bool) {
	head, rest, ok := strings.Cut(s, ":")
	if !ok {
		return 0, nil, false
	}
	upTo, err := strconv.ParseInt(head, 10, 64)
	if err != nil {
		return 0, nil, false
	}
	if rest == "" { // all of it is done
		return upTo, nil, true
	}
	last := int64(-1)
	for part := range strings.SplitSeq(rest, ",") {
		a, b, ok := strings.Cut(part, "-")
		if !ok {
			return 0, nil, false
		}
		begin, err1 := strconv.ParseInt(a, 10, 64)
		end, err2 := strconv.ParseInt(b, 10, 64)
		if err1 != nil || err2 != nil || begin < last || end <= begin || end > upTo {
			return 0, nil, false
		}
		open = append(open, span{begin, end})
		last = end
	}
	return upTo, open, true
}
