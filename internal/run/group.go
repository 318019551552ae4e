// Package run starts goroutines that somebody owns.
//
// A Group is the one door through which a component starts its goroutines: it refuses once the component began to
// stop, so that none can start behind the back of the one who waits.
//
// It knows nothing of signals, logs or configuration.
package run

import (
	"context"
	"sync"
)

// Group is a set of goroutines with one owner. Go may be called from any goroutine, also from one of the group's
// own; the owner calls Close, or Stop and Wait. The zero Group is not usable, see NewGroup.
//
// "Stopped?" and the count lie under one lock. A WaitGroup beside a flag would let a goroutine pass the flag, and be
// added after Wait saw the count at zero.
type Group struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	running int
	stopped bool
	ended   chan struct{} // closed when stopped and nothing runs
}

// NewGroup returns a group whose goroutines get a context that ends with parent, or when Stop is called. The end of
// parent alone doesn't close the door: only Stop does.
func NewGroup(parent context.Context) *Group {
	g := &Group{ended: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancel(parent)
	return g
}

// Go runs f in a goroutine of the group and returns true, or returns false without running it when the group has
// stopped. Whoever f would have answered must be answered by the caller then. f ends soon after its context does.
func (g *Group) Go(f func(ctx context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return false
	}
	g.running++
	go func() {
		// Deferred, so that a goroutine that ends itself (runtime.Goexit, a failed test's) is counted too.
		defer g.leave()
		f(g.ctx)
	}()
	return true
}

func (g *Group) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	g.maybeEndLocked()
}

func (g *Group) maybeEndLocked() {
	if g.stopped && g.running == 0 {
		close(g.ended)
	}
}

// Stop closes the door and ends the goroutines' context. It doesn't wait, and may be called more than once and from
// a goroutine of the group.
func (g *Group) Stop() {
	g.cancel()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped {
		g.stopped = true
		g.maybeEndLocked()
	}
}

// Wait returns nil when the group has stopped and its last goroutine ended, or ctx's error when ctx ends before.
// It must not be called from a goroutine of the group.
func (g *Group) Wait(ctx context.Context) error {
	select {
	case <-g.ended:
		return nil
	default:
	}
	select {
	case <-g.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close is Stop and Wait.
func (g *Group) Close(ctx context.Context) error {
	g.Stop()
	return g.Wait(ctx)
}

// Running returns how many goroutines run now, for metrics and tests.
func (g *Group) Running() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running
}
