package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/apogeemq/apogee/apogeetest"
	"github.com/apogeemq/apogee/client"
)

// startServer starts a server for an example, as apogeetest does for a test, and returns its name server's address.
func startServer() (nameServer string, stop func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	e := &exampleTest{dir: dir}
	s := apogeetest.Start(e)
	return s.NameServer(), func() {
		for _, f := range e.cleanups {
			f()
		}
		_ = os.RemoveAll(dir)
	}
}

// exampleTest is as much of a test as apogeetest.Start wants.
type exampleTest struct {
	testing.TB
	dir      string
	cleanups []func()
}

func (e *exampleTest) Helper()                           {}
func (e *exampleTest) TempDir() string                   { return e.dir }
func (e *exampleTest) Cleanup(f func())                  { e.cleanups = append(e.cleanups, f) }
func (e *exampleTest) Output() io.Writer                 { return os.Stderr }
func (e *exampleTest) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (e *exampleTest) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (e *exampleTest) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// A message goes from a producer to a consumer.
func Example() {
	nameServer, stop := startServer() // this example's; yours runs already
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	c, err := client.New(client.WithNameServers(nameServer))
	if err != nil {
		panic(err)
	}
	defer c.Close(ctx)
	p, err := c.NewProducer("orders")
	if err != nil {
		panic(err)
	}
	if _, err := p.Send(ctx, &client.Message{Topic: "Orders", Tags: "paid", Keys: []string{"order-7"}, Body: []byte("two pizzas")}); err != nil {
		panic(err)
	}

	got := make(chan *client.Message, 1)
	co, err := c.NewConsumer("kitchen", client.WithFrom(client.FromEarliest),
		client.WithHandler("Orders", client.Tags("paid"), func(_ context.Context, m *client.Message) error {
			got <- m
			return nil
		}))
	if err != nil {
		panic(err)
	}
	if err := co.Start(ctx); err != nil {
		panic(err)
	}
	m := <-got
	fmt.Printf("%s %v: %s\n", m.Tags, m.Keys, m.Body)
	// Output: paid [order-7]: two pizzas
}

// A client for servers with TLS and access control.
func ExampleNew() {
	c, err := client.New(
		client.WithNameServers("rmq-1.example.com:9876", "rmq-2.example.com:9876"),
		client.WithTLS(&tls.Config{}), // verified against the system's roots
		client.WithCredentials(os.Getenv("RMQ_ACCESS_KEY"), os.Getenv("RMQ_SECRET_KEY"), ""),
		client.WithTimeout(5*time.Second),
	)
	if errors.Is(err, client.ErrInvalid) {
		fmt.Println("an option can't be right")
		return
	}
	_ = c.Close(context.Background())
	// Output: an option can't be right
}

// Send waits until the broker has the message.
func ExampleProducer_Send() {
	nameServer, stop := startServer()
	defer stop()
	c, err := client.New(client.WithNameServers(nameServer))
	if err != nil {
		panic(err)
	}
	defer c.Close(context.Background())
	p, err := c.NewProducer("orders", client.WithRetries(4))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // of all attempts
	defer cancel()
	res, err := p.Send(ctx, &client.Message{Topic: "Orders", Body: []byte("two pizzas"), Properties: map[string]string{"table": "4"}})
	if err != nil {
		fmt.Println("retry:", client.Classify(err).Retriable, err)
		return
	}
	fmt.Println(res.Status, res.QueueOffset)
	// Output: ok 0
}

