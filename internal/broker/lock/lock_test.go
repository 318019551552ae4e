package lock

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const (
	lease  = 60 * time.Second
	settle = 200 * time.Millisecond
)

func at(d time.Duration) time.Time { return epoch.Add(d) }

func queue(id int32) Queue { return Queue{Topic: "T", Broker: "b", ID: id} }

func TestLeaseIsReentrantAndEnds(t *testing.T) {
	lt := NewTable(lease, settle)
	try := func(client string, d time.Duration, want bool) {
		t.Helper()
		got := lt.Lock("g", client, []Queue{queue(0)}, at(d))
		if (len(got) == 1) != want {
			t.Fatalf("%s at %v: got %v, want %v", client, d, got, want)
		}
	}
	try("A", 0, true)
	try("B", time.Second, false)
	try("A", 30*time.Second, true) // renewed
	try("B", 90*time.Second-1, false)
	try("B", 90*time.Second, true)
	try("A", 91*time.Second, false)
	if lt.Unlock("g", "A", []Queue{queue(0)}, at(92*time.Second)) {
		t.Error("a former owner let go of what another holds")
	}
	if owner, _ := lt.Owner("g", "T", 0, at(93*time.Second)); owner != "B" {
		t.Errorf("owner %q, want B", owner)
	}
	if owner, ok := lt.Owner("other", "T", 0, at(93*time.Second)); ok {
		t.Errorf("another group's owner is %q", owner)
	}
}

