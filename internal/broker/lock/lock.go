// Package lock is the table of queue locks of ordered consumption: which member of a group may consume a queue.
// It is pure: every method takes the time, and the caller serialises.
package lock

import (
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
// stops unlocks first and commits its last offsets after that, on the same connection. The commit, or the owner's
// goodbye, ends that time early.
type Table struct {
	Lease, Settle time.Duration
	groups        map[string]map[Queue]*hold
}

type hold struct {
	client   string
	renewed  time.Time
	settling time.Time // zero, or when the unlocked queue is free for others at the latest
	settled  bool      // the last offset is in: free for others now
}

// NewTable returns an empty table.
func NewTable(lease, settle time.Duration) *Table {
	return &Table{Lease: lease, Settle: settle, groups: map[string]map[Queue]*hold{}}
}

// blocks reports whether the hold keeps others away.
func (t *Table) blocks(h *hold, now time.Time) bool {
	if !h.settling.IsZero() {
		return !h.settled && now.Before(h.settling)
	}
	return now.Sub(h.renewed) < t.Lease
}

// Lock takes or renews the locks and returns those that the client holds now.
func (t *Table) Lock(group, client string, queues []Queue, now time.Time) []Queue {
	ok := make([]Queue, 0, len(queues))
	for _, q := range queues {
		if h := t.groups[group][q]; h != nil && h.client != client && t.blocks(h, now) {
			continue
		}
		if t.groups[group] == nil {
			t.groups[group] = map[Queue]*hold{}
		}
		t.groups[group][q] = &hold{client: client, renewed: now}
		ok = append(ok, q)
	}
	return ok
}

// Unlock begins to let go of the queues that the client holds; of others' nothing happens. It reports whether any
// is being let go of.
func (t *Table) Unlock(group, client string, queues []Queue, now time.Time) bool {
	any := false
	for _, q := range queues {
		if h := t.groups[group][q]; h != nil && h.client == client && h.settling.IsZero() {
			h.settling = now.Add(t.Settle)
			any = true
		}
	}
	return any
}

// UnlockAll is Unlock of everything the client holds.
func (t *Table) UnlockAll(group, client string, now time.Time) bool {
	any := false
	for _, h := range t.groups[group] {
		if h.client == client {
			if h.settling.IsZero() {
				h.settling = now.Add(t.Settle)
			}
			any = true
		}
	}
	return any
}

// Committed notes that the owner's offset of a queue is in. It reports whether with it everything that the client
// is letting go of in the group is.
func (t *Table) Committed(group, client, topic string, id int32) bool {
	hit, all := false, true
	for q, h := range t.groups[group] {
		if h.client != client || h.settling.IsZero() {
			continue
		}
		if q.Topic == topic && q.ID == id && !h.settled {
			h.settled, hit = true, true
		}
		all = all && h.settled
	}
	return hit && all
}

// Drop frees everything the client holds in the group, and returns it.
func (t *Table) Drop(group, client string) []Queue {
	var out []Queue
	for q, h := range t.groups[group] {
		if h.client == client {
			out = append(out, q)
			delete(t.groups[group], q)
		}
	}
	t.prune(group)
	return out
}

// DropSettled frees what the client has let go of in the group and whose time is over, and reports whether
// anything was.
func (t *Table) DropSettled(group, client string, now time.Time) bool {
	any := false
	for q, h := range t.groups[group] {
		if h.client == client && !h.settling.IsZero() && !t.blocks(h, now) {
			delete(t.groups[group], q)
			any = true
		}
	}
	t.prune(group)
	return any
}

func (t *Table) prune(group string) {
	if len(t.groups[group]) == 0 {
		delete(t.groups, group)
	}
}

// Owner returns who holds a queue of this broker, whatever broker name the lock was asked with.
func (t *Table) Owner(group, topic string, id int32, now time.Time) (client string, ok bool) {
	locks := t.groups[group]
	if len(locks) == 0 {
		return "", false
	}
	for q, h := range locks {
		if q.ID == id && q.Topic == topic && t.blocks(h, now) {
			return h.client, true
		}
	}
	return "", false
}

// Any reports whether the group has any lock that counts.
func (t *Table) Any(group string, now time.Time) bool {
	for _, h := range t.groups[group] {
		if t.blocks(h, now) {
			return true
		}
	}
	return false
}

// Held reports whether the client holds a lock in the group that it hasn't let go of.
func (t *Table) Held(group, client string, now time.Time) bool {
	for _, h := range t.groups[group] {
		if h.client == client && h.settling.IsZero() && t.blocks(h, now) {
			return true
		}
	}
	return false
}

// Settling calls f for every client that is letting go of queues, with the time at which the last of them is free.
func (t *Table) Settling(f func(group, client string, until time.Time)) {
	for group, locks := range t.groups {
		last := map[string]time.Time{}
		for _, h := range locks {
			if !h.settling.IsZero() && h.settling.After(last[h.client]) {
				last[h.client] = h.settling
			}
		}
		for client, until := range last {
			f(group, client, until)
		}
	}
}

// Expire forgets leases that ran out, so that the table doesn't grow.
func (t *Table) Expire(now time.Time) {
	for group, locks := range t.groups {
		for q, h := range locks {
			if h.settling.IsZero() && now.Sub(h.renewed) >= t.Lease {
				delete(locks, q)
			}
		}
		t.prune(group)
	}
}

// Empty reports whether there is no lock at all.
func (t *Table) Empty() bool { return len(t.groups) == 0 }

// HasGroup reports whether the group has an entry.
func (t *Table) HasGroup(group string) bool { return len(t.groups[group]) > 0 }