// SendAsync calls back. It waits when too much is under way.
func ExampleProducer_SendAsync() {
	nameServer, stop := startServer()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := client.New(client.WithNameServers(nameServer))
	if err != nil {
		panic(err)
	}
	defer c.Close(ctx)
	p, err := c.NewProducer("orders", client.WithOutstanding(100, 16<<20))
	if err != nil {
		panic(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	stored := 0
	for i := range 1000 {
		wg.Add(1)
		p.SendAsync(ctx, &client.Message{Topic: "Orders", Body: fmt.Append(nil, i)}, func(_ *client.SendResult, err error) {
			defer wg.Done()
			if err != nil {
				fmt.Println(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			stored++
		})
	}
	wg.Wait()
	fmt.Println(stored, "stored")
	// Output: 1000 stored
}

// SendBatch sends many messages of one topic in few requests. Each has an id and a result of its own.
func ExampleProducer_SendBatch() {
	nameServer, stop := startServer()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := client.New(client.WithNameServers(nameServer))
	if err != nil {
		panic(err)
	}
	defer c.Close(ctx)
	p, err := c.NewProducer("orders")
	if err != nil {
		panic(err)
	}
	var ms []*client.Message
	for i := range 3 {
		ms = append(ms, &client.Message{Topic: "Orders", Body: fmt.Append(nil, "order ", i)})
	}
	results, err := p.SendBatch(ctx, ms)
	if err != nil {
		fmt.Println(err)
	}
	for _, r := range results {
		fmt.Println(r.QueueOffset)
	}
	// Output:
	// 0
	// 1
	// 2
}

// Messages with one sharding key go to one queue, in the order in which they were sent, however often an attempt is
// repeated. An ordered consumer handles them in that order.
func ExampleMessage_shardingKey() {
	nameServer, stop := startServer()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := client.New(client.WithNameServers(nameServer))
	if err != nil {
		panic(err)
	}
	defer c.Close(ctx)
	p, err := c.NewProducer("ledger")
	if err != nil {
		panic(err)
	}
	for _, booking := range []string{"opened", "+100", "-40", "closed"} {
		if _, err := p.Send(ctx, &client.Message{Topic: "Bookings", ShardingKey: "account-17", Body: []byte(booking)}); err != nil {
			panic(err)
		}
	}
	got := make(chan string, 4)
	co, err := c.NewConsumer("auditor", client.WithOrdered(), client.WithFrom(client.FromEarliest),
		client.WithHandler("Bookings", client.All, func(_ context.Context, m *client.Message) error {
			got <- string(m.Body)
			return nil
		}))
	if err != nil {
		panic(err)
	}
	if err := co.Start(ctx); err != nil {
		panic(err)
	}
	for range 4 {
		fmt.Println(<-got)
	}
	// Output:
	// opened
	// +100
	// -40
	// closed
}

// SelectQueue and ToQueue choose the queue of one send.
func ExampleSelectQueue() {
	nameServer, stop := startServer()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := client.New(client.WithNameServers(nameServer))
	if err != nil {
		panic(err)
	}
	defer c.Close(ctx)
	p, err := c.NewProducer("orders")
	if err != nil {
		panic(err)
	}
	last := func(_ *client.Message, queues []client.MessageQueue) int { return len(queues) - 1 }
	res, err := p.Send(ctx, &client.Message{Topic: "Orders", Body: []byte("for the last queue")}, client.SelectQueue(last))
	if err != nil {
		panic(err)
	}
	again, err := p.Send(ctx, &client.Message{Topic: "Orders", Body: []byte("and one more")}, client.ToQueue(res.MessageQueue()))
	if err != nil {
		panic(err)
	}
	fmt.Println(again.MessageQueue() == res.MessageQueue())
	// Output: true
}

// A message can be delivered later: after one of the broker's delays, or, where brokers have timer messages, at any time.
func ExampleMessage_delayed() {
	c, err := client.New(client.WithNameServers("127.0.0.1:9876"))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer c.Close(ctx)
	p, err := c.NewProducer("reminders")
	if err != nil {
		panic(err)
	}
	_, _ = p.Send(ctx, &client.Message{Topic: "Reminders", DelayLevel: 3, Body: []byte("in 10 s")})
	res, err := p.Send(ctx, &client.Message{Topic: "Reminders", DeliverAt: time.Now().Add(36 * time.Hour), Body: []byte("the day after tomorrow")})
	if err != nil {
		return
	}
	_, _ = p.Recall(ctx, "Reminders", res.RecallHandle) // or not
}

// A transaction: consumers get the message when the database has the order, and only then.
func ExampleProducer_SendInTransaction() {
	c, err := client.New(client.WithNameServers("127.0.0.1:9876"))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer c.Close(ctx)
	saved := func(order string) (bool, error) { return order != "", nil } // asks the database
	save := func(context.Context, string) error { return nil }

	p, err := c.NewProducer("orders", client.WithTransactionCheck(func(_ context.Context, m *client.Message) client.Resolution {
		switch ok, err := saved(m.Properties["order"]); { // this process, or one that died, didn't say
		case err != nil:
			return client.Unknown
		case ok:
			return client.Commit
		}
		return client.Rollback
	}))
	if err != nil {
		panic(err)
	}
	m := &client.Message{Topic: "Orders", Properties: map[string]string{"order": "7"}, Body: []byte("two pizzas")}
	res, err := p.SendInTransaction(ctx, m, func(ctx context.Context, m *client.Message) (client.Resolution, error) {
		if err := save(ctx, m.Properties["order"]); err != nil {
			return client.Rollback, err
		}
		return client.Commit, nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.ID, res.Resolution)
}

// One service asks another through a topic and waits for its reply.
func ExampleProducer_Request() {
	c, err := client.New(client.WithNameServers("127.0.0.1:9876"))
	if err != nil {
		panic(err)
	}
	defer c.Close(context.Background())
	p, err := c.NewProducer("prices")
	if err != nil {
		panic(err)
	}

	// The one that answers.
	_, _ = c.NewConsumer("price-desk", client.WithHandler("Prices", client.All, func(ctx context.Context, m *client.Message) error {
		return p.Reply(ctx, m, []byte("7.50"))
	}))

	// The one that asks.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	reply, err := p.Request(ctx, &client.Message{Topic: "Prices", Body: []byte("pizza")})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", reply.Body)
}

// Classify says what to do about an error, whatever it came from.
func ExampleClassify() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := client.New(client.WithNameServers("127.0.0.1:1")) // nobody there
	if err != nil {
		panic(err)
	}
	defer c.Close(ctx)
	p, err := c.NewProducer("orders")
	if err != nil {
		panic(err)
	}
	_, err = p.Send(ctx, &client.Message{Topic: "Orders", Body: []byte("two pizzas")})
	k := client.Classify(err)
	fmt.Println(k.Retriable, k.Who)
	_, err = p.Send(ctx, &client.Message{Topic: "no such name", Body: []byte("two pizzas")})
	k = client.Classify(err)
	fmt.Println(k.Retriable, k.Who)
	// Output:
	// true network
	// false you
}

// A Reader gets every message of a topic, outside of any group.
func ExampleClient_Read() {
	nameServer, stop := startServer()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := client.New(client.WithNameServers(nameServer))
	if err != nil {
		panic(err)
	}
	defer c.Close(ctx)
	p, err := c.NewProducer("orders")
	if err != nil {
		panic(err)
	}
	if err := p.SendOneWay(ctx, &client.Message{Topic: "Orders", Body: []byte("two pizzas")}); err != nil {
		panic(err)
	}
	var r *client.Reader
	for r == nil { // until the topic is there: nothing says that a one-way message has arrived
		if r, err = c.Read(ctx, "Orders", "", client.Earliest); err != nil && !errors.Is(err, client.ErrNoRoute) {
			panic(err)
		}
	}
	defer r.Close()
	m, err := r.Next(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s\n", m.Body)
	// Output: two pizzas
}

// Hooks measure what a producer does.
func ExampleWithProducerHooks() {
	nameServer, stop := startServer()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := client.New(client.WithNameServers(nameServer))
	if err != nil {
		panic(err)
	}
	defer c.Close(ctx)
	p, err := c.NewProducer("orders", client.WithProducerHooks(client.ProducerHooks{
		Send: func(ctx context.Context, ms []*client.Message, next func(context.Context) ([]*client.SendResult, error)) error {
			began := time.Now()
			_, err := next(ctx)
			fmt.Printf("%d message to %s, error: %v, measured: %v\n", len(ms), ms[0].Topic, err, time.Since(began) > 0)
			return err
		},
	}))
	if err != nil {
		panic(err)
	}
	if _, err := p.Send(ctx, &client.Message{Topic: "Orders", Body: []byte("two pizzas")}); err != nil {
		panic(err)
	}
	// Output: 1 message to Orders, error: <nil>, measured: true
}
