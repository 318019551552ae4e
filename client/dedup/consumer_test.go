package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/apogeemq/apogee/apogeetest"
	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/client/dedup"
	"github.com/apogeemq/apogee/internal/testkit"
)

const patience = 20 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func connect(t *testing.T, s *apogeetest.Server) *client.Client {
	t.Helper()
	c, err := client.New(client.WithNameServers(s.NameServer()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(within(t)); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestAConsumerHandlesWhatWasSentTwiceOnce: through a whole server, with two members that share a store, messages that
// were sent two or three times, and handlers that fail at first.
func TestAConsumerHandlesWhatWasSentTwiceOnce(t *testing.T) {
	const messages = 60
	srv := apogeetest.Start(t, apogeetest.WithSetting("messageDelayLevel", "1s 1s 1s 1s"))
	p, err := connect(t, srv).NewProducer("orders")
	if err != nil {
		t.Fatal(err)
	}
	store := memory()
	var mu sync.Mutex
	handled, failed := map[string]int{}, map[string]bool{}
	events := map[dedup.Event]int{}
	handle := func(_ context.Context, m *client.Message) error {
		mu.Lock()
		defer mu.Unlock()
		body := string(m.Body)
		if !failed[body] && m.Tags == "bad" {
			failed[body] = true
			return errors.New("no money")
		}
		handled[body]++
		return nil
	}
	observe := func(_ *client.Message, e dedup.Event) {
		mu.Lock()
		defer mu.Unlock()
		events[e]++
	}
	for range 2 {
		h, err := dedup.Wrap(handle, store, "billing", dedup.WithObserver(observe), dedup.WithLease(time.Second), dedup.WithKey(dedup.ByMessageKey))
		if err != nil {
			t.Fatal(err)
		}
		co, err := connect(t, srv).NewConsumer("billing", client.WithHandler("Orders", client.All, h), client.WithFrom(client.FromEarliest))
		if err != nil {
			t.Fatal(err)
		}
		if err := co.Start(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	sent := 0
	for i := range messages {
		m := client.Message{Topic: "Orders", Keys: []string{fmt.Sprint("order-", i)}, Body: fmt.Append(nil, i)}
		if i%10 == 0 {
			m.Tags = "bad"
		}
		for range 1 + i%3 {
			again := m
			if _, err := p.Send(within(t), &again); err != nil {
				t.Fatal(err)
			}
			sent++
		}
	}
	testkit.Eventually(t, patience, "every delivery handled or skipped", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return events[dedup.Done]+events[dedup.Skipped] == sent
	})
	mu.Lock()
	defer mu.Unlock()
	for i := range messages {
		if n := handled[fmt.Sprint(i)]; n != 1 {
			t.Errorf("message %d was handled %d times", i, n)
		}
	}
	t.Logf("%d sent, events %v", sent, events)
	if events[dedup.Done] != messages || events[dedup.Failed] != messages/10 {
		t.Errorf("events %v, want %d done and %d failed", events, messages, messages/10)
	}
}
