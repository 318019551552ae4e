package goclient

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func createTopic(t *testing.T, s *server, topic string, queues int) {
	t.Helper()
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{s.names})))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := a.CreateTopic(ctx, admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(s.broker), admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues)); err != nil {
		t.Fatal(err)
	}
}

func TestSendAndReceive(t *testing.T) {
	t.Parallel()
	result(t, "send-sync")
	topic, got := name(t), &seen{}
	p := newProducer(t, shared)
	m := primitive.NewMessage(topic, []byte("body ☃ 订单"))
	m.WithTag("TagA").WithKeys([]string{"k1", "k2"})
	m.WithProperty("unicode", "é订单😀")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := p.SendSync(ctx, m)
	if err != nil || r.Status != primitive.SendOK || r.QueueOffset != 0 || len(r.OffsetMsgID) != 32 {
		t.Fatalf("%v, %v", r, err)
	}
	newConsumer(t, shared, name(t), topic, "*", collect(got, ""))
	eventually(t, 20*time.Second, "message consumed", func() bool { return got.count() == 1 })
	x := got.ext[0]
	if string(x.Body) != "body ☃ 订单" || x.GetTags() != "TagA" || x.GetKeys() != "k1 k2" || x.GetProperty("unicode") != "é订单😀" || x.MsgId != r.MsgID || x.QueueOffset != 0 {
		t.Errorf("%+v", x)
	}
}

