package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ErrEarlierFailed: a message was not sent because an earlier one with the same sharding key failed while it waited
// behind it. Sending both again, in their order, keeps the order.
var ErrEarlierFailed = errors.New("not sent: an earlier message with its sharding key failed")

// lanes send the messages of one key one at a time, in the order in which they came. When one fails, those that
// wait behind it fail, too: they must not overtake it.
type lanes struct {
	mu sync.Mutex
	m  map[laneKey][]*laneTurn // the first has the lane
}

type laneKey struct{ topic, key string }

// laneTurn is one message's place in its lane.
type laneTurn struct {
	l     *lanes
	k     laneKey
	ready chan struct{} // closed when it may be sent, or must not be any more
	err   error         // set before ready is closed
}

// queue gives the caller a place at the lane's end. It doesn't wait. A nil laneTurn is one without a lane.
func (l *lanes) queue(topic, key string) *laneTurn {
	if key == "" {
		return nil
	}
	t := &laneTurn{l: l, k: laneKey{topic, key}, ready: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m == nil {
		l.m = map[laneKey][]*laneTurn{}
	}
	l.m[t.k] = append(l.m[t.k], t)
	if len(l.m[t.k]) == 1 {
		close(t.ready)
	}
	return t
}

// wait waits for the turn. After nil the caller calls done. A wait that ctx ends is a message that failed: those behind it
// fail, too.
func (t *laneTurn) wait(ctx context.Context) error {
	if t == nil {
		return nil
	}
	select {
	case <-t.ready:
		return t.err
	default:
	}
	select {
	case <-t.ready:
		return t.err
	case <-ctx.Done():
	}
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	select {
	case <-t.ready: // at the same moment
		if t.err != nil {
			return t.err
		}
	default:
	}
	t.failLocked(ctx.Err())
	return ctx.Err()
}

// done gives the lane to the next, or fails all that wait when err isn't nil.
func (t *laneTurn) done(err error) {
	if t == nil {
		return
	}
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	if err == nil {
		t.nextLocked()
		return
	}
	t.failLocked(err)
}

// failLocked takes t and all behind it out of the lane.
func (t *laneTurn) failLocked(err error) {
	all := t.l.m[t.k]
	i := slices.Index(all, t)
	for _, o := range all[i+1:] {
		o.err = fmt.Errorf("%w: %w", ErrEarlierFailed, err)
		close(o.ready)
	}
	if t.l.m[t.k] = all[:i:i]; i == 0 {
		delete(t.l.m, t.k)
	}
}

func (t *laneTurn) nextLocked() {
	rest := t.l.m[t.k][1:]
	if len(rest) == 0 {
		delete(t.l.m, t.k)
		return
	}
	t.l.m[t.k] = rest
	close(rest[0].ready)
}
