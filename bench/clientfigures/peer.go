package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apogeemq/apogee/client"
)

// bePeer is package client's side of compare; see FiguresMain of interop/java for what is read and printed.
func bePeer(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if len(args) < 3 {
		return errors.New("peer: want first, handover, ids, send or drain, and its arguments")
	}
	names := args[1]
	connect := func() (*client.Client, error) { return client.New(client.WithNameServers(names)) }
	if args[0] == "ids" {
		seen := map[string]bool{}
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		for range n {
			c, err := connect()
			if err != nil {
				return err
			}
			defer c.Close(ctx)
			seen[c.ID()] = true
		}
		fmt.Println("ids", len(seen))
		return nil
	}
	if len(args) < 5 {
		return errors.New("peer: too few arguments")
	}
	n, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	c, err := connect()
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	switch args[0] {
	case "first":
		return peerFirst(ctx, c, args[2], args[3], n)
	case "handover":
		return peerHandover(ctx, connect, args[2], args[3], n)
	case "send":
		threads, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return peerSend(ctx, c, args[2], threads, time.Duration(n)*time.Second)
	case "drain":
		return peerDrain(ctx, c, args[2], args[3], int64(n))
	}
	return fmt.Errorf("peer: unknown %s", args[0])
}

func peerFirst(ctx context.Context, c *client.Client, group, prefix string, topics int) error {
	got := make(chan struct{}, 1)
	opts := []client.ConsumerOption{client.WithFrom(client.FromEarliest)}
	for i := range topics {
		opts = append(opts, client.WithHandler(fmt.Sprint(prefix, i), client.All, func(context.Context, *client.Message) error {
			select {
			case got <- struct{}{}:
			default:
			}
			return nil
		}))
	}
	began := time.Now()
	co, err := c.NewConsumer(group, opts...)
	if err != nil {
		return err
	}
	if err := co.Start(ctx); err != nil {
		return err
	}
	select {
	case <-got:
	case <-ctx.Done():
		return ctx.Err()
	}
	fmt.Println("first", float64(time.Since(began))/1e6)
	return nil
}

func peerHandover(ctx context.Context, connect func() (*client.Client, error), group, topic string, members int) error {
	w := newWatch()
	join := func() (*client.Client, error) {
		c, err := connect()
		if err != nil {
			return nil, err
		}
		co, err := c.NewConsumer(group, client.WithFrom(client.FromEarliest), client.WithHandler(topic, client.All, func(_ context.Context, m *client.Message) error {
			w.got(c.ID(), m)
			return nil
		}))
		if err != nil {
			return nil, err
		}
		return c, co.Start(ctx)
	}
	all := make([]*client.Client, members)
	var err error
	for i := range all {
		if all[i], err = join(); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	time.Sleep(2 * time.Second)
	w.round()
	var moved, others time.Duration
	moves := 0
	for i := range all {
		if err := all[i].Close(ctx); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond)
		if all[i], err = join(); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond)
		m, o, n := w.round()
		moved, others, moves = max(moved, m), max(others, o), moves+n
	}
	fmt.Println("restarted")
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	sent, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "sent ")))
	if err != nil {
		return err
	}
	for range 3000 {
		if w.distinct() >= sent {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, c := range all {
		if err := c.Close(ctx); err != nil {
			return err
		}
	}
	fmt.Println("result", w.twice(), sent-w.distinct(), moved.Milliseconds(), others.Milliseconds(), moves)
	return nil
}

func peerSend(ctx context.Context, c *client.Client, topic string, threads int, d time.Duration) error {
	p, err := c.NewProducer("figures")
	if err != nil {
		return err
	}
	var sent, failed atomic.Int64
	end := time.Now().Add(2 * d) // the first half warms up
	var wg sync.WaitGroup
	for range threads {
		wg.Go(func() {
			body := make([]byte, 1024)
			for time.Now().Before(end) {
				if _, err := p.Send(ctx, &client.Message{Topic: topic, Body: body}); err != nil {
					failed.Add(1)
					return
				}
				sent.Add(1)
			}
		})
	}
	time.Sleep(d)
	warm := sent.Load()
	wg.Wait()
	if failed.Load() > 0 {
		return fmt.Errorf("%d senders failed", failed.Load())
	}
	fmt.Println("rate", (sent.Load()-warm)*int64(time.Second)/int64(d))
	return nil
}

func peerDrain(ctx context.Context, c *client.Client, group, topic string, count int64) error {
	var got, began atomic.Int64
	done := make(chan struct{})
	co, err := c.NewConsumer(group, client.WithFrom(client.FromEarliest), client.WithHandler(topic, client.All, func(context.Context, *client.Message) error {
		began.CompareAndSwap(0, time.Now().UnixNano())
		if got.Add(1) == count {
			close(done)
		}
		return nil
	}))
	if err != nil {
		return err
	}
	if err := co.Start(ctx); err != nil {
		return err
	}
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("only %d of %d: %w", got.Load(), count, ctx.Err())
	}
	fmt.Println("rate", int64(float64(count)/(float64(time.Now().UnixNano()-began.Load())/1e9)))
	return nil
}