func TestSendAsyncOneWayBatch(t *testing.T) {
	t.Parallel()
	result(t, "send-async-oneway-batch")
	topic, got := name(t), &seen{}
	p := newProducer(t, shared)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Add(1)
		err := p.SendAsync(ctx, func(_ context.Context, r *primitive.SendResult, err error) {
			defer wg.Done()
			if err != nil || r.Status != primitive.SendOK {
				t.Errorf("async: %v %v", r, err)
			}
		}, primitive.NewMessage(topic, fmt.Appendf(nil, "async%d", i)))
		if err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	for i := range 5 {
		if err := p.SendOneWay(ctx, primitive.NewMessage(topic, fmt.Appendf(nil, "oneway%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	var batch []*primitive.Message
	for i := range 7 {
		batch = append(batch, primitive.NewMessage(topic, fmt.Appendf(nil, "batch%d", i)))
	}
	if r, err := p.SendSync(ctx, batch...); err != nil || r.Status != primitive.SendOK || strings.Count(r.OffsetMsgID, ",") != 6 {
		t.Fatalf("batch: %v %v", r, err)
	}
	newConsumer(t, shared, name(t), topic, "*", collect(got, ""))
	eventually(t, 20*time.Second, "22 messages", func() bool { return got.count() == 22 })
	list := got.bodies()
	sort.Strings(list)
	if list[0] != "async0" || list[10] != "batch0" || list[21] != "oneway4" {
		t.Error(list)
	}
}

func TestBodySizes(t *testing.T) {
	t.Parallel()
	result(t, "body-sizes")
	topic, got := name(t), &seen{}
	p := newProducer(t, shared, producer.WithCompressMsgBodyOverHowmuch(5<<20)) // random bytes grow when compressed
	sizes := []int{1, 100, 4096, 100_000, 1 << 20, 4 << 20}
	want := map[int][]byte{}
	for _, n := range sizes {
		body := make([]byte, n)
		x := uint32(n)
		for i := range body { // does not compress well
			x = x*1664525 + 1013904223
			body[i] = byte(x >> 24)
		}
		want[n] = body
		send(t, p, topic, "", string(body))
	}
	send(t, newProducer(t, shared), topic, "", strings.Repeat("compressible ", 100_000))
	newConsumer(t, shared, name(t), topic, "*", collect(got, ""))
	eventually(t, 30*time.Second, "all sizes", func() bool { return got.count() == len(sizes)+1 })
	for _, b := range got.bodies() {
		if w, ok := want[len(b)]; ok && !bytes.Equal([]byte(b), w) || !ok && b != strings.Repeat("compressible ", 100_000) {
			t.Errorf("body of %d bytes differs", len(b))
		}
	}
}

func TestOversizeIsRefused(t *testing.T) {
	t.Parallel()
	result(t, "oversize")
	p := newProducer(t, shared, producer.WithCompressMsgBodyOverHowmuch(1<<30), producer.WithRetry(0))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := p.SendSync(ctx, primitive.NewMessage(name(t), make([]byte, 5<<20)))
	if err == nil && r.Status == primitive.SendOK {
		t.Fatalf("%v %v", r, err)
	}
}

func TestTags(t *testing.T) {
	t.Parallel()
	result(t, "tags")
	topic := name(t)
	p := newProducer(t, shared)
	for _, tag := range []string{"A", "B", "C", "", "A"} {
		send(t, p, topic, tag, "tag"+tag)
	}
	for expr, want := range map[string]int{"A || B": 3, "*": 5, "C": 1, "": 5} {
		got := &seen{}
		newConsumer(t, shared, name(t), topic, expr, collect(got, ""))
		eventually(t, 20*time.Second, fmt.Sprintf("%d messages of %q", want, expr), func() bool { return got.count() == want })
		for _, b := range got.bodies() {
			if expr == "A || B" && b != "tagA" && b != "tagB" {
				t.Errorf("%q let %q through", expr, b)
			}
		}
	}
}

func TestOrderly(t *testing.T) {
	t.Parallel()
	result(t, "push-orderly")
	topic, got := name(t), &seen{}
	createTopic(t, shared, topic, 4)
	p := newProducer(t, shared, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for i := range 60 {
		m := primitive.NewMessage(topic, fmt.Appendf(nil, "%d-%d", i%5, i))
		m.WithShardingKey(fmt.Sprint("key", i%5))
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if _, err := p.SendSync(ctx, m); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	newConsumer(t, shared, name(t), topic, "*", collect(got, ""), consumer.WithConsumerOrder(true))
	eventually(t, 30*time.Second, "60 messages", func() bool { return got.count() >= 60 })
	last := map[string]int{}
	for _, b := range got.bodies() {
		key, n, _ := strings.Cut(b, "-")
		i, _ := strconv.Atoi(n)
		if l, ok := last[key]; ok && i <= l {
			t.Errorf("key %s: %d after %d", key, i, l)
		}
		last[key] = i
	}
}

func TestBroadcast(t *testing.T) {
	t.Parallel()
	result(t, "broadcast")
	topic, group := name(t), name(t)
	p := newProducer(t, shared)
	send(t, p, topic, "", "first")
	a, b := &seen{}, &seen{}
	newConsumer(t, shared, group, topic, "*", collect(a, ""), consumer.WithConsumerModel(consumer.BroadCasting))
	newConsumer(t, shared, group, topic, "*", collect(b, ""), consumer.WithConsumerModel(consumer.BroadCasting))
	for i := range 10 {
		send(t, p, topic, "", fmt.Sprint(i))
	}
	eventually(t, 20*time.Second, "both got all", func() bool { return a.count() == 11 && b.count() == 11 })
}

func TestConsumerRestart(t *testing.T) {
	t.Parallel()
	result(t, "consumer-restart")
	topic, group := name(t), name(t)
	p := newProducer(t, shared)
	for i := range 10 {
		send(t, p, topic, "", fmt.Sprint("before", i))
	}
	first := &seen{}
	c := newConsumer(t, shared, group, topic, "*", collect(first, ""))
	eventually(t, 20*time.Second, "10 messages", func() bool { return first.count() == 10 })
	if err := c.Shutdown(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		send(t, p, topic, "", fmt.Sprint("after", i))
	}
	second := &seen{}
	newConsumer(t, shared, group, topic, "*", collect(second, ""))
	eventually(t, 20*time.Second, "10 more", func() bool { return second.count() >= 10 })
	for _, b := range second.bodies() {
		if !strings.HasPrefix(b, "after") {
			t.Errorf("%q came again", b)
		}
	}
}

func TestServerRestart(t *testing.T) {
	t.Parallel()
	result(t, "server-restart")
	s := ownServer(t)
	topic, group := name(t), name(t)
	p := newProducer(t, s)
	for i := range 10 {
		send(t, p, topic, "", fmt.Sprint("before", i))
	}
	got := &seen{}
	newConsumer(t, s, group, topic, "*", collect(got, ""))
	eventually(t, 20*time.Second, "10 messages", func() bool { return got.count() == 10 })
	s.args = append(s.args, "--namesrv-port", portOf(t, s.names), "--broker-port", portOf(t, s.broker))
	s.stop()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "a send after the restart", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		r, err := p.SendSync(ctx, primitive.NewMessage(topic, []byte("after")))
		return err == nil && r.Status == primitive.SendOK
	})
	eventually(t, 40*time.Second, "consumption goes on", func() bool {
		for _, b := range got.bodies() {
			if b == "after" {
				return true
			}
		}
		return false
	})
}

func portOf(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestStartFirstAndLast(t *testing.T) {
	t.Parallel()
	result(t, "start-first-last")
	s := ownServer(t, "--set", "accessMessageInMemoryMaxRatio=0")
	topic := name(t)
	p := newProducer(t, s)
	for i := range 5 {
		send(t, p, topic, "", fmt.Sprint("old", i))
	}
	first, last := &seen{}, &seen{}
	newConsumer(t, s, name(t), topic, "*", collect(first, ""))
	newConsumer(t, s, name(t), topic, "*", collect(last, ""), consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset))
	eventually(t, 20*time.Second, "the old ones", func() bool { return first.count() == 5 })
	eventually(t, 30*time.Second, "the one that started last gets new ones", func() bool {
		send(t, p, topic, "", "new")
		return last.count() > 0
	})
	for _, b := range last.bodies() {
		if b != "new" {
			t.Errorf("the one that started last got %q", b)
		}
	}
}

func TestRetryAndDLQ(t *testing.T) {
	t.Parallel()
	result(t, "dlq")
	s := ownServer(t, "--set", "messageDelayLevel=1s 1s 1s 1s 1s 1s 1s 1s")
	topic, group := name(t), name(t)
	p := newProducer(t, s)
	send(t, p, topic, "", "poison")
	var times atomic.Int32
	newConsumer(t, s, group, topic, "*", func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		times.Add(1)
		return consumer.ConsumeRetryLater, nil
	}, consumer.WithMaxReconsumeTimes(2))
	dead := &seen{}
	eventually(t, 60*time.Second, "tried three times", func() bool { return times.Load() == 3 })
	newConsumer(t, s, name(t), "%DLQ%"+group, "*", collect(dead, ""))
	eventually(t, 60*time.Second, "in the dead-letter queue", func() bool { return dead.count() == 1 })
	if dead.bodies()[0] != "poison" || times.Load() != 3 {
		t.Errorf("%v, tried %d times", dead.bodies(), times.Load())
	}
}

func TestFirstRetryAfterTenSeconds(t *testing.T) {
	t.Parallel()
	n := result(t, "retry-first-10s")
	topic := name(t)
	p := newProducer(t, shared)
	send(t, p, topic, "", "again")
	var first, second atomic.Int64
	newConsumer(t, shared, name(t), topic, "*", func(_ context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if first.CompareAndSwap(0, time.Now().UnixNano()) {
			return consumer.ConsumeRetryLater, nil
		}
		second.CompareAndSwap(0, time.Now().UnixNano())
		return consumer.ConsumeSuccess, nil
	})
	eventually(t, 40*time.Second, "came again", func() bool { return second.Load() != 0 })
	took := time.Duration(second.Load() - first.Load())
	n.text = fmt.Sprintf("first retry after %.1f s", took.Seconds())
	if took < 8*time.Second || took > 12*time.Second {
		t.Errorf("first retry after %v", took)
	}
}

// TestConsumerFirst: the Apache client refuses to start on a topic that doesn't exist, whatever the server.
func TestConsumerFirst(t *testing.T) {
	t.Parallel()
	n := result(t, "consumer-first")
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer([]string{shared.names}), consumer.WithGroupName(name(t)), consumer.WithInstance(name(t)))
	if err != nil {
		t.Fatal(err)
	}
	topic := name(t)
	if err := c.Subscribe(topic, consumer.MessageSelector{}, collect(&seen{}, "")); err != nil {
		t.Fatal(err)
	}
	err = c.Start()
	if err == nil {
		_ = c.Shutdown()
		t.Fatal("the client started: this case can be tested now")
	}
	if !strings.Contains(err.Error(), "route info not found") {
		t.Fatal(err)
	}
	n.text = "the client itself refuses to start on a topic without a route"
	t.Skip(n.text)
}

// TestRebalance grows a group from one to five members over four queues, and shrinks it again.
func TestRebalance(t *testing.T) {
	t.Parallel()
	result(t, "rebalance-1-to-5")
	topic, group := name(t), name(t)
	createTopic(t, shared, topic, 4)
	p := newProducer(t, shared, producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()))
	got := &seen{}
	shares := func(members int) string {
		began := got.count()
		for range 12 {
			send(t, p, topic, "", "x")
		}
		eventually(t, 20*time.Second, "12 messages", func() bool { return got.count() >= began+12 })
		got.mu.Lock()
		defer got.mu.Unlock()
		owned := map[string]map[int]bool{}
		for i := began; i < len(got.ext); i++ {
			if owned[got.who[i]] == nil {
				owned[got.who[i]] = map[int]bool{}
			}
			owned[got.who[i]][got.ext[i].Queue.QueueId] = true
		}
		var counts []int
		for _, q := range owned {
			counts = append(counts, len(q))
		}
		sort.Sort(sort.Reverse(sort.IntSlice(counts)))
		return fmt.Sprint(counts)
	}
	want := map[int]string{1: "[4]", 2: "[2 2]", 3: "[2 1 1]", 4: "[1 1 1 1]", 5: "[1 1 1 1]"}
	var members []interface{ Shutdown() error }
	for n := 1; n <= 5; n++ {
		members = append(members, newConsumer(t, shared, group, topic, "*", collect(got, fmt.Sprint(n))))
		eventually(t, 40*time.Second, fmt.Sprintf("%d members share %s", n, want[n]), func() bool { return shares(n) == want[n] })
	}
	for n := 4; n >= 1; n-- {
		_ = members[n].Shutdown()
		eventually(t, 40*time.Second, fmt.Sprintf("%d members share %s again", n, want[n]), func() bool { return shares(n) == want[n] })
	}
}

// feed sends numbered messages to every queue of a topic until stop.
func feed(t *testing.T, s *server, topic string, queues int) (stop func() int) {
	t.Helper()
	p := newProducer(t, s, producer.WithQueueSelector(producer.NewManualQueueSelector()))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int)
	go func() {
		n := 0
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			for q := range queues {
				m := primitive.NewMessage(topic, fmt.Appendf(nil, "%d", n))
				m.Queue = &primitive.MessageQueue{Topic: topic, BrokerName: brokerName(t, s), QueueId: q}
				send, cancelSend := context.WithTimeout(context.Background(), 10*time.Second)
				if r, err := p.SendSync(send, m); err != nil || r.Status != primitive.SendOK {
					t.Errorf("feed: %v %v", r, err)
				}
				cancelSend()
			}
			n++
			<-tick.C
		}
		done <- n
	}()
	var once sync.Once
	total := 0
	stop = func() int {
		once.Do(func() { cancel(); total = <-done })
		return total
	}
	t.Cleanup(func() { stop() })
	return stop
}

