package goclient

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// shares notes which queues of a topic each member of a group was given last.
type shares struct {
	topic string
	mu    sync.Mutex
	of    map[string][]int
}

// watch is the strategy of the member named who: another one, looked at.
func (sh *shares) watch(who string, inner consumer.AllocateStrategy) consumer.AllocateStrategy {
	return func(group, me string, queues []*primitive.MessageQueue, members []string) []*primitive.MessageQueue {
		mine := inner(group, me, queues, members)
		if len(queues) == 0 || queues[0].Topic != sh.topic {
			return mine // the retry topic's
		}
		ids := []int{}
		for _, q := range mine {
			ids = append(ids, q.QueueId)
		}
		slices.Sort(ids)
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if sh.of == nil {
			sh.of = map[string][]int{}
		}
		sh.of[who] = ids
		return mine
	}
}

func (sh *shares) forget(who string) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.of, who)
}

// now returns the shares, and their sizes from the biggest to the smallest.
func (sh *shares) now() (of map[string][]int, sizes []int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	of = map[string][]int{}
	for who, ids := range sh.of {
		of[who] = ids
		sizes = append(sizes, len(ids))
	}
	slices.Sort(sizes)
	slices.Reverse(sizes)
	return of, sizes
}

// owner returns who has the queue when exactly one member has.
func owner(of map[string][]int, queue int) string {
	found := ""
	for who, ids := range of {
		if slices.Contains(ids, queue) {
			if found != "" {
				return ""
			}
			found = who
		}
	}
	return found
}

// partition reports whether each queue has one owner.
func partition(of map[string][]int, queues int) bool {
	for q := range queues {
		if owner(of, q) == "" {
			return false
		}
	}
	return true
}

// reachesOwner sends to a queue until a message reaches its owner, and checks that those behind it do so, too: the
// members share the queues out first, and act on that a moment later.
func (c *testCase) reachesOwner(p rocketmq.Producer, in *inbox, q *primitive.MessageQueue, who string) {
	c.Helper()
	send := func(what string) (got string) {
		m := message(q.Topic, c.unique(what))
		m.Queue = q
		c.send(p, m)
		c.eventually(soon, "a message sent to queue "+itoa(q.QueueId), func() bool {
			all := in.all()
			i := slices.IndexFunc(all, func(r received) bool { return string(r.Body) == string(m.Body) })
			if i >= 0 {
				got = all[i].who
			}
			return i >= 0
		})
		return got
	}
	c.eventually(soon, "a message of queue "+itoa(q.QueueId)+" reaches "+who, func() bool { return send("probe") == who })
	for range 3 {
		if got := send("message"); got != who {
			c.Errorf("a message of queue %d went to %s, the queue is %s's", q.QueueId, got, who)
		}
	}
}

// A group grows from one to five members over four queues, and shrinks again; at each size every queue's messages
// reach the queue's one owner.
func TestRebalance(t *testing.T) {
	c := begin(t, "rebalance-1-to-5")
	s := c.server()
	topic, group := c.topic(s, 4), c.unique("group")
	p := c.manual(s)
	sh, in := &shares{topic: topic}, &inbox{}
	want := [][]int{1: {4}, 2: {2, 2}, 3: {2, 1, 1}, 4: {1, 1, 1, 1}, 5: {1, 1, 1, 1, 0}}
	var slowest time.Duration
	check := func(n int) {
		c.Helper()
		began := time.Now()
		c.eventually(30*time.Second, func() string { of, _ := sh.now(); return fmt.Sprintf("%d members: %v, want %v", n, of, want[n]) },
			func() bool { of, sizes := sh.now(); return slices.Equal(sizes, want[n]) && partition(of, 4) })
		slowest = max(slowest, time.Since(began))
		of, _ := sh.now()
		for q := range 4 {
			c.reachesOwner(p, in, s.queue(c, topic, q), owner(of, q))
		}
	}
	var members []rocketmq.PushConsumer
	for n := 1; n <= 5; n++ {
		who := fmt.Sprint("member ", n)
		members = append(members, c.push(s, push{group: group, topic: topic, handle: in.take(who),
			opts: []consumer.Option{consumer.WithStrategy(sh.watch(who, consumer.AllocateByAveragely))}}))
		check(n)
	}
	for n := 4; n >= 1; n-- {
		c.must(members[n].Shutdown())
		sh.forget(fmt.Sprint("member ", n+1))
		check(n)
	}
	c.say("%v, then back; the slowest change took %.2f s", "4, 2+2, 2+1+1, 1 each, one idle", slowest.Seconds())
}

