package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/apogeemq/apogee/client"
)

// deadlines stops the server with SIGSTOP and looks how long calls take that have 300 ms, and how soon the connection
// is given up.
func deadlines(s *server) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	names, err := s.makeTopics("deadlines", 1, 8)
	if err != nil {
		return false, err
	}
	c, err := s.client()
	if err != nil {
		return false, err
	}
	p, err := c.NewProducer("figures")
	if err != nil {
		return false, err
	}
	send := func(ctx context.Context) error {
		_, err := p.Send(ctx, &client.Message{Topic: names[0], Body: []byte("x")})
		return err
	}
	if err := send(ctx); err != nil {
		return false, err
	}
	poller, err := c.NewPoller("deadlines", client.WithSubscription(names[0], client.All), client.WithFrom(client.FromLatest))
	if err != nil {
		return false, err
	}
	if err := poller.Start(ctx); err != nil {
		return false, err
	}
	queues, err := c.Queues(ctx, names[0])
	if err != nil {
		return false, err
	}
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return false, err
	}
	stopped := time.Now()
	noticed := make(chan time.Duration, 1)
	go func() {
		for time.Since(stopped) < 20*time.Second {
			for _, q := range poller.Status() {
				if strings.Contains(q.Reason, "unreachable") {
					noticed <- time.Since(stopped)
					return
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
		noticed <- 0
	}()
	const given = 300 * time.Millisecond
	worst, worstOf := time.Duration(0), ""
	try := func(name string, f func(context.Context) error) {
		for range 5 {
			ctx, cancel := context.WithTimeout(ctx, given)
			began := time.Now()
			err := f(ctx)
			over := time.Since(began) - given
			cancel()
			if err == nil && name != "Close" {
				fmt.Printf("%s succeeded while the server was stopped\n", name)
			}
			if over > worst {
				worst, worstOf = over, name
			}
		}
	}
	try("Send", send)
	try("Poll", func(ctx context.Context) error { _, err := poller.Poll(ctx); return err })
	try("Offsets", func(ctx context.Context) error { _, _, err := c.Offsets(ctx, queues[0]); return err })
	try("Queues", func(ctx context.Context) error { _, err := c.Queues(ctx, "unknown"); return err })
	try("Start", func(ctx context.Context) error {
		other, err := s.client()
		if err != nil {
			return err
		}
		co, err := other.NewConsumer("other", client.WithHandler(names[0], client.All, func(context.Context, *client.Message) error { return nil }))
		if err != nil {
			return err
		}
		err = co.Start(ctx)
		_ = other.Close(ctx)
		return err
	})
	found := <-noticed
	try("Close", func(ctx context.Context) error { return c.Close(ctx) })
	ok := figure("longest overrun of a 300ms deadline, server stopped by SIGSTOP", fmt.Sprintf("%s (%s)", worst.Round(10*time.Microsecond), worstOf), "<= 10ms", worst <= 10*time.Millisecond)
	return figure("a half-dead connection is noticed after", found.Round(time.Millisecond).String(), "<= 5s", found > 0 && found <= 5*time.Second) && ok, nil
}
