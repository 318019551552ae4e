package member

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/broker/lock"
	"github.com/apogeemq/apogee/internal/protocol"
	"pgregory.net/rapid"
)

// world is what really happens around a registry: which client each connection belongs to. The registry only knows
// what it is told.
type world struct {
	r     *Registry
	now   time.Time
	ips   map[string]netip.Addr
	conns []*realConn
	next  uint64

	alone  map[string]time.Time // since when a client has had no connection
	absent map[string]time.Time // members that went and weren't announced yet
	t      *rapid.T
}

type realConn struct {
	Conn
	client string
	said   bool // it said whose it is, by heartbeat
}

var (
	worldClients = []string{"A", "B", "C"}
	worldQueues  = []lock.Queue{{Topic: "T", Broker: "b", ID: 0}, {Topic: "T", Broker: "b", ID: 1}, {Topic: "T", Broker: "b", ID: 2}}
)

func newWorld(sharedHost bool) *world {
	w := &world{r: New(Options{}), now: epoch, ips: map[string]netip.Addr{}, alone: map[string]time.Time{}, absent: map[string]time.Time{}}
	for i, c := range worldClients {
		if sharedHost {
			i = 0
		}
		w.ips[c] = netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		w.alone[c] = epoch
	}
	w.r.Tick(w.now)
	return w
}

func (w *world) member(client string) *member {
	g := w.r.groups["g"]
	if g == nil {
		return nil
	}
	return g.members[client]
}

// step does something and checks who is told of what it did to the group.
func (w *world) step(f func() []Notice) {
	w.t.Helper()
	before := w.r.IDs("g")
	notices := f()
	after := w.r.IDs("g")
	for _, id := range before {
		if !slices.Contains(after, id) {
			w.absent[id] = w.now
		}
	}
	told := map[uint64]bool{}
	for _, n := range notices {
		told[n.Conn] = true
		if !slices.ContainsFunc(w.conns, func(c *realConn) bool { return c.ID == n.Conn }) {
			w.t.Fatalf("notice for connection %d, which isn't open", n.Conn)
		}
	}
	for gone := range w.absent {
		all := true
		for _, id := range after {
			if m := w.member(id); id != gone && !told[m.conn.ID] && !m.missed {
				all = false
			}
		}
		if all {
			delete(w.absent, gone)
		}
	}
}

// wait lets time pass as the broker's clock does.
func (w *world) wait(d time.Duration) {
	w.t.Helper()
	end := w.now.Add(d)
	for {
		due := w.r.NextDeadline(w.now)
		if due.After(end) {
			break
		}
		w.now = due
		w.step(func() []Notice { return w.r.Tick(due) })
		if !w.r.NextDeadline(due).After(due) {
			w.t.Fatal("the deadline stays where it was: the clock would spin")
		}
	}
	w.now = end
}

func (w *world) beat(c *realConn) ([]Notice, bool) {
	d := protocol.ConsumerData{GroupName: "g", ConsumeType: "CONSUME_PASSIVELY", MessageModel: "CLUSTERING",
		SubscriptionDataSet: []protocol.SubscriptionData{{Topic: "T", SubString: "*", SubVersion: 1}}}
	c.said = true
	return w.r.Heartbeat(c.Conn, Client{ID: c.client}, Consumer{Data: d}, 0, false, w.now)
}

func (w *world) owner(q lock.Queue) string {
	client, _ := w.r.Owner("g", q.Topic, q.ID, w.now)
	return client
}

// back does what brings a member in grace back, and checks that nothing else happens.
func (w *world) back(c *realConn, brings bool, f func() []Notice) {
	w.t.Helper()
	m := w.member(c.client)
	inGrace := m != nil && !m.lost.IsZero()
	owners := fmt.Sprint(w.owner(worldQueues[0]), w.owner(worldQueues[1]), w.owner(worldQueues[2]))
	w.step(func() []Notice {
		notices := f()
		if !inGrace || !brings {
			return notices
		}
		for _, n := range notices {
			if n.Conn != c.ID {
				w.t.Fatalf("%s came back, and connection %d was told", c.client, n.Conn)
			}
		}
		if now := w.member(c.client); now != m || !m.lost.IsZero() || m.conn != c.Conn {
			w.t.Fatalf("%s isn't back", c.client)
		}
		if got := fmt.Sprint(w.owner(worldQueues[0]), w.owner(worldQueues[1]), w.owner(worldQueues[2])); got != owners {
			w.t.Fatalf("owners were %s, are %s", owners, got)
		}
		return notices
	})
}

