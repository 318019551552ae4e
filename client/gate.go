package client

import (
	"context"
	"sync"
)

// gate counts calls that are under way and refuses new ones once it closes.
type gate struct {
	mu     sync.Mutex
	inside int
	closed bool
	empty  chan struct{} // closed when closed and nobody is inside
}

func newGate() *gate { return &gate{empty: make(chan struct{})} }

// enter reports whether the caller may go in; then it calls leave.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.closed && g.inside == 0 {
		close(g.empty)
	}
}

// shut refuses newcomers. It reports whether it was the first to do so.
func (g *gate) shut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.closed = true
	if g.inside == 0 {
		close(g.empty)
	}
	return true
}

// wait waits until nobody is inside, after shut.
func (g *gate) wait(ctx context.Context) error {
	select {
	case <-g.empty:
		return nil
	default:
	}
	select {
	case <-g.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
