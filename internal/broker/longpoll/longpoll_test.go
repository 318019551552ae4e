package longpoll

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// tagged waits for messages with its tag; 0 means any.
type tagged struct {
	name string
	tag  int64
}

func (p *tagged) Wants(tagsCode int64) bool { return p.tag == 0 || p.tag == tagsCode }

func names(pulls []Pull) (out []string) {
	for _, p := range pulls {
		out = append(out, p.(*tagged).name)
	}
	slices.Sort(out)
	return out
}

func same(t *testing.T, what string, got []Pull, want ...string) {
	t.Helper()
	if !slices.Equal(names(got), want) {
		t.Errorf("%s: got %v, want %v", what, names(got), want)
	}
}

func stays() bool { return false }

func TestMessageWakesThoseWhoWantIt(t *testing.T) {
	lt := New(10)
	park := func(name string, k Key, tag int64) {
		t.Helper()
		if !lt.Park(k, &tagged{name, tag}, 1, epoch, stays) {
			t.Fatalf("%s wasn't parked", name)
		}
	}
	park("all", Key{"T", 0}, 0)
	park("a", Key{"T", 0}, 65)
	park("b", Key{"T", 0}, 66)
	park("other queue", Key{"T", 1}, 0)
	park("other topic", Key{"U", 0}, 0)
	same(t, "nobody's queue", lt.Arrived("T", 2, 65))
	same(t, "tag a", lt.Arrived("T", 0, 65), "a", "all")
	same(t, "tag a again", lt.Arrived("T", 0, 65))
	same(t, "tag b", lt.Arrived("T", 0, 66), "b")
	same(t, "queue 1", lt.Arrived("T", 1, 0), "other queue")
	if lt.Len() != 1 {
		t.Errorf("%d wait, want 1", lt.Len())
	}
	same(t, "the end", lt.Drain(), "other topic")
	if _, ok := lt.Next(); ok || lt.Len() != 0 {
		t.Errorf("%d wait after the end", lt.Len())
	}
}

func TestDeadlinesAreExact(t *testing.T) {
	lt := New(10)
	for _, ms := range []int{300, 100, 200, 100} {
		lt.Park(Key{"T", int32(ms)}, &tagged{name: fmt.Sprint(ms)}, 1, epoch.Add(time.Duration(ms)*time.Millisecond), stays)
	}
	next := func(want int) {
		t.Helper()
		if at, ok := lt.Next(); !ok || !at.Equal(epoch.Add(time.Duration(want)*time.Millisecond)) {
			t.Errorf("next at %v, want %d ms", at, want)
		}
	}
	next(100)
	same(t, "before", lt.Expire(epoch.Add(100*time.Millisecond-1)))
	same(t, "at", lt.Expire(epoch.Add(100*time.Millisecond)), "100", "100")
	next(200)
	lt.Arrived("T", 200, 0)
	next(300)
	same(t, "late", lt.Expire(epoch.Add(time.Hour)), "300")
}

func TestParkRefusesWhatItWouldMiss(t *testing.T) {
	lt := New(1)
	if lt.Park(Key{"T", 0}, &tagged{}, 1, epoch, func() bool { return true }) {
		t.Error("parked though the queue's end moved")
	}
	if !lt.Park(Key{"T", 0}, &tagged{name: "first"}, 1, epoch, stays) {
		t.Error("the first isn't parked")
	}
	if lt.Park(Key{"T", 1}, &tagged{}, 1, epoch, stays) {
		t.Error("parked beyond the limit")
	}
	same(t, "first", lt.Arrived("T", 0, 0), "first")
	if !lt.Park(Key{"T", 1}, &tagged{}, 1, epoch, stays) {
		t.Error("not parked though there is room again")
	}
}

func TestConnectionEndsItsPulls(t *testing.T) {
	lt := New(10)
	lt.Park(Key{"T", 0}, &tagged{name: "a"}, 1, epoch, stays)
	lt.Park(Key{"T", 0}, &tagged{name: "b"}, 2, epoch, stays)
	lt.Park(Key{"T", 1}, &tagged{name: "c"}, 1, epoch, stays)
	lt.DropConn(1)
	lt.DropConn(3)
	if lt.Len() != 1 {
		t.Errorf("%d wait, want 1", lt.Len())
	}
	same(t, "queue 1", lt.Arrived("T", 1, 0))
	same(t, "queue 0", lt.Arrived("T", 0, 0), "b")
}