func (w *world) actions(sharedHost bool) map[string]func(*rapid.T) {
	pick := func(t *rapid.T) *realConn {
		w.t = t
		if len(w.conns) == 0 {
			t.Skip("no connection")
		}
		return rapid.SampledFrom(w.conns).Draw(t, "conn")
	}
	queue := rapid.SampledFrom(worldQueues)
	queues := rapid.SliceOfNDistinct(queue, 1, 3, rapid.ID[lock.Queue])
	return map[string]func(*rapid.T){
		"open": func(t *rapid.T) {
			w.t = t
			client := rapid.SampledFrom(worldClients).Draw(t, "client")
			w.next++
			c := &realConn{Conn: Conn{w.next, w.ips[client]}, client: client}
			w.conns = append(w.conns, c)
			delete(w.alone, client)
			w.r.Opened(c.ID)
		},
		"close": func(t *rapid.T) {
			c := pick(t)
			w.close(c)
		},
		"wait": func(t *rapid.T) {
			w.t = t
			w.wait(rapid.SampledFrom([]time.Duration{10 * time.Millisecond, 200 * time.Millisecond, time.Second, 4 * time.Second, 30 * time.Second}).Draw(t, "d"))
		},
		"beat": func(t *rapid.T) {
			c := pick(t)
			w.back(c, true, func() []Notice { n, _ := w.beat(c); return n })
		},
		"lock": func(t *rapid.T) {
			c, qs := pick(t), queues.Draw(t, "queues")
			w.step(func() []Notice {
				held, n := w.r.Lock(c.Conn, "g", c.client, qs, w.now)
				for _, q := range qs {
					if slices.Contains(held, q) != (w.owner(q) == c.client) && len(held) > 0 {
						t.Fatalf("told that it holds %v, of %v the owner is %q", held, q, w.owner(q))
					}
				}
				return n
			})
		},
		"unlock": func(t *rapid.T) {
			c, qs := pick(t), queues.Draw(t, "queues")
			w.back(c, true, func() []Notice { return w.r.Unlock(c.Conn, "g", c.client, qs, w.now) })
		},
		"bye": func(t *rapid.T) {
			c := pick(t)
			w.step(func() []Notice { return w.r.Unregister(c.Conn, c.client, "g", w.now) })
		},
		"pull": func(t *rapid.T) {
			c, q := pick(t), queue.Draw(t, "queue")
			w.back(c, w.owner(q) == c.client && !sharedHost, func() []Notice {
				if !w.r.Unknown(c.Conn, "g") {
					return nil
				}
				return w.r.Saw(c.Conn, "g", q.Topic, q.ID, w.now)
			})
		},
		"commit": func(t *rapid.T) {
			c, q := pick(t), queue.Draw(t, "queue")
			may := w.r.MayCommit(c.Conn, "g", q.Topic, q.ID, w.now)
			switch owner := w.owner(q); {
			case owner == "" && !may:
				t.Fatal("refused where nobody holds the queue")
			case owner == c.client && c.said && !may:
				t.Fatal("the owner is refused")
			case owner != "" && owner != c.client && c.said && may:
				t.Fatalf("%s may commit what %s holds", c.client, owner)
			}
			if may {
				w.step(func() []Notice { return w.r.Committed(c.Conn, "g", q.Topic, q.ID, w.now) })
			}
		},
		"": func(t *rapid.T) {
			w.t = t
			w.check(sharedHost)
		},
	}
}

func (w *world) close(c *realConn) {
	w.conns = slices.DeleteFunc(w.conns, func(x *realConn) bool { return x == c })
	if !slices.ContainsFunc(w.conns, func(x *realConn) bool { return x.client == c.client }) {
		w.alone[c.client] = w.now
	}
	w.step(func() []Notice { return w.r.Closed(c.ID, w.now) })
}

func (w *world) check(sharedHost bool) {
	w.t.Helper()
	for gone, since := range w.absent {
		if w.now.Sub(since) > w.r.o.Settle {
			w.t.Fatalf("%s went %v ago, and the others don't know", gone, w.now.Sub(since))
		}
	}
	for m := range w.r.grace {
		if w.now.Sub(m.lost) >= w.r.o.Grace {
			w.t.Fatalf("%s is in grace since %v", m.client, w.now.Sub(m.lost))
		}
	}
	if g := w.r.groups["g"]; g != nil {
		for id, m := range g.members {
			open := g.bound[m.conn.ID].client == id && slices.ContainsFunc(w.conns, func(c *realConn) bool { return c.ID == m.conn.ID })
			if m.lost.IsZero() != open {
				w.t.Fatalf("%s: lost %v, its connection open %v", id, m.lost, open)
			}
			if (w.r.grace[m] != nil) == open {
				w.t.Fatalf("%s: in grace %v, its connection open %v", id, w.r.grace[m] != nil, open)
			}
			for _, c := range m.also {
				if b, ok := g.bound[c.ID]; !ok || b.client != id {
					w.t.Fatalf("%s has connection %d, which is bound to %q", id, c.ID, b.client)
				}
			}
			// Only a wrong guess, which the next heartbeat ends, can keep the dead.
			if since, dead := w.alone[id]; dead && !sharedHost && w.now.Sub(since) > w.r.o.Grace {
				w.t.Fatalf("%s is gone for %v and is a member still", id, w.now.Sub(since))
			}
		}
	}
}

func TestRegistryInARandomWorld(t *testing.T) {
	for _, sharedHost := range []bool{false, true} {
		t.Run(fmt.Sprintf("sharedHost=%v", sharedHost), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(sharedHost)
				t.Repeat(w.actions(sharedHost))
				w.t = t
				for len(w.conns) > 0 {
					w.close(w.conns[0])
				}
				w.wait(20 * time.Minute)
				if len(w.r.groups)+len(w.r.conns)+len(w.r.formers)+len(w.r.grace)+w.r.locks.Len() > 0 || w.r.Urgent() {
					t.Fatalf("left at the end: groups %v, connections %v, former owners %v, locks %d", w.r.groups, w.r.conns, w.r.formers, w.r.locks.Len())
				}
			})
		})
	}
}
