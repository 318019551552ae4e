// Package longpoll holds pulls that wait for a message. A waiting pull costs a small struct: no goroutine, no
// timer of its own.
package longpoll

import (
	"container/heap"
	"hash/maphash"
	"sync"
	"time"
)

// Key names a queue.
type Key struct {
	Topic string
	Queue int32
}

// Pull is what waits. It is woken by exactly one of a message, its deadline, or the table's end; dropped when its
// connection goes.
type Pull interface {
	// Wants reports whether a message with this tags code is one the pull waits for.
	Wants(tagsCode int64) bool
}

// Table holds the waiting pulls. It is safe for concurrent use.
//
// No wake-up is lost between "nothing found" and waiting: Park takes the queue's end as the caller's read saw it,
// and refuses when a message arrived behind it since; the caller reads again.
type Table struct {
	seed   maphash.Seed
	shards [shards]shard

	mu       sync.Mutex
	deadline waitHeap
	conns    map[uint64]map[*wait]struct{}
	size     int
	limit    int
}

const shards = 64

type shard struct {
	mu     sync.Mutex
	queues map[Key]*waiters
}

// waiters are a queue's waiting pulls. ends is the newest end heard of while there are any.
type waiters struct {
	list []*wait
}

type wait struct {
	key      Key
	pull     Pull
	conn     uint64
	deadline time.Time
	index    int  // in the heap
	gone     bool // out of the heap and its connection's set; guarded by Table.mu
	done     bool // woken or dropped; guarded by the shard
}

// New returns an empty table for at most limit pulls.
func New(limit int) *Table {
	t := &Table{seed: maphash.MakeSeed(), conns: map[uint64]map[*wait]struct{}{}, limit: limit}
	for i := range t.shards {
		t.shards[i].queues = map[Key]*waiters{}
	}
	return t
}

func (t *Table) shard(k Key) *shard {
	h := maphash.String(t.seed, k.Topic) + uint64(k.Queue)*0x9E3779B97F4A7C15
	return &t.shards[h%shards]
}

// Park lets p wait for a message of the queue. moved is asked, with the queue's arrivals held up, whether the
// queue's end has moved since the caller read: then p doesn't wait and Park returns false. It also returns false
// when the table is full.
func (t *Table) Park(k Key, p Pull, conn uint64, deadline time.Time, moved func() bool) bool {
	w := &wait{key: k, pull: p, conn: conn, deadline: deadline}
	s := t.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if moved() {
		return false
	}
	t.mu.Lock()
	if t.size >= t.limit {
		t.mu.Unlock()
		return false
	}
	t.size++
	heap.Push(&t.deadline, w)
	if t.conns[conn] == nil {
		t.conns[conn] = map[*wait]struct{}{}
	}
	t.conns[conn][w] = struct{}{}
	t.mu.Unlock()
	q := s.queues[k]
	if q == nil {
		q = &waiters{}
		s.queues[k] = q
	}
	q.list = append(q.list, w)
	return true
}

// Arrived returns the pulls that a new message wakes. It must be called after the message is readable. When
// nobody waits it costs a lock and a map look-up.
func (t *Table) Arrived(topic string, queue int32, tagsCode int64) (woken []Pull) {
	k := Key{topic, queue}
	s := t.shard(k)
	s.mu.Lock()
	q := s.queues[k]
	if q == nil {
		s.mu.Unlock()
		return nil
	}
	kept := q.list[:0]
	var out []*wait
	for _, w := range q.list {
		if w.pull.Wants(tagsCode) {
			w.done = true
			out = append(out, w)
			woken = append(woken, w.pull)
		} else {
			kept = append(kept, w)
		}
	}
	clear(q.list[len(kept):])
	if q.list = kept; len(kept) == 0 {
		delete(s.queues, k)
	}
	s.mu.Unlock()
	t.forget(out)
	return woken
}

// forget takes waits out of the heap and the connections' sets.
func (t *Table) forget(list []*wait) {
	if len(list) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range list {
		t.forgetLocked(w)
	}
}

func (t *Table) forgetLocked(w *wait) {
	if w.gone {
		return
	}
	w.gone = true
	if w.index >= 0 {
		heap.Remove(&t.deadline, w.index)
	}
	if set := t.conns[w.conn]; set != nil {
		if delete(set, w); len(set) == 0 {
			delete(t.conns, w.conn)
		}
	}
	t.size--
}

// take marks waits as done in their shards and returns the pulls of those that weren't.
func (t *Table) take(list []*wait) (pulls []Pull) {
	for _, w := range list {
		s := t.shard(w.key)
		s.mu.Lock()
		if !w.done {
			w.done = true
			pulls = append(pulls, w.pull)
			if q := s.queues[w.key]; q != nil {
				for i, x := range q.list {
					if x == w {
						q.list = append(q.list[:i], q.list[i+1:]...)
						break
					}
				}
				if len(q.list) == 0 {
					delete(s.queues, w.key)
				}
			}
		}
		s.mu.Unlock()
	}
	return pulls
}

// Expire returns the pulls whose deadline has come.
func (t *Table) Expire(now time.Time) []Pull {
	t.mu.Lock()
	var due []*wait
	for len(t.deadline) > 0 && !t.deadline[0].deadline.After(now) {
		w := t.deadline[0]
		t.forgetLocked(w)
		due = append(due, w)
	}
	t.mu.Unlock()
	return t.take(due)
}

// Next returns the earliest deadline.
func (t *Table) Next() (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.deadline) == 0 {
		return time.Time{}, false
	}
	return t.deadline[0].deadline, true
}

// DropConn forgets the pulls of a connection.
func (t *Table) DropConn(conn uint64) {
	t.mu.Lock()
	var list []*wait
	for w := range t.conns[conn] {
		list = append(list, w)
	}
	for _, w := range list {
		t.forgetLocked(w)
	}
	t.mu.Unlock()
	t.take(list)
}

// Drain returns all pulls, for the end.
func (t *Table) Drain() []Pull { return t.Expire(time.Unix(1<<40, 0)) }

// Len returns how many pulls wait.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.size
}

// waitHeap is a heap by deadline.
type waitHeap []*wait

func (h waitHeap) Len() int           { return len(h) }
func (h waitHeap) Less(i, j int) bool { return h[i].deadline.Before(h[j].deadline) }
func (h waitHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *waitHeap) Push(x any) {
	w := x.(*wait)
	w.index = len(*h)
	*h = append(*h, w)
}

// Pop implements heap.Interface.
func (h *waitHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	w.index = -1
	return w
}
