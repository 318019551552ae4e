// Package lock is the table of queue locks of ordered consumption: which member of a group may consume a queue.
// It is pure: every method takes the time, and the caller serialises.
package lock

import (
	"iter"
	"slices"
	"time"
)

// Queue names a queue as lock requests do.
type Queue struct {
	Topic  string
	Broker string
	ID     int32
}

// Table holds the locks of all groups.
//
// A lock is a lease: its owner renews it by locking again, and after Lease without that anyone may have it (Java:
// 60 s, renewed every 20 s). An owner that unlocks keeps the queue from others for Settle: a Java consumer that
// stops unlocks first and commits its last offsets after that, on the same connection. The commit ends that time
// early; the owner may lock again within it as if it had never unlocked.
type Table struct {
	Lease, Settle time.Duration
	// Max bounds the locks of all groups together; beyond it, those who ask for a new one don't get it. 0: no bound.
	Max int

	groups map[string]locks
	size   int
	// letting is until when at the latest each client lets go of something. It stays when others take over what
	// the client let go of: its letting go is still to be announced.
	letting map[owner]time.Time
}

// owner is a client of a group.
type owner struct {
	group, client string
}

// locks are one group's, never empty. A place has one hold for each broker name that it was locked with: one, but
// for clients that name a queue in two ways.
type locks map[place][]*hold

// maxNames bounds the broker names a queue is locked with.
const maxNames = 8

// place is what commits and pulls say of a queue: they carry no broker name, or another one than locks do.
type place struct {
	topic string
	id    int32
}

type hold struct {
	queue    Queue
	client   string
	renewed  time.Time
	settling time.Time // zero, or when the unlocked queue is free for others at the latest
	settled  bool      // the last offset is in: free for others now
}

// Lapse is an owner whose lease of some queue of the group ran out.
type Lapse struct {
	Group, Client string
}

// NewTable returns an empty table.
func NewTable(lease, settle time.Duration) *Table {
	return &Table{Lease: lease, Settle: settle, groups: map[string]locks{}, letting: map[owner]time.Time{}}
}

// blocks reports whether the hold keeps others away.
func (t *Table) blocks(h *hold, now time.Time) bool {
	if !h.settling.IsZero() {
		return !h.settled && now.Before(h.settling)
	}
	return now.Sub(h.renewed) < t.Lease
}

// keeps reports whether the hold is one that its owner hasn't let go of.
func (t *Table) keeps(h *hold, now time.Time) bool {
	return h.settling.IsZero() && t.blocks(h, now)
}

func (l locks) find(q Queue) *hold {
	for _, h := range l[place{q.Topic, q.ID}] {
		if h.queue == q {
			return h
		}
	}
	return nil
}

// each walks the group's holds.
func (t *Table) each(group string) iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		for _, hs := range t.groups[group] {
			for _, h := range hs {
				if !yield(h) {
					return
				}
			}
		}
	}
}

// remove takes those of the group's holds out for which f returns true.
func (t *Table) remove(group string, f func(*hold) bool) {
	l := t.groups[group]
	for p, hs := range l {
		kept := slices.DeleteFunc(hs, f)
		t.size -= len(hs) - len(kept)
		if l[p] = kept; len(kept) == 0 {
			delete(l, p)
		}
	}
	if len(l) == 0 {
		delete(t.groups, group)
	}
}

// Lock takes or renews the locks and returns those that the client holds now.
func (t *Table) Lock(group, client string, queues []Queue, now time.Time) []Queue {
	ok := make([]Queue, 0, len(queues))
	l := t.groups[group]
	resumed := false
	for _, q := range queues {
		h := l.find(q)
		if h != nil && h.client != client && t.blocks(h, now) {
			continue
		}
		if h == nil {
			if t.Max > 0 && t.size >= t.Max || len(l[place{q.Topic, q.ID}]) >= maxNames {
				continue
			}
			if l == nil {
				l = locks{}
				t.groups[group] = l
			}
			h = &hold{queue: q}
			p := place{q.Topic, q.ID}
			l[p] = append(l[p], h)
			t.size++
		}
		resumed = resumed || h.client == client && !h.settling.IsZero()
		*h = hold{queue: q, client: client, renewed: now}
		ok = append(ok, q)
	}
	if resumed && !t.lets(group, client) {
		delete(t.letting, owner{group, client})
	}
	return ok
}

// lets reports whether the client is letting go of anything.
func (t *Table) lets(group, client string) bool {
	for h := range t.each(group) {
		if h.client == client && !h.settling.IsZero() {
			return true
		}
	}
	return false
}