// Every strategy of the client, three members over eight queues.
func TestStrategies(t *testing.T) {
	c := begin(t, "strategies")
	const queues = 8
	plain, room := c.server(), c.server("brokerName=room1@broker")
	configured := func(c *testCase, s *server, topic string, ids []int) consumer.AllocateStrategy {
		var list []*primitive.MessageQueue
		for _, id := range ids {
			list = append(list, s.queue(c, topic, id))
		}
		inner := consumer.AllocateByConfig(list)
		return func(group, me string, all []*primitive.MessageQueue, members []string) []*primitive.MessageQueue {
			if len(all) > 0 && all[0].Topic != topic {
				return nil // by configuration: the retry topic isn't in it
			}
			return inner(group, me, all, members)
		}
	}
	type strategy = func(c *testCase, s *server, topic string, member int) consumer.AllocateStrategy
	always := func(a consumer.AllocateStrategy) strategy {
		return func(*testCase, *server, string, int) consumer.AllocateStrategy { return a }
	}
	byConfig := [][]int{{1, 7}, {0, 2, 3, 4}, {5, 6}}
	cases := map[string]struct {
		s    *server
		of   strategy
		want [][]int // nil: any partition
	}{
		"averagely":           {plain, always(consumer.AllocateByAveragely), [][]int{{0, 1, 2}, {3, 4, 5}, {6, 7}}},
		"averagely by circle": {plain, always(consumer.AllocateByAveragelyCircle), [][]int{{0, 3, 6}, {1, 4, 7}, {2, 5}}},
		"machine nearby":      {plain, always(consumer.AllocateByMachineNearby), [][]int{{0, 1, 2}, {3, 4, 5}, {6, 7}}},
		"consistent hash":     {plain, always(consumer.AllocateByConsistentHash(20)), nil},
		"machine room":        {room, always(consumer.AllocateByMachineRoom([]string{"room1"})), [][]int{{0, 1, 6}, {2, 3, 7}, {4, 5}}},
		"config": {plain, func(c *testCase, s *server, topic string, member int) consumer.AllocateStrategy {
			return configured(c, s, topic, byConfig[member])
		}, byConfig},
	}
	for name, k := range cases {
		c.sub(name, func(sub *testCase) {
			topic, group := sub.topic(k.s, queues), sub.unique("group")
			sh, in := &shares{topic: topic}, &inbox{}
			for member := range 3 { // instance names sort as the members are numbered
				who := itoa(member)
				sub.push(k.s, push{group: group, topic: topic, handle: in.take(who), opts: []consumer.Option{
					consumer.WithInstance(group + who), consumer.WithStrategy(sh.watch(who, k.of(sub, k.s, topic, member)))}})
			}
			sub.eventually(30*time.Second, func() string { of, _ := sh.now(); return fmt.Sprint(of) }, func() bool {
				of, _ := sh.now()
				if k.want != nil {
					return slices.Equal(of["0"], k.want[0]) && slices.Equal(of["1"], k.want[1]) && slices.Equal(of["2"], k.want[2])
				}
				return len(of) == 3 && partition(of, queues)
			})
			of, _ := sh.now()
			p := sub.manual(k.s)
			for q := range queues {
				sub.reachesOwner(p, in, k.s.queue(sub, topic, q), owner(of, q))
			}
			seen := map[string]bool{}
			for _, body := range in.bodies() {
				if seen[body] {
					sub.Errorf("%s came twice", body)
				}
				seen[body] = true
			}
		})
	}
}
