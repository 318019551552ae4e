package dedup

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// DefaultMaxKeys is the bound of a Memory store's keys: with ids as keys it takes some 30 MB then.
const DefaultMaxKeys = 100_000

// MemoryOptions are the options of a Memory store.
type MemoryOptions struct {
	// MaxKeys bounds the keys that are remembered; 0 means DefaultMaxKeys. A full store forgets what was handled, that
	// first whose window ends first; never a claim that lives. With nothing but claims it refuses new ones (ErrFull).
	MaxKeys int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Memory is a Store in this process's memory. Other processes know nothing of it, and it ends with the process.
type Memory struct {
	max int
	now func() time.Time

	mu      sync.Mutex
	keys    map[string]*entry
	claims  byEnd // by end of lease
	handled byEnd // by end of window
}

// NewMemory returns an empty store. A negative MaxKeys counts as 0.
func NewMemory(o MemoryOptions) *Memory {
	if o.MaxKeys <= 0 {
		o.MaxKeys = DefaultMaxKeys
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Memory{max: o.MaxKeys, now: o.Now, keys: map[string]*entry{}}
}

// Claim implements Store.
func (m *Memory) Claim(_ context.Context, key, token string, lease time.Duration) (Outcome, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.expireLocked()
	e := m.keys[key]
	switch {
	case e == nil:
		if !m.makeRoomLocked() {
			return 0, ErrFull
		}
	case e.token == "":
		return Handled, nil
	case e.token != token:
		return Busy, nil
	default:
		m.dropLocked(e)
	}
	m.addLocked(&m.claims, &entry{key: key, token: token, end: now.Add(lease)})
	return Claimed, nil
}

// Confirm implements Store.
func (m *Memory) Confirm(_ context.Context, key, token string, window time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.expireLocked()
	e := m.keys[key]
	switch {
	case e == nil:
		if !m.makeRoomLocked() {
			return ErrFull
		}
	case e.token == "":
		return nil
	case e.token != token:
		return ErrClaimLost
	default:
		m.dropLocked(e)
	}
	m.addLocked(&m.handled, &entry{key: key, end: now.Add(window)})
	return nil
}

// Release implements Store.
func (m *Memory) Release(_ context.Context, key, token string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked()
	if e := m.keys[key]; e != nil && e.token == token {
		m.dropLocked(e)
	}
	return nil
}

// Len returns the number of keys that are remembered.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked()
	return len(m.keys)
}

// expireLocked forgets what has ended and returns the time.
func (m *Memory) expireLocked() time.Time {
	now := m.now()
	for _, h := range []*byEnd{&m.claims, &m.handled} {
		for len(*h) > 0 && !(*h)[0].end.After(now) {
			m.dropLocked((*h)[0])
		}
	}
	return now
}

// makeRoomLocked makes room for one more key, if it can.
func (m *Memory) makeRoomLocked() bool {
	if len(m.keys) < m.max {
		return true
	}
	if len(m.handled) == 0 {
		return false
	}
	m.dropLocked(m.handled[0])
	return true
}

func (m *Memory) addLocked(h *byEnd, e *entry) {
	e.in = h
	m.keys[e.key] = e
	heap.Push(h, e)
}

func (m *Memory) dropLocked(e *entry) {
	delete(m.keys, e.key)
	heap.Remove(e.in, e.at)
}

// entry is a key that is claimed, or, without a token, handled.
type entry struct {
	key, token string
	end        time.Time
	in         *byEnd
	at         int // index there
}

// byEnd is a heap: the entry that ends first is the first.
type byEnd []*entry

func (h byEnd) Len() int           { return len(h) }
func (h byEnd) Less(i, j int) bool { return h[i].end.Before(h[j].end) }
func (h byEnd) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *byEnd) Push(x any) {
	e := x.(*entry)
	e.at = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *byEnd) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