func TestATopicThatIsGoneEndsItsPulls(t *testing.T) {
	lt := New(10)
	lt.Park(Key{"T", 0}, &tagged{name: "a"}, 1, epoch, stays)
	lt.Park(Key{"T", 3}, &tagged{name: "b", tag: 65}, 2, epoch, stays)
	lt.Park(Key{"U", 0}, &tagged{name: "c"}, 1, epoch, stays)
	same(t, "the topic", lt.TakeTopic("T"), "a", "b")
	same(t, "once more", lt.TakeTopic("T"))
	same(t, "queue 0", lt.Arrived("T", 0, 0))
	same(t, "the other topic", lt.Arrived("U", 0, 0), "c")
	if lt.Len() != 0 {
		t.Errorf("%d wait", lt.Len())
	}
}

func TestTableAgainstADumbOne(t *testing.T) {
	type waiting struct {
		name     string
		key      Key
		tag      int64
		conn     uint64
		deadline time.Time
	}
	const limit = 12
	rapid.Check(t, func(t *rapid.T) {
		lt, now, n := New(limit), epoch, 0
		var list []waiting
		key := rapid.SampledFrom([]Key{{"T", 0}, {"T", 1}, {"U", 0}})
		take := func(which func(waiting) bool) (out []string) {
			list = slices.DeleteFunc(list, func(w waiting) bool {
				if which(w) {
					out = append(out, w.name)
				}
				return which(w)
			})
			slices.Sort(out)
			return out
		}
		compare := func(t *rapid.T, got []Pull, want []string) {
			if !slices.Equal(names(got), want) {
				t.Fatalf("got %v, want %v", names(got), want)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"park": func(t *rapid.T) {
				n++
				w := waiting{fmt.Sprint(n), key.Draw(t, "key"), rapid.Int64Range(0, 2).Draw(t, "tag"), rapid.Uint64Range(1, 3).Draw(t, "conn"),
					now.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "hold")) * time.Second)}
				moved := rapid.Bool().Draw(t, "moved")
				got := lt.Park(w.key, &tagged{w.name, w.tag}, w.conn, w.deadline, func() bool { return moved })
				if want := !moved && len(list) < limit; got != want {
					t.Fatalf("parked %v, want %v", got, want)
				}
				if got {
					list = append(list, w)
				}
			},
			"arrived": func(t *rapid.T) {
				k, tag := key.Draw(t, "key"), rapid.Int64Range(1, 2).Draw(t, "tag")
				compare(t, lt.Arrived(k.Topic, k.Queue, tag), take(func(w waiting) bool { return w.key == k && (w.tag == 0 || w.tag == tag) }))
			},
			"expire": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "d")) * time.Second)
				compare(t, lt.Expire(now), take(func(w waiting) bool { return !w.deadline.After(now) }))
			},
			"drop": func(t *rapid.T) {
				conn := rapid.Uint64Range(1, 3).Draw(t, "conn")
				lt.DropConn(conn)
				take(func(w waiting) bool { return w.conn == conn })
			},
			"": func(t *rapid.T) {
				if lt.Len() != len(list) {
					t.Fatalf("%d wait, want %d", lt.Len(), len(list))
				}
				at, ok := lt.Next()
				if ok != (len(list) > 0) {
					t.Fatalf("next: %v", ok)
				}
				if ok {
					first := slices.MinFunc(list, func(a, b waiting) int { return a.deadline.Compare(b.deadline) })
					if !at.Equal(first.deadline) {
						t.Fatalf("next at %v, want %v", at, first.deadline)
					}
				}
				inUse := 0
				for i := range lt.shards {
					s := &lt.shards[i]
					in := 0
					for _, l := range s.queues {
						in += len(l)
					}
					if inUse += in; int(s.waiting.Load()) != in {
						t.Fatalf("a shard says %d wait, there are %d", s.waiting.Load(), in)
					}
				}
				if inUse != len(list) {
					t.Fatalf("%d in the shards, want %d", inUse, len(list))
				}
			},
		})
	})
}

// signal is a pull that closes a channel when it is woken; it may be woken once only.
type signal struct {
	woken atomic.Int32
	ch    chan struct{}
}

func (*signal) Wants(int64) bool { return true }

func (s *signal) wake(t *testing.T) {
	if s.woken.Add(1) != 1 {
		t.Error("woken twice")
	}
	close(s.ch)
}

