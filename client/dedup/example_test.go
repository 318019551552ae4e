package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/client/dedup"
)

// A message that is delivered twice is handled once.
func ExampleWrap() {
	bill := func(_ context.Context, m *client.Message) error {
		fmt.Printf("billing %s\n", m.Body)
		return nil
	}
	handler, err := dedup.Wrap(bill, dedup.NewMemory(dedup.MemoryOptions{}), "billing")
	if err != nil {
		panic(err)
	}
	m := &client.Message{Topic: "Orders", ID: "7F0000010007", Body: []byte("order 7")}
	fmt.Println(handler(context.Background(), m))
	fmt.Println(handler(context.Background(), m)) // delivered again
	// Output:
	// billing order 7
	// <nil>
	// <nil>
}

// Two messages with one message key, such as a payment that a producer sent twice under two ids, are one.
func ExampleByMessageKey() {
	bill := func(_ context.Context, m *client.Message) error {
		fmt.Println("billing", m.Keys)
		return nil
	}
	handler, err := dedup.Wrap(bill, dedup.NewMemory(dedup.MemoryOptions{}), "billing", dedup.WithKey(dedup.ByMessageKey))
	if err != nil {
		panic(err)
	}
	for _, id := range []string{"7F0000010007", "7F0000010008"} {
		_ = handler(context.Background(), &client.Message{Topic: "Orders", ID: id, Keys: []string{"order-7"}})
	}
	// Output: billing [order-7]
}

// What becomes of deliveries can be counted.
func ExampleWithObserver() {
	counts := map[dedup.Event]int{}
	fail := true
	handler, err := dedup.Wrap(func(context.Context, *client.Message) error {
		if fail {
			return errors.New("the bank is closed")
		}
		return nil
	}, dedup.NewMemory(dedup.MemoryOptions{MaxKeys: 50_000}), "billing",
		dedup.WithWindow(2*time.Hour),
		dedup.WithLease(30*time.Second),
		dedup.WithObserver(func(_ *client.Message, e dedup.Event) { counts[e]++ }))
	if err != nil {
		panic(err)
	}
	m := &client.Message{Topic: "Orders", ID: "7F0000010007"}
	fmt.Println(handler(context.Background(), m))
	fail = false
	fmt.Println(handler(context.Background(), m))
	fmt.Println(handler(context.Background(), m))
	fmt.Println(counts[dedup.Failed], counts[dedup.Done], counts[dedup.Skipped])
	// Output:
	// the bank is closed
	// <nil>
	// <nil>
	// 1 1 1
}