var names sync.Map

func brokerName(t *testing.T, s *server) string {
	if v, ok := names.Load(s); ok {
		return v.(string)
	}
	p := newProducer(t, s)
	v := send(t, p, name(t), "", "x").MessageQueue.BrokerName
	names.Store(s, v)
	return v
}

// checkOrder fails for a message of a queue that came before its predecessor, over all members together in the
// order of their lines; duplicates at a hand-over are allowed, gaps and reordering are not.
func checkOrder(t *testing.T, total int, queues int, ps ...*process) {
	t.Helper()
	for q := range queues {
		best := map[int]bool{}
		for _, p := range ps {
			last := -1
			for _, l := range p.lines() {
				f := strings.Fields(l)
				if f[0] != strconv.Itoa(q) {
					continue
				}
				n, _ := strconv.Atoi(f[2])
				if n < last { // equal: the feed's own retry stored the message twice
					t.Errorf("queue %d: %d after %d in one member", q, n, last)
				}
				last = n
				best[n] = true
			}
		}
		for n := range total {
			if !best[n] {
				t.Errorf("queue %d: message %d was lost", q, n)
				break
			}
		}
	}
}

// The Apache Go client gives queues up at a rebalance without unlocking them, so that whoever is to have them waits
// for the lease to run out: 60 s by default, shorter here so that the cases don't take minutes.
const shortLease = "rebalanceLockMaxLiveTime=8000"

