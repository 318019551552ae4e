package client

import (
	"context"
	"slices"
	"sync"
	"time"
)

// phase is where a queue stands in its life with this consumer.
//
//	locking → starting → running → draining → (gone)
//	                         └────→ lost ───→ (gone)
type phase int

const (
	locking  phase = iota // wanted; another member may still hold its lock
	starting              // ours; the offset isn't known yet
	running
	draining // given up: handlers finish, then offsets are committed and the lock freed
	lost     // another member has it: nothing of ours counts any more
)

// queue is one queue that this consumer has, wants or is giving up. Consumer.mu guards its fields.
type queue struct {
	mq     MessageQueue // wrapped topic
	sub    *subscription
	link   *link
	phase  phase
	since  time.Time // of the phase
	ctx    context.Context
	cancel context.CancelFunc // of ctx, which the handlers' contexts come from
	stop   context.CancelFunc // of the goroutine that fetches
	// interrupt ends one fetch that waits on the broker.
	interrupt context.CancelFunc

	sending  sync.Mutex // held while the broker is told the offset
	settled  bool       // progress means something: it is known where to begin
	progress progress
	ready    []*Message // fetched, not handed out
	bytes    int        // of what is unfinished and in memory
	count    int
	inflight map[*task]struct{}
	pending  int // messages that are being given back to the broker
	inRing   bool
	busy     bool      // ordered: a batch is being handled
	notUntil time.Time // ordered: a failed message comes again then
	paused   bool
	epoch    int // rises when the offset is set from outside: what began before doesn't count

	room     chan struct{} // the fetching goroutine looks again at the limits, capacity 1
	idle     chan struct{} // closed when draining and nothing is in flight
	dirty    bool          // the broker doesn't know the offset yet
	maxSeen  int64         // end of the queue, as the broker last said
	replica  int64         // broker id to fetch from
	trouble  error         // why fetching fails
	troubled time.Time     // since when
	limited  string        // which limit holds the fetching
	holder   string        // who has the lock, if known
}

// task is a batch that a handler works on.
type task struct {
	q         *queue
	epoch     int
	ms        []*Message
	since     time.Time
	abandoned bool // its time is up: the handler's result isn't looked at
}

// setPhase moves q on.
func (q *queue) setPhase(p phase) { q.phase, q.since = p, time.Now() }

// checkIdle tells who waits for the last handler of a queue that is given up.
func (q *queue) checkIdle() {
	if q.idle != nil && len(q.inflight) == 0 && q.pending == 0 {
		select {
		case <-q.idle:
		default:
			close(q.idle)
		}
	}
}

func (q *queue) signalRoom() {
	select {
	case q.room <- struct{}{}:
	default:
	}
}

// oldest returns since when the handler that runs longest does.
func (q *queue) oldest() (time.Time, bool) {
	var t time.Time
	for k := range q.inflight {
		if t.IsZero() || k.since.Before(t) {
			t = k.since
		}
	}
	return t, !t.IsZero()
}

// progress is how far a queue is consumed: what of it was fetched and isn't done. It is a pure value.
//
// Everything below next was fetched. Of that, unfinished isn't done; it ascends. skip is what another consumer had
// done already beyond the offset that it committed.
type progress struct {
	next       int64
	unfinished []int64
	skip       []span
	committed  int64 // what the broker was told last, -1: nothing
}

// span is the offsets from begin to before end.
type span struct{ begin, end int64 }

// commit is the offset to commit: everything below it is done.
func (p *progress) commit() int64 {
	if len(p.unfinished) > 0 {
		return p.unfinished[0]
	}
	return p.next
}

// fetched adds a message. It reports false for one that is done already or was fetched before.
func (p *progress) fetched(offset int64) bool {
	if offset < p.next {
		return false
	}
	p.next = offset + 1
	for len(p.skip) > 0 && p.skip[0].end <= offset {
		p.skip = p.skip[1:]
	}
	if len(p.skip) > 0 && p.skip[0].begin <= offset {
		return false
	}
	p.unfinished = append(p.unfinished, offset)
	return true
}

// advance notes that there is nothing to fetch below offset.
func (p *progress) advance(offset int64) {
	if offset > p.next {
		p.next = offset
	}
}

// done takes a message off. It reports false when it wasn't there.
func (p *progress) done(offset int64) bool {
	i, ok := slices.BinarySearch(p.unfinished, offset)
	if ok {
		p.unfinished = slices.Delete(p.unfinished, i, i+1)
	}
	return ok
}

// maxSpans bounds what is told of the work beyond the committed offset. When there are more pieces, those with the
// least between them are joined: some messages more come again, none is missed.
const maxSpans = 64

// open returns what is not done of the offsets from commit to upTo, as spans. Offsets that hold no message for this
// consumer count as done.
func (p *progress) open() (open []span, upTo int64) {
	var out []span
	for _, o := range p.unfinished {
		if n := len(out); n > 0 && out[n-1].end == o {
			out[n-1].end++
			continue
		}
		out = append(out, span{o, o + 1})
	}
	upTo = p.next
	for _, s := range p.skip { // what the consumer before had done and this one hasn't come to
		if s.end <= upTo {
			continue
		}
		if s.begin > upTo {
			out = append(out, span{upTo, s.begin})
		}
		upTo = s.end
	}
	for len(out) > maxSpans {
		best := 1
		for i := 2; i < len(out); i++ {
			if out[i].begin-out[i-1].end < out[best].begin-out[best-1].end {
				best = i
			}
		}
		out[best-1].end = out[best].end
		out = slices.Delete(out, best, best+1)
	}
	return out, upTo
}

// resume begins at offset; what another consumer had done beyond it is skipped: everything below upTo that isn't in
// open.
func (p *progress) resume(offset, upTo int64, open []span) {
	*p = progress{next: offset, committed: offset}
	at := offset
	for _, s := range open {
		if s.begin > at {
			p.skip = append(p.skip, span{at, s.begin})
		}
		at = max(at, s.end)
	}
	if upTo > at {
		p.skip = append(p.skip, span{at, upTo})
	}
}