// TestNoWakeUpIsLost lets readers catch up with a writer's queue with nothing but wake-ups: without a deadline, a
// lost one would be a reader that waits for ever.
func TestNoWakeUpIsLost(t *testing.T) {
	const queues, readers, messages = 3, 4, 3000
	lt := New(1000)
	var ends [queues]atomic.Int64
	var wg sync.WaitGroup
	for q := range int32(queues) {
		for r := range readers {
			wg.Go(func() {
				for offset := int64(0); offset < messages; {
					if seen := ends[q].Load(); seen > offset {
						offset = seen
						continue
					}
					s := &signal{ch: make(chan struct{})}
					if lt.Park(Key{"T", q}, s, uint64(r+1), epoch.Add(time.Hour), func() bool { return ends[q].Load() != offset }) {
						<-s.ch
					}
				}
			})
		}
		wg.Go(func() {
			for range messages {
				ends[q].Add(1) // readable
				for _, p := range lt.Arrived("T", q, 0) {
					p.(*signal).wake(t)
				}
				if rand.IntN(8) == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	wg.Wait()
	if lt.Len() != 0 {
		t.Errorf("%d wait at the end", lt.Len())
	}
}

// TestEachPullEndsOnce lets messages, deadlines and ends of connections race for the same pulls.
func TestEachPullEndsOnce(t *testing.T) {
	const conns, rounds = 8, 2000
	lt := New(conns * 4)
	var parked, woken atomic.Int64
	var clock atomic.Int64
	stop := make(chan struct{})
	var parkers, others sync.WaitGroup
	wake := func(list []Pull) {
		for _, p := range list {
			p.(*signal).wake(t)
			woken.Add(1)
		}
	}
	for c := range uint64(conns) {
		parkers.Go(func() {
			for i := range rounds {
				s := &signal{ch: make(chan struct{})}
				if lt.Park(Key{"T", int32(i % 3)}, s, c, epoch.Add(time.Duration(clock.Load()+int64(rand.IntN(50)))), stays) {
					parked.Add(1)
				}
			}
		})
	}
	forever := func(f func()) {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f()
				}
			}
		})
	}
	forever(func() { wake(lt.Arrived("T", int32(rand.IntN(3)), 0)) })
	forever(func() { wake(lt.Expire(epoch.Add(time.Duration(clock.Add(10))))) })
	forever(func() { lt.DropConn(rand.Uint64N(2)) })
	parkers.Wait()
	close(stop)
	others.Wait()
	wake(lt.Drain())
	if lt.Len() != 0 || len(lt.conns) != 0 {
		t.Errorf("%d wait at the end, %d connections", lt.Len(), len(lt.conns))
	}
	for i := range lt.shards {
		if n := lt.shards[i].waiting.Load(); n != 0 || len(lt.shards[i].queues) != 0 {
			t.Errorf("a shard says %d wait, and has %d queues", n, len(lt.shards[i].queues))
		}
	}
	if parked.Load() == 0 || woken.Load() > parked.Load() {
		t.Errorf("%d woken of %d", woken.Load(), parked.Load())
	}
}

func TestAPullCostsAFewHundredBytes(t *testing.T) {
	const n = 20000
	lt := New(n)
	pulls := make([]tagged, n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range pulls {
		lt.Park(Key{"T", int32(i)}, &pulls[i], uint64(i), epoch, stays)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := int64(after.HeapAlloc-before.HeapAlloc) / n; each > 450 {
		t.Errorf("%d bytes each, beyond the pull itself", each)
	} else {
		t.Logf("%d bytes each, beyond the pull itself", each)
	}
	if len(lt.Drain()) != n {
		t.Error("not all came back")
	}
	if allocs := testing.AllocsPerRun(100, func() { lt.Arrived("T", 1, 2) }); allocs != 0 {
		t.Errorf("a message that nobody waits for costs %v allocations", allocs)
	}
}

func BenchmarkArrived(b *testing.B) {
	topics := make([]string, 1000)
	for i := range topics {
		topics[i] = fmt.Sprintf("some-topic-of-usual-length-%d", i)
	}
	run := func(name string, waiting int) {
		b.Run(name, func(b *testing.B) {
			lt := New(waiting)
			for i := range waiting {
				lt.Park(Key{"another-topic", int32(i)}, &tagged{}, uint64(i), epoch, stays)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if lt.Arrived(topics[i%len(topics)], int32(i&7), 1) != nil {
					b.Fatal("woken")
				}
				i++
			}
		})
	}
	run("nobody waits", 0)
	run("others wait", 2000)
	b.Run("one wakes", func(b *testing.B) {
		lt := New(10)
		p := &tagged{}
		b.ReportAllocs()
		for b.Loop() {
			lt.Park(Key{"T", 0}, p, 1, epoch, stays)
			if len(lt.Arrived("T", 0, 1)) != 1 {
				b.Fatal("not woken")
			}
		}
	})
}