// letGo begins the hold's settling, unless it is in it.
func (t *Table) letGo(group string, h *hold, now time.Time) {
	if !h.settling.IsZero() {
		return
	}
	h.settling = now.Add(t.Settle)
	if o := (owner{group, h.client}); h.settling.After(t.letting[o]) {
		t.letting[o] = h.settling
	}
}

// Unlock begins to let go of the queues that the client holds; of others' nothing happens. It reports whether any
// is being let go of.
func (t *Table) Unlock(group, client string, queues []Queue, now time.Time) bool {
	l, any := t.groups[group], false
	for _, q := range queues {
		if h := l.find(q); h != nil && h.client == client && t.keeps(h, now) {
			t.letGo(group, h, now)
			any = true
		}
	}
	return any
}

// UnlockAll is Unlock of everything the client holds. It reports whether anything of the client's still keeps
// others away.
func (t *Table) UnlockAll(group, client string, now time.Time) bool {
	any := false
	for h := range t.each(group) {
		if h.client == client && t.blocks(h, now) {
			t.letGo(group, h, now)
			any = true
		}
	}
	return any
}

// Committed notes that the owner's offset of a queue is in. It reports whether with it everything that the client
// is letting go of in the group is.
func (t *Table) Committed(group, client, topic string, id int32) bool {
	if t.letting[owner{group, client}].IsZero() {
		return false
	}
	hit := false
	for _, h := range t.groups[group][place{topic, id}] {
		if h.client == client && !h.settling.IsZero() && !h.settled {
			h.settled, hit = true, true
		}
	}
	if !hit {
		return false
	}
	for h := range t.each(group) {
		if h.client == client && !h.settling.IsZero() && !h.settled {
			return false
		}
	}
	return true
}

// Drop frees everything the client holds in the group, and returns it.
func (t *Table) Drop(group, client string) []Queue {
	delete(t.letting, owner{group, client})
	var out []Queue
	t.remove(group, func(h *hold) bool {
		if h.client != client {
			return false
		}
		out = append(out, h.queue)
		return true
	})
	return out
}

// DropSettled frees what the client has let go of in the group and whose time is over. What is left of its letting
// go, if anything, is as before.
func (t *Table) DropSettled(group, client string, now time.Time) {
	left := false
	t.remove(group, func(h *hold) bool {
		if h.client != client || h.settling.IsZero() {
			return false
		}
		blocks := t.blocks(h, now)
		left = left || blocks
		return !blocks
	})
	if !left {
		delete(t.letting, owner{group, client})
	}
}

// Owner returns who holds a queue of this broker, whatever broker name the lock was asked with.
func (t *Table) Owner(group, topic string, id int32, now time.Time) (client string, ok bool) {
	for _, h := range t.groups[group][place{topic, id}] {
		if t.blocks(h, now) {
			return h.client, true
		}
	}
	return "", false
}

// Holds reports whether the client is one of those that hold the queue, whatever broker name it was asked with.
func (t *Table) Holds(group, client, topic string, id int32, now time.Time) bool {
	for _, h := range t.groups[group][place{topic, id}] {
		if h.client == client && t.blocks(h, now) {
			return true
		}
	}
	return false
}

// Any reports whether the group has any lock that counts.
func (t *Table) Any(group string, now time.Time) bool {
	for h := range t.each(group) {
		if t.blocks(h, now) {
			return true
		}
	}
	return false
}

// Held reports whether the client holds a lock in the group that it hasn't let go of.
func (t *Table) Held(group, client string, now time.Time) bool {
	for h := range t.each(group) {
		if h.client == client && t.keeps(h, now) {
			return true
		}
	}
	return false
}

// Settling calls f for every client that is letting go of queues, with the time at which the last of them is free.
// f may not change the table.
func (t *Table) Settling(f func(group, client string, until time.Time)) {
	for o, until := range t.letting {
		f(o.group, o.client, until)
	}
}

// Expire forgets leases that ran out, so that the table doesn't grow, and returns whose they were.
func (t *Table) Expire(now time.Time) []Lapse {
	lapsed := map[Lapse]bool{}
	for group := range t.groups {
		t.remove(group, func(h *hold) bool {
			if !h.settling.IsZero() || t.blocks(h, now) {
				return false
			}
			lapsed[Lapse{group, h.client}] = true
			return true
		})
	}
	var out []Lapse
	for l := range lapsed {
		out = append(out, l)
	}
	return out
}

// Empty reports whether there is no lock at all.
func (t *Table) Empty() bool { return len(t.groups) == 0 }

// HasGroup reports whether the group has an entry.
func (t *Table) HasGroup(group string) bool { return t.groups[group] != nil }

// Len returns how many locks there are, expired ones that weren't forgotten yet among them.
func (t *Table) Len() int { return t.size }
