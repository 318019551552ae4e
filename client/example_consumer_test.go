package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/apogeemq/apogee/client"
)

func ExampleClient_NewConsumer() {
	ctx := context.Background()
	c, err := client.New(client.WithNameServers("127.0.0.1:9876"))
	if err != nil {
		panic(err)
	}
	defer c.Close(ctx)
	co, err := c.NewConsumer("billing",
		client.WithHandler("Orders", client.Tags("paid || refunded"), func(ctx context.Context, m *client.Message) error {
			fmt.Printf("%s: %s\n", m.ID, m.Body)
			return nil
		}),
		client.WithFrom(client.FromEarliest),
		client.WithConcurrency(50),
	)
	if err != nil {
		panic(err)
	}
	if err := co.Start(ctx); err != nil {
		panic(err)
	}
	// … until it is time to go: handlers finish, offsets are committed, others take over.
	leave, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := co.Close(leave); err != nil {
		slog.Warn("some messages may come again", "error", err)
	}
}

func ExampleWithOrdered() {
	c, err := client.New() // name servers from NAMESRV_ADDR
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close(context.Background())
	_, err = c.NewConsumer("ledger", client.WithOrdered(), client.WithMaxAttempts(5),
		client.WithBackoff(func(attempt int) time.Duration { return time.Duration(attempt) * time.Second }),
		client.WithHandler("Bookings", client.All, func(ctx context.Context, m *client.Message) error {
			if len(m.Body) == 0 {
				return client.DeadLetter(errors.New("a booking without contents will not get better"))
			}
			return nil
		}))
	if err != nil {
		fmt.Println(err)
	}
}

func ExampleRetryAfter() {
	var busy = errors.New("the bank is closed")
	handler := func(ctx context.Context, m *client.Message) error {
		return client.RetryAfter(time.Hour, busy)
	}
	fmt.Println(handler(context.Background(), &client.Message{}))
	// Output: retry after 1h0m0s: the bank is closed
}

func ExampleConsumer_Status() {
	c, err := client.New(client.WithNameServers("127.0.0.1:9876"))
	if err != nil {
		panic(err)
	}
	defer c.Close(context.Background())
	co, err := c.NewConsumer("billing", client.WithHandler("Orders", client.All, func(context.Context, *client.Message) error { return nil }))
	if err != nil {
		panic(err)
	}
	for _, q := range co.Status() {
		if q.Lag > 0 && q.Reason != "" {
			fmt.Fprintf(os.Stderr, "%s is %d behind: %s\n", q.Queue, q.Lag, q.Reason)
		}
	}
}

func ExamplePoller() {
	ctx := context.Background()
	c, err := client.New(client.WithNameServers("127.0.0.1:9876"))
	if err != nil {
		panic(err)
	}
	defer c.Close(ctx)
	p, err := c.NewPoller("export", client.WithSubscription("Orders", client.All), client.WithBatch(500))
	if err != nil {
		panic(err)
	}
	if err := p.Start(ctx); err != nil {
		panic(err)
	}
	for {
		ms, err := p.Poll(ctx)
		if err != nil {
			return // ctx ended, or somebody closed p
		}
		// … write them somewhere
		p.Commit(ms...)
	}
}

func ExampleWithBroadcast() {
	c, err := client.New(client.WithNameServers("127.0.0.1:9876"))
	if err != nil {
		panic(err)
	}
	defer c.Close(context.Background())
	_, err = c.NewConsumer("cache-invalidation", client.WithBroadcast(), client.WithOffsetsDir("/var/lib/app/offsets", "web-1"),
		client.WithHandler("Invalidations", client.All, func(context.Context, *client.Message) error { return nil }))
	if err != nil {
		fmt.Println(err)
	}
}
