// Command figures is the Apache Go client's side of bench/clientfigures, which starts it and says what to measure; see
// FiguresMain of interop/java for what is read and printed.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	rlog.SetLogLevel("fatal")
	run, ok := map[string]func([]string) error{"first": first, "handover": handover, "send": send, "drain": drain}[os.Args[1]]
	if !ok {
		fmt.Fprintln(os.Stderr, "figures: unknown", os.Args[1])
		os.Exit(2)
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(2)
	}
	os.Exit(0)
}

func number(s string) int { n, _ := strconv.Atoi(s); return n }

func newConsumer(names, group, instance string) (rocketmq.PushConsumer, error) {
	return rocketmq.NewPushConsumer(consumer.WithNameServer(strings.Split(names, ";")), consumer.WithGroupName(group), consumer.WithInstance(instance),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
}

type handler = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func first(args []string) error {
	got := make(chan struct{}, 1)
	began := time.Now()
	c, err := newConsumer(args[1], args[2], "first")
	if err != nil {
		return err
	}
	h := func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		select {
		case got <- struct{}{}:
		default:
		}
		return consumer.ConsumeSuccess, nil
	}
	for i := range number(args[4]) {
		if err := c.Subscribe(args[3]+strconv.Itoa(i), consumer.MessageSelector{}, h); err != nil {
			return err
		}
	}
	if err := c.Start(); err != nil {
		return err
	}
	select {
	case <-got:
	case <-time.After(time.Minute):
		return fmt.Errorf("no message")
	}
	fmt.Println("first", float64(time.Since(began))/1e6)
	return nil
}

// watch is what all members handled.
type watch struct {
	mu                      sync.Mutex
	seen                    map[uint64]int
	last                    map[int]time.Time
	gap                     map[int]time.Duration
	owner                   map[int]string
	moved                   map[int]bool
	worstMoved, worstOthers time.Duration
	moves                   int
}

func (w *watch) got(who string, m *primitive.MessageExt) {
	now, q := time.Now(), m.Queue.QueueId
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[binary.BigEndian.Uint64(m.Body)]++
	if t, ok := w.last[q]; ok {
		w.gap[q] = max(w.gap[q], now.Sub(t))
	}
	w.last[q] = now
	if o := w.owner[q]; o != "" && o != who {
		w.moved[q] = true
	}
	w.owner[q] = who
}

func (w *watch) round(counts bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for q, g := range w.gap {
		if !counts {
			break
		}
		if w.moved[q] {
			w.worstMoved = max(w.worstMoved, g)
			w.moves++
		} else {
			w.worstOthers = max(w.worstOthers, g)
		}
	}
	w.gap, w.moved = map[int]time.Duration{}, map[int]bool{}
}

func handover(args []string) error {
	w := &watch{seen: map[uint64]int{}, last: map[int]time.Time{}, gap: map[int]time.Duration{}, owner: map[int]string{}, moved: map[int]bool{}}
	join := func(name string) (rocketmq.PushConsumer, error) {
		c, err := newConsumer(args[1], args[2], name)
		if err != nil {
			return nil, err
		}
		err = c.Subscribe(args[3], consumer.MessageSelector{}, func(_ context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, m := range ms {
				w.got(name, m)
			}
			return consumer.ConsumeSuccess, nil
		})
		if err != nil {
			return nil, err
		}
		return c, c.Start()
	}
	members := number(args[4])
	group := make([]rocketmq.PushConsumer, members)
	var err error
	for i := range group {
		if group[i], err = join(fmt.Sprint("m", i)); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	time.Sleep(25 * time.Second) // until all of them have looked at the group again
	w.round(false)
	for i := range group {
		if err := group[i].Shutdown(); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond)
		if group[i], err = join(fmt.Sprint("n", i)); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond)
		w.round(true)
	}
	fmt.Println("restarted")
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	sent := number(strings.Fields(line)[1])
	for range 3000 {
		w.mu.Lock()
		n := len(w.seen)
		w.mu.Unlock()
		if n >= sent {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.round(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	twice := 0
	for _, n := range w.seen {
		if n > 1 {
			twice++
		}
	}
	fmt.Println("result", twice, sent-len(w.seen), w.worstMoved.Milliseconds(), w.worstOthers.Milliseconds(), w.moves)
	return nil
}

func send(args []string) error {
	p, err := rocketmq.NewProducer(producer.WithNameServer(strings.Split(args[1], ";")), producer.WithGroupName("figures"))
	if err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	seconds := time.Duration(number(args[4])) * time.Second
	var sent atomic.Int64
	end := time.Now().Add(2 * seconds) // the first half warms up
	var wg sync.WaitGroup
	failures := make(chan error, number(args[3]))
	for range number(args[3]) {
		wg.Go(func() {
			body := make([]byte, 1024)
			for time.Now().Before(end) {
				if _, err := p.SendSync(context.Background(), primitive.NewMessage(args[2], body)); err != nil {
					failures <- err
					return
				}
				sent.Add(1)
			}
		})
	}
	time.Sleep(seconds)
	warm := sent.Load()
	wg.Wait()
	select {
	case err := <-failures:
		return err
	default:
	}
	fmt.Println("rate", (sent.Load()-warm)*int64(time.Second)/int64(seconds))
	return nil
}

func drain(args []string) error {
	c, err := newConsumer(args[1], args[2], "drain")
	if err != nil {
		return err
	}
	count := int64(number(args[4]))
	var got, began atomic.Int64
	done := make(chan struct{})
	err = c.Subscribe(args[3], consumer.MessageSelector{}, func(_ context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		began.CompareAndSwap(0, time.Now().UnixNano())
		if n := got.Add(int64(len(ms))); n >= count && n-int64(len(ms)) < count {
			close(done)
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("only %d of %d", got.Load(), count)
	}
	fmt.Println("rate", int64(float64(count)/(float64(time.Now().UnixNano()-began.Load())/1e9)))
	return nil
}
