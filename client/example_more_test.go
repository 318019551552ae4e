package client_test

import (
	"context"
	"fmt"
	"time"

	"github.com/apogeemq/apogee/client"
)

// exampleProducer returns a producer of a server that is the example's own.
func exampleProducer(group string, opts ...client.ProducerOption) (p *client.Producer, stop func()) {
	nameServer, stopServer := startServer()
	c, err := client.New(client.WithNameServers(nameServer))
	if err != nil {
		panic(err)
	}
	if p, err = c.NewProducer(group, opts...); err != nil {
		panic(err)
	}
	return p, func() {
		if err := c.Close(context.Background()); err != nil {
			panic(err)
		}
		stopServer()
	}
}

func ExampleProducer_SendOneWay() {
	p, stop := exampleProducer("metrics") // a client's NewProducer
	defer stop()
	fmt.Println(p.SendOneWay(context.Background(), &client.Message{Topic: "Metrics", Body: []byte("cpu=0.7")}))
	// Output: <nil>
}

func ExampleWithAutoBatch() {
	p, stop := exampleProducer("clicks", client.WithAutoBatch(5*time.Millisecond, 32<<10))
	defer stop()
	for range 1000 {
		p.SendAsync(context.Background(), &client.Message{Topic: "Clicks", Body: []byte("click")}, nil)
	}
	fmt.Println(p.Close(context.Background())) // sends what is gathered, and waits
	// Output: <nil>
}

func ExampleToQueue() {
	p, stop := exampleProducer("orders")
	defer stop()
	first, err := p.Send(context.Background(), &client.Message{Topic: "Orders", Body: []byte("1")})
	if err != nil {
		panic(err)
	}
	second, err := p.Send(context.Background(), &client.Message{Topic: "Orders", Body: []byte("2")}, client.ToQueue(first.MessageQueue()))
	if err != nil {
		panic(err)
	}
	fmt.Println(second.QueueOffset - first.QueueOffset)
	// Output: 1
}

// A consumer answers a request. Needs a Java broker.
func ExampleProducer_Reply() {
	c, err := client.New()
	if err != nil {
		panic(err)
	}
	defer c.Close(context.Background())
	p, err := c.NewProducer("quotes-replies")
	if err != nil {
		panic(err)
	}
	co, err := c.NewConsumer("quotes-server", client.WithHandler("Quotes", client.All, func(ctx context.Context, m *client.Message) error {
		return p.Reply(ctx, m, []byte("17.30"))
	}))
	if err != nil {
		panic(err)
	}
	if err := co.Start(context.Background()); err != nil {
		panic(err)
	}
}

// A message with a time of delivery is taken back. Needs a Java 5 broker with recallMessageEnable.
func ExampleProducer_Recall() {
	c, err := client.New()
	if err != nil {
		panic(err)
	}
	defer c.Close(context.Background())
	p, err := c.NewProducer("reminders")
	if err != nil {
		panic(err)
	}
	res, err := p.Send(context.Background(), &client.Message{Topic: "Reminders", DeliverAt: time.Now().Add(time.Hour), Body: []byte("call back")})
	if err != nil {
		panic(err)
	}
	id, err := p.Recall(context.Background(), "Reminders", res.RecallHandle)
	fmt.Println(id == res.ID, err)
}

func ExampleWithNameServerURL() {
	c, err := client.New(client.WithNameServerURL("http://jmenv.tbsite.net:8080/rocketmq/nsaddr"))
	if err != nil {
		panic(err)
	}
	defer c.Close(context.Background())
}

// Every message leaves a trace in RMQ_SYS_TRACE_TOPIC, as Java's clients write it.
func ExampleWithTracing() {
	nameServer, stop := startServer()
	defer stop()
	c, err := client.New(client.WithNameServers(nameServer), client.WithTracing(""))
	if err != nil {
		panic(err)
	}
	p, err := c.NewProducer("orders")
	if err != nil {
		panic(err)
	}
	_, err = p.Send(context.Background(), &client.Message{Topic: "Orders", Body: []byte("…")})
	fmt.Println(err, c.Close(context.Background())) // Close sends the traces that wait
	// Output: <nil> <nil>
}
