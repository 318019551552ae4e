package client

import (
	"container/list"
	"context"
	"sync"
)

// room bounds work that is outstanding, by count and by bytes. Whoever waits is served in the order of coming, so a
// large piece isn't passed by small ones for ever.
type room struct {
	mu      sync.Mutex
	count   int   // left
	bytes   int64 // left
	most    int64
	waiting list.List // of *roomWait
}

type roomWait struct {
	bytes int64
	ready chan struct{}
}

func newRoom(count int, bytes int64) *room { return &room{count: count, bytes: bytes, most: bytes} }

// take waits for room, or for ctx. What is larger than the whole room gets in when nothing else is there. The caller
// gives back what take returned.
func (r *room) take(ctx context.Context, bytes int64) (int64, error) {
	bytes = min(bytes, r.most)
	r.mu.Lock()
	if r.waiting.Len() == 0 && r.count > 0 && r.bytes >= bytes {
		r.count--
		r.bytes -= bytes
		r.mu.Unlock()
		return bytes, nil
	}
	w := &roomWait{bytes, make(chan struct{})}
	at := r.waiting.PushBack(w)
	r.mu.Unlock()
	select {
	case <-w.ready:
		return bytes, nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-w.ready: // at the same moment
		r.giveLocked(bytes)
	default:
		r.waiting.Remove(at)
		r.admitLocked() // smaller ones may have waited behind
	}
	return 0, ctx.Err()
}

// give returns what take took.
func (r *room) give(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.giveLocked(bytes)
}

func (r *room) giveLocked(bytes int64) {
	r.count++
	r.bytes += bytes
	r.admitLocked()
}

func (r *room) admitLocked() {
	for e := r.waiting.Front(); e != nil; e = r.waiting.Front() {
		w := e.Value.(*roomWait)
		if r.count < 1 || r.bytes < w.bytes {
			return
		}
		r.count--
		r.bytes -= w.bytes
		r.waiting.Remove(e)
		close(w.ready)
	}
}