// takeover starts two ordered members, ends the first one, and returns how long the other took to get a message of
// a queue that the first had.
func takeover(t *testing.T, end func(*process)) time.Duration {
	s := ownServer(t, "--set", shortLease)
	topic, group := name(t), name(t)
	const queues = 4
	createTopic(t, s, topic, queues)
	a := startChild(t, s.names, group, topic)
	b := startChild(t, s.names, group, topic)
	stop := feed(t, s, topic, queues)
	// Both consume, each its half.
	eventually(t, 60*time.Second, "each has two queues", func() bool {
		na, nb := len(a.lines()), len(b.lines())
		eventually(t, 20*time.Second, "more messages", func() bool {
			return len(a.lines()) >= na+8 && len(b.lines()) >= nb+8 || len(a.lines())+len(b.lines()) > na+nb+40
		})
		return len(a.queues(na)) == 2 && len(b.queues(nb)) == 2
	})
	mine := a.queues(len(a.lines()) - 4)
	began, from := time.Now(), len(b.lines())
	end(a)
	eventually(t, 90*time.Second, "the other has the queues", func() bool {
		n := 0
		for q := range b.queues(from) {
			if mine[q] {
				n++
			}
		}
		return n == len(mine)
	})
	took := time.Since(began)
	total := stop()
	eventually(t, 20*time.Second, "everything consumed", func() bool {
		last := map[string]bool{}
		for _, l := range b.lines() {
			if f := strings.Fields(l); f[2] == strconv.Itoa(total-1) {
				last[f[0]] = true
			}
		}
		return len(last) == queues
	})
	checkOrder(t, total, queues, a, b)
	return took
}

