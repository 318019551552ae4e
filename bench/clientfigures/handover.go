package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apogeemq/apogee/client"
)

// watch notes what every consumer handles.
type watch struct {
	mu    sync.Mutex
	seen  map[uint64]int
	last  map[client.MessageQueue]time.Time
	gap   map[client.MessageQueue]time.Duration // longest time without a message
	owner map[client.MessageQueue]string
	moved map[client.MessageQueue]bool
}

func newWatch() *watch {
	return &watch{seen: map[uint64]int{}, last: map[client.MessageQueue]time.Time{}, gap: map[client.MessageQueue]time.Duration{}, owner: map[client.MessageQueue]string{}, moved: map[client.MessageQueue]bool{}}
}

// distinct and twice count messages.
func (w *watch) distinct() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen)
}

func (w *watch) twice() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, k := range w.seen {
		if k > 1 {
			n++
		}
	}
	return n
}

func (w *watch) got(id string, m *client.Message) {
	now := time.Now()
	q := m.MessageQueue()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[binary.BigEndian.Uint64(m.Body)]++
	if t, ok := w.last[q]; ok {
		w.gap[q] = max(w.gap[q], now.Sub(t))
	}
	w.last[q] = now
	if o := w.owner[q]; o != "" && o != id {
		w.moved[q] = true
	}
	w.owner[q] = id
}

// round forgets which queues moved and how long they paused, and returns it.
func (w *watch) round() (moved, others time.Duration, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for q, g := range w.gap {
		if w.moved[q] {
			moved = max(moved, g)
			n++
		} else {
			others = max(others, g)
		}
	}
	w.gap, w.moved = map[client.MessageQueue]time.Duration{}, map[client.MessageQueue]bool{}
	return moved, others, n
}

// handover restarts 10 consumers of 64 queues one after the other under load.
func handover(s *server, rate int) (bool, error) {
	const members, queues = 10, 64
	names, err := s.makeTopics("handover", 1, queues)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	w := newWatch()
	type consumer struct {
		c  *client.Client
		co *client.Consumer
	}
	join := func() (consumer, error) {
		c, err := s.client()
		if err != nil {
			return consumer{}, err
		}
		co, err := c.NewConsumer("handover", client.WithFrom(client.FromEarliest), client.WithHandler(names[0], client.All, func(_ context.Context, m *client.Message) error {
			w.got(c.ID(), m)
			return nil
		}))
		if err != nil {
			return consumer{}, err
		}
		return consumer{c, co}, co.Start(ctx)
	}
	var group []consumer
	for range members {
		x, err := join()
		if err != nil {
			return false, err
		}
		group = append(group, x)
	}
	c, err := s.client()
	if err != nil {
		return false, err
	}
	defer c.Close(ctx)
	p, err := c.NewProducer("figures")
	if err != nil {
		return false, err
	}
	produce, stopProducing := context.WithCancel(ctx)
	defer stopProducing()
	var sent atomic.Uint64
	var failed atomic.Int64
	var wg sync.WaitGroup
	const senders = 16
	began := time.Now()
	var next atomic.Int64
	for range senders {
		wg.Go(func() {
			for produce.Err() == nil {
				n := next.Add(1)
				due := began.Add(time.Duration(n) * time.Second / time.Duration(rate))
				if d := time.Until(due); d > 0 {
					time.Sleep(d)
				}
				body := binary.BigEndian.AppendUint64(nil, uint64(n))
				if _, err := p.Send(ctx, &client.Message{Topic: names[0], Body: append(body, make([]byte, 248)...)}); err != nil {
					failed.Add(1)
					continue
				}
				sent.Add(1)
			}
		})
	}
	time.Sleep(2 * time.Second)
	w.round()
	var worstMoved, worstOthers time.Duration
	total := 0
	for i := range members {
		if err := group[i].c.Close(ctx); err != nil {
			return false, err
		}
		time.Sleep(500 * time.Millisecond)
		if group[i], err = join(); err != nil {
			return false, err
		}
		time.Sleep(500 * time.Millisecond)
		moved, others, n := w.round()
		worstMoved, worstOthers, total = max(worstMoved, moved), max(worstOthers, others), total+n
	}
	stopProducing()
	wg.Wait()
	took := time.Since(began)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if uint64(w.distinct()) >= sent.Load() {
			break
		}
	}
	for _, x := range group {
		if err := x.c.Close(ctx); err != nil {
			return false, err
		}
	}
	twice, missing := w.twice(), int64(sent.Load())-int64(w.distinct())
	fmt.Printf("rolling restart of %d consumers over %d queues: %d messages at %.0f/s, %d moves of queues, %d sends failed\n", members, queues, sent.Load(), float64(sent.Load())/took.Seconds(), total, failed.Load())
	ok := figure("messages handled twice", fmt.Sprint(twice), "0", twice == 0)
	ok = figure("messages missing", fmt.Sprint(missing), "0", missing == 0) && ok
	ok = figure("longest pause of a queue that moved", worstMoved.Round(time.Millisecond).String(), "<= 1s", worstMoved <= time.Second) && ok
	return figure("longest pause of a queue that didn't", worstOthers.Round(time.Millisecond).String(), "none", worstOthers <= 250*time.Millisecond) && ok, nil
}