func TestLockGivesWhatItCan(t *testing.T) {
	lt := NewTable(lease, settle)
	lt.Lock("g", "A", []Queue{queue(1)}, at(0))
	got := lt.Lock("g", "B", []Queue{queue(0), queue(1), queue(2)}, at(1))
	if want := []Queue{queue(0), queue(2)}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestUnlockedQueueIsFreeWhenItsOffsetIsInOrTheTimeIsOver(t *testing.T) {
	for _, commit := range []bool{false, true} {
		t.Run(fmt.Sprint(commit), func(t *testing.T) {
			lt := NewTable(lease, settle)
			lt.Lock("g", "A", []Queue{queue(0), queue(1)}, at(0))
			if !lt.Unlock("g", "A", []Queue{queue(0)}, at(time.Second)) {
				t.Fatal("nothing was let go of")
			}
			if got := lt.Lock("g", "B", []Queue{queue(0)}, at(time.Second+settle-1)); len(got) != 0 {
				t.Fatalf("locked %v within the moment", got)
			}
			free := at(time.Second + settle)
			if commit {
				if lt.Committed("g", "A", "T", 1) || lt.Committed("g", "B", "T", 0) {
					t.Fatal("another queue's or client's commit ended it")
				}
				if !lt.Committed("g", "A", "T", 0) {
					t.Fatal("its commit didn't end it")
				}
				free = at(time.Second + 1)
			}
			if got := lt.Lock("g", "B", []Queue{queue(0)}, free); len(got) != 1 {
				t.Fatal("not free after it")
			}
			if owner, _ := lt.Owner("g", "T", 1, free); owner != "A" {
				t.Errorf("the other queue's owner is %q, want A", owner)
			}
			due := 0
			lt.Settling(func(group, client string, until time.Time) {
				due++
				if group != "g" || client != "A" || !until.Equal(at(time.Second+settle)) {
					t.Errorf("settling %s %s %v", group, client, until)
				}
			})
			if due != 1 { // though B holds it: the rest of the group isn't told yet
				t.Errorf("%d clients are letting go, want 1", due)
			}
			lt.DropSettled("g", "A", at(time.Second+settle))
			lt.Settling(func(group, client string, _ time.Time) { t.Errorf("still settling: %s %s", group, client) })
		})
	}
}

func TestTableIsBounded(t *testing.T) {
	lt := NewTable(lease, settle)
	lt.Max = 3
	ask := []Queue{queue(0), queue(1), queue(2), queue(3)}
	if got := lt.Lock("g", "A", ask, at(0)); len(got) != 3 {
		t.Fatalf("%d locks, want 3", len(got))
	}
	if got := lt.Lock("g", "A", ask, at(1)); len(got) != 3 {
		t.Fatalf("%d locks renewed, want 3", len(got))
	}
	if got := lt.Expire(at(lease + 1)); !slices.Equal(got, []Lapse{{"g", "A"}}) {
		t.Errorf("lapsed %v", got)
	}
	if lt.Len() != 0 || !lt.Empty() || lt.HasGroup("g") {
		t.Errorf("%d locks after they lapsed", lt.Len())
	}
	lt.Max = 100
	for i := range 20 {
		lt.Lock("g", "A", []Queue{{Topic: "T", Broker: fmt.Sprint(i)}}, at(0))
	}
	if lt.Len() != maxNames {
		t.Errorf("%d locks of one queue under many names, want %d", lt.Len(), maxNames)
	}
}

// dumb is the table as one would explain it: a list of who locked what when, and what became of it.
type dumb struct{ entries []entry }

type entry struct {
	group, client string
	queue         Queue
	renewed       time.Time
	unlocked      bool
	at            time.Time // of the unlock
	committed     bool
}

func (e entry) held(now time.Time) bool { return !e.unlocked && now.Before(e.renewed.Add(lease)) }

func (e entry) closing(now time.Time) bool {
	return e.unlocked && !e.committed && now.Before(e.at.Add(settle))
}

func (e entry) blocks(now time.Time) bool { return e.held(now) || e.closing(now) }

func (d *dumb) lock(group, client string, q Queue, now time.Time) bool {
	for _, e := range d.entries {
		if e.group == group && e.queue == q && e.client != client && e.blocks(now) {
			return false
		}
	}
	d.entries = slices.DeleteFunc(d.entries, func(e entry) bool { return e.group == group && e.queue == q })
	d.entries = append(d.entries, entry{group: group, client: client, queue: q, renewed: now})
	return true
}

func (d *dumb) owners(group, topic string, id int32, now time.Time) (out []string) {
	for _, e := range d.entries {
		if e.group == group && e.queue.Topic == topic && e.queue.ID == id && e.blocks(now) {
			out = append(out, e.client)
		}
	}
	return out
}

func TestTableAgainstADumbOne(t *testing.T) {
	groups, clients := []string{"g", "h"}, []string{"A", "B", "C"}
	queues := []Queue{{"T", "b", 0}, {"T", "b", 1}, {"U", "b", 0}, {"T", "x", 0}}
	rapid.Check(t, func(t *rapid.T) {
		lt, d, now := NewTable(lease, settle), &dumb{}, epoch
		group := rapid.SampledFrom(groups)
		client := rapid.SampledFrom(clients)
		some := rapid.SliceOfNDistinct(rapid.SampledFrom(queues), 1, 3, rapid.ID[Queue])
		t.Repeat(map[string]func(*rapid.T){
			"wait": func(t *rapid.T) {
				now = now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, 100 * time.Millisecond, settle, 20 * time.Second, lease}).Draw(t, "d"))
			},
			"lock": func(t *rapid.T) {
				g, c, qs := group.Draw(t, "g"), client.Draw(t, "c"), some.Draw(t, "q")
				var want []Queue
				for _, q := range qs {
					if d.lock(g, c, q, now) {
						want = append(want, q)
					}
				}
				if got := lt.Lock(g, c, qs, now); !slices.Equal(got, want) {
					t.Fatalf("got %v, want %v", got, want)
				}
			},
			"unlock": func(t *rapid.T) {
				g, c, qs := group.Draw(t, "g"), client.Draw(t, "c"), some.Draw(t, "q")
				want := false
				for i, e := range d.entries {
					if e.group == g && e.client == c && slices.Contains(qs, e.queue) && e.held(now) {
						d.entries[i].unlocked, d.entries[i].at = true, now
						want = true
					}
				}
				if got := lt.Unlock(g, c, qs, now); got != want {
					t.Fatalf("got %v, want %v", got, want)
				}
			},
			"unlock all": func(t *rapid.T) {
				g, c := group.Draw(t, "g"), client.Draw(t, "c")
				want := false
				for i, e := range d.entries {
					if e.group == g && e.client == c && e.blocks(now) {
						if want = true; !e.unlocked {
							d.entries[i].unlocked, d.entries[i].at = true, now
						}
					}
				}
				if got := lt.UnlockAll(g, c, now); got != want {
					t.Fatalf("got %v, want %v", got, want)
				}
			},
			"commit": func(t *rapid.T) {
				g, c, q := group.Draw(t, "g"), client.Draw(t, "c"), rapid.SampledFrom(queues).Draw(t, "q")
				hit, left := false, false
				for i, e := range d.entries {
					if e.group != g || e.client != c || !e.unlocked || e.committed {
						continue
					}
					if e.queue.Topic == q.Topic && e.queue.ID == q.ID {
						d.entries[i].committed, hit = true, true
					} else {
						left = true
					}
				}
				if got, want := lt.Committed(g, c, q.Topic, q.ID), hit && !left; got != want {
					t.Fatalf("got %v, want %v", got, want)
				}
			},
			"drop": func(t *rapid.T) {
				g, c := group.Draw(t, "g"), client.Draw(t, "c")
				n := len(d.entries)
				d.entries = slices.DeleteFunc(d.entries, func(e entry) bool { return e.group == g && e.client == c })
				if got := lt.Drop(g, c); len(got) != n-len(d.entries) {
					t.Fatalf("dropped %v, want %d", got, n-len(d.entries))
				}
			},
			"clock": func(t *rapid.T) {
				var due []owner
				lt.Settling(func(g, c string, until time.Time) {
					if !now.Before(until) {
						due = append(due, owner{g, c})
					}
				})
				for _, o := range due {
					lt.DropSettled(o.group, o.client, now)
				}
				d.entries = slices.DeleteFunc(d.entries, func(e entry) bool {
					return e.unlocked && !e.blocks(now) && slices.Contains(due, owner{e.group, e.client})
				})
			},
			"forget": func(t *rapid.T) {
				lt.Expire(now)
				d.entries = slices.DeleteFunc(d.entries, func(e entry) bool { return !e.unlocked && !e.held(now) })
			},
			"": func(t *rapid.T) {
				if lt.Len() != len(d.entries) || lt.Empty() != (len(d.entries) == 0) {
					t.Fatalf("%d locks, want %d", lt.Len(), len(d.entries))
				}
				letting := map[owner]bool{}
				lt.Settling(func(g, c string, _ time.Time) { letting[owner{g, c}] = true })
				for _, e := range d.entries {
					if e.unlocked && !letting[owner{e.group, e.client}] {
						t.Fatalf("nobody would end the settling of %v", e)
					}
				}
				for _, g := range groups {
					any := false
					for _, q := range queues {
						want := d.owners(g, q.Topic, q.ID, now)
						got, ok := lt.Owner(g, q.Topic, q.ID, now)
						if ok != (len(want) > 0) || ok && !slices.Contains(want, got) {
							t.Fatalf("owner of %v in %s: %q %v, want one of %v", q, g, got, ok, want)
						}
						for _, c := range clients {
							if lt.Holds(g, c, q.Topic, q.ID, now) != slices.Contains(want, c) {
								t.Fatalf("holds %v in %s: %s, want %v", q, g, c, want)
							}
						}
						any = any || len(want) > 0
					}
					if lt.Any(g, now) != any {
						t.Fatalf("any in %s: %v", g, !any)
					}
					for _, c := range clients {
						want := slices.ContainsFunc(d.entries, func(e entry) bool { return e.group == g && e.client == c && e.held(now) })
						if lt.Held(g, c, now) != want {
							t.Fatalf("held by %s in %s: %v", c, g, !want)
						}
					}
				}
			},
		})
	})
}
