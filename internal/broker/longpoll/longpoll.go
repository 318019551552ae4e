// Package longpoll holds pulls that wait for a message. A waiting pull costs a small struct: no goroutine, no
// timer of its own.
package longpoll

import (
	"container/heap"
	"hash/maphash"
	"sync"
	"sync/atomic"
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
// No wake-up is lost between "nothing found" and waiting. Park asks, once arrivals see the pull coming, whether the
// queue's end has moved since the caller read, and refuses if so: the caller reads again. Arrived is called after
// the message is readable. So either the message is readable when Park asks, or Arrived comes after the asking and
// finds the pull: it looks whether anyone waits (waiting, the shard's lock) after the message became readable, and
// Park becomes visible there before it asks.
//
// Lock order: a shard's mu, then Table.mu.
type Table struct {
	seed   maphash.Seed
	shards [shards]shard

	mu       sync.Mutex
	deadline waitHeap
	conns    map[uint64]*wait // the first of each connection's list
	size     int
	limit    int
}

const shards = 64

type shard struct {
	// waiting is how many wait or are about to. Without any, Arrived looks no further.
	waiting atomic.Int32

	mu     sync.Mutex
	queues map[Key][]*wait // never empty lists

	_ [40]byte // shards don't share cache lines
}

type wait struct {
	key      Key
	pull     Pull
	conn     uint64
	deadline time.Time
	place    int  // in its queue's list; guarded by the shard
	done     bool // woken or dropped; guarded by the shard
	index    int  // in the heap; guarded by Table.mu
	gone     bool // out of the heap and its connection's list; guarded by Table.mu

	next, prev *wait // in its connection's list; guarded by Table.mu
}

// New returns an empty table for at most limit pulls.
func New(limit int) *Table {
	t := &Table{seed: maphash.MakeSeed(), conns: map[uint64]*wait{}, limit: limit}
	for i := range t.shards {
		t.shards[i].queues = map[Key][]*wait{}
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
	s.waiting.Add(1)
	if moved() || !t.add(w) {
		s.waiting.Add(-1)
		return false
	}
	w.place = len(s.queues[k])
	s.queues[k] = append(s.queues[k], w)
	return true
}

// add puts w where deadlines and connections are looked up; it reports false when the table is full.
func (t *Table) add(w *wait) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.size >= t.limit {
		return false
	}
	t.size++
	heap.Push(&t.deadline, w)
	if w.next = t.conns[w.conn]; w.next != nil {
		w.next.prev = w
	}
	t.conns[w.conn] = w
	return true
}

// Arrived returns the pulls that a new message wakes. It must be called after the message is readable. When
// nobody waits (for this queue or one that shares its shard) it costs a hash and an atomic load.
func (t *Table) Arrived(topic string, queue int32, tagsCode int64) (woken []Pull) {
	k := Key{topic, queue}
	s := t.shard(k)
	if s.waiting.Load() == 0 {
		return nil
	}
	s.mu.Lock()
	list := s.queues[k]
	if len(list) == 0 {
		s.mu.Unlock()
		return nil
	}
	kept := list[:0]
	var out []*wait
	for _, w := range list {
		if w.pull.Wants(tagsCode) {
			w.done = true
			out = append(out, w)
			woken = append(woken, w.pull)
		} else {
			w.place = len(kept)
			kept = append(kept, w)
		}
	}
	clear(list[len(kept):])
	s.put(k, kept)
	s.waiting.Add(-int32(len(out)))
	s.mu.Unlock()
	t.forget(out)
	return woken
}

// put sets a queue's list; the caller holds mu.
func (s *shard) put(k Key, list []*wait) {
	if len(list) == 0 {
		delete(s.queues, k)
	} else {
		s.queues[k] = list
	}
}

// forget takes waits out of the heap and the connections' lists.
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
	if w.next != nil {
		w.next.prev = w.prev
	}
	switch {
	case w.prev != nil:
		w.prev.next = w.next
	case w.next != nil:
		t.conns[w.conn] = w.next
	default:
		delete(t.conns, w.conn)
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
			list := s.queues[w.key]
			last := list[len(list)-1]
			list[w.place], last.place = last, w.place
			list[len(list)-1] = nil
			s.put(w.key, list[:len(list)-1])
			s.waiting.Add(-1)
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
	for w := t.conns[conn]; w != nil; w = w.next {
		list = append(list, w)
	}
	for _, w := range list {
		t.forgetLocked(w)
	}
	t.mu.Unlock()
	t.take(list)
}

// TakeTopic returns the pulls of a topic's queues: it is gone. It looks at every pull that waits.
func (t *Table) TakeTopic(topic string) []Pull {
	t.mu.Lock()
	var list []*wait
	for _, w := range t.deadline {
		if w.key.Topic == topic {
			list = append(list, w)
		}
	}
	for _, w := range list {
		t.forgetLocked(w)
	}
	t.mu.Unlock()
	return t.take(list)
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