// The Apache Go client waits 3 s before it pulls a queue that it took over: it notes the lock before it knows the
// queue, finds it unlocked at its first pull, and looks again after its error delay. No broker can shorten that.
const (
	clientWaits = 3 * time.Second
	clientWait  = "3 s of them the client's own wait before it pulls a queue it took over"
)

func TestTakeoverAfterKill(t *testing.T) {
	t.Parallel()
	n := result(t, "takeover-kill")
	took := takeover(t, func(p *process) { _ = p.cmd.Process.Kill() })
	n.text = fmt.Sprintf("%.2f s until the other had the queues, %s", took.Seconds(), clientWait)
	if took > 6*time.Second+clientWaits {
		t.Errorf("took %v", took)
	}
}

func TestTakeoverAfterCleanEnd(t *testing.T) {
	t.Parallel()
	n := result(t, "takeover-clean")
	took := takeover(t, func(p *process) { _ = p.stdin.Close() })
	n.text = fmt.Sprintf("%.2f s from the beginning of the end until the other had the queues, %s", took.Seconds(), clientWait)
	if took > time.Second+clientWaits {
		t.Errorf("took %v", took)
	}
}

// TestConnectionReset cuts all connections of a live owner: nobody rebalances, nothing is reordered.
func TestConnectionReset(t *testing.T) {
	t.Parallel()
	result(t, "connection-reset")
	s, err := startServer(t.TempDir(), []string{"--set", "brokerIP1=127.0.0.2", "--set", shortLease})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	port := portOf(t, s.broker)
	proxy := startProxy(t, "127.0.0.2:"+port, s.broker)
	topic, group := name(t), name(t)
	const queues = 4
	createTopic(t, s, topic, queues)
	a := startChild(t, s.names, group, topic)
	b := startChild(t, s.names, group, topic)
	stop := feed(t, s, topic, queues)
	stage := "before the reset"
	share := func(p *process) map[string]bool {
		n := len(p.lines())
		// A pull that was on its way when its connection was cut fails in this client only after its 30 s.
		eventually(t, 60*time.Second, stage+": more messages for "+map[bool]string{true: "the first", false: "the second"}[p == a], func() bool { return len(p.lines()) >= n+8 })
		return p.queues(n)
	}
	eventually(t, 60*time.Second, "each has two queues", func() bool { return len(share(a)) == 2 && len(share(b)) == 2 })
	before := fmt.Sprint(share(a), share(b))
	from := len(a.lines())
	stage = "after the reset"
	proxy.reset()
	eventually(t, 70*time.Second, "both go on", func() bool { return len(share(a)) > 0 && len(share(b)) > 0 })
	if after := fmt.Sprint(a.queues(from), share(b)); after != before {
		t.Errorf("queues before %s, after %s", before, after)
	}
	total := stop()
	eventually(t, 30*time.Second, "everything consumed", func() bool {
		last := map[string]bool{}
		for _, l := range append(a.lines(), b.lines()...) {
			if f := strings.Fields(l); f[2] == strconv.Itoa(total-1) {
				last[f[0]] = true
			}
		}
		return len(last) == queues
	})
	checkOrder(t, total, queues, a, b)
}

func TestDelayLevel(t *testing.T) {
	t.Parallel()
	n := result(t, "delay-level")
	topic, got := name(t), &seen{}
	p := newProducer(t, shared)
	createTopic(t, shared, topic, 4)
	newConsumer(t, shared, name(t), topic, "*", collect(got, ""))
	m := primitive.NewMessage(topic, []byte("later"))
	m.WithDelayTimeLevel(2)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := p.SendSync(ctx, m); err != nil {
		t.Fatal(err)
	}
	eventually(t, 60*time.Second, "delivered", func() bool { return got.count() == 1 })
	x := got.ext[0]
	took := x.StoreTimestamp - x.BornTimestamp
	n.text = fmt.Sprintf("stored for delivery %d ms after it was born, level is 5 s", took)
	if took < 4990 || took > 6000 {
		t.Errorf("delivered after %d ms", took)
	}
}
