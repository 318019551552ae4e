package client

import (
	"fmt"
	"slices"
	"time"
)

// QueueStatus is what a consumer knows of one queue of its topics.
type QueueStatus struct {
	Queue MessageQueue
	// Owner is the client id of the member whose queue it is by the last look at the group; "" when that isn't known.
	Owner string
	// Mine: this consumer has the queue, is about to get it, or is giving it up.
	Mine bool
	// The rest is set when Mine is.

	Next          int64         // offset of the next message to fetch
	Committed     int64         // what the broker was told; -1: nothing yet
	Lag           int64         // messages from the oldest unfinished one to the end, as of the last answer
	Cached        int           // fetched and not handed out
	InFlight      int           // handed out and not finished
	OldestHandler time.Duration // how long the handler that runs longest does
	// Reason says why the queue isn't moving; "" when it is, or when there is nothing to do.
	Reason string
}

// Status returns what is known of every queue of the consumer's topics, sorted. It asks nobody.
func (e *engine) Status() []QueueStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []QueueStatus
	for mq, owner := range e.owners {
		if e.queues[mq] == nil {
			out = append(out, QueueStatus{Queue: e.public(mq), Owner: owner})
		}
	}
	now := time.Now()
	for mq, q := range e.queues {
		s := QueueStatus{Queue: e.public(mq), Mine: true, Owner: e.owners[mq], Next: q.progress.next, Committed: q.progress.committed, Cached: len(q.ready), Reason: e.reason(q, now)}
		if e.o.broadcast || s.Owner == "" && q.phase != draining {
			s.Owner = e.c.id
		}
		if q.phase == locking {
			s.Owner = q.holder
		}
		for t := range q.inflight {
			s.InFlight += len(t.ms)
		}
		if t, ok := q.oldest(); ok {
			s.OldestHandler = now.Sub(t)
		}
		s.Lag = max(0, q.maxSeen-q.progress.commit())
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b QueueStatus) int { return compareQueues(a.Queue, b.Queue) })
	return out
}

// public is a queue as users name it.
func (e *engine) public(mq MessageQueue) MessageQueue {
	mq.Topic = e.c.unwrap(mq.Topic)
	return mq
}

// slowHandler is from when on a running handler is named as what holds a queue up.
const slowHandler = time.Second

// reason says why a queue isn't moving. mu is held.
func (e *engine) reason(q *queue, now time.Time) string {
	ago := func(t time.Time) string { return now.Sub(t).Round(time.Millisecond).String() }
	if q.link.trouble != nil && (q.phase == locking || q.trouble != nil) {
		return fmt.Sprintf("broker %s unreachable since %s (%s): %v", q.link.broker, q.link.since.Format(time.RFC3339), ago(q.link.since), q.link.trouble)
	}
	switch q.phase {
	case locking:
		if q.holder != "" {
			return fmt.Sprintf("waiting for its lock, held by %s, for %s", q.holder, ago(q.since))
		}
		return fmt.Sprintf("waiting for its lock for %s", ago(q.since))
	case draining:
		return fmt.Sprintf("given up %s ago: %d handlers finish first", ago(q.since), len(q.inflight))
	}
	if q.trouble != nil {
		what := "fetching fails"
		if Classify(q.trouble).Who == Network {
			what = "broker " + q.mq.Broker + " unreachable"
		}
		return fmt.Sprintf("%s since %s (%s): %v", what, q.troubled.Format(time.RFC3339), ago(q.troubled), q.trouble)
	}
	if q.phase == starting {
		return fmt.Sprintf("asking for the offset for %s", ago(q.since))
	}
	if e.paused || q.paused {
		return "paused"
	}
	if wait := q.notUntil.Sub(now); wait > 0 && len(q.ready) > 0 {
		m := q.ready[0]
		return fmt.Sprintf("message %s failed (attempt %d of %d) and comes again in %s", m.ID, m.Retries, e.o.maxAttempts, wait.Round(time.Millisecond))
	}
	if t, ok := q.oldest(); ok && now.Sub(t) > slowHandler {
		return fmt.Sprintf("handler running for %s", ago(t))
	}
	if q.limited != "" {
		return q.limited
	}
	if len(q.ready) > 0 && len(q.inflight) == 0 && !e.poller {
		return fmt.Sprintf("all %d handlers are busy with other queues (WithConcurrency)", e.o.concurrency)
	}
	return ""
}
