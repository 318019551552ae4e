package client_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apogeemq/apogee/apogeetest"
	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/internal/testkit"
)

// TestNothingIsLostOrOvertakenInOutages: while connections break and the server restarts, every acknowledged message is
// there afterwards, and the first copies of each key's messages are in their order.
func TestNothingIsLostOrOvertakenInOutages(t *testing.T) {
	onlyApogee(t, "the server restarts, and drops its connections")
	s := apogeetest.Start(t)
	c := newClient(t, s.NameServer())
	p := newProducer(t, c)
	topic := unique(t, "t")
	warm(t, p, topic)
	const keys, least = 4, 300
	var sent, failed atomic.Int32
	var enough atomic.Bool
	counts := make([]int, keys)
	var wg sync.WaitGroup
	for k := range keys {
		wg.Go(func() {
			for i := 0; i < least || !enough.Load(); i++ {
				m := &client.Message{Topic: topic, ShardingKey: fmt.Sprint("k", k), Properties: map[string]string{"n": fmt.Sprint(i)}, Body: []byte("x")}
				for try := 0; ; try++ { // what failed is sent again, with its id
					ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
					_, err := p.Send(ctx, m)
					cancel()
					if err == nil {
						break
					}
					failed.Add(1)
					if !client.Classify(err).Retriable || try > 20_000 {
						t.Errorf("key %d, message %d: %v", k, i, err)
						return
					}
				}
				counts[k]++
				sent.Add(1)
			}
		})
	}
	more := func(what string, n int32) {
		t.Helper()
		at := sent.Load() + n
		testkit.Eventually(t, 30*time.Second, "messages go on after "+what, func() bool { return sent.Load() >= at })
	}
	more("the start", 50)
	for range 3 {
		s.DropConnections()
		more("dropped connections", 50)
	}
	s.Restart()
	more("a restart", 100)
	enough.Store(true)
	wg.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	r, err := c.Read(short(t), topic, "*", client.Earliest)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	next, seen, copies := map[string]int{}, map[string]bool{}, 0
	for len(seen) < total+1 {
		m, err := r.Next(short(t))
		if err != nil {
			t.Fatalf("%d of %d acknowledged messages are there: %v", len(seen), total+1, err)
		}
		if seen[m.ID] {
			copies++
			continue
		}
		seen[m.ID] = true
		if m.ShardingKey == "" {
			continue
		}
		if want := fmt.Sprint(next[m.ShardingKey]); m.Properties["n"] != want {
			t.Fatalf("key %s: message %s where %s is due", m.ShardingKey, m.Properties["n"], want)
		}
		next[m.ShardingKey]++
	}
	t.Logf("%d messages, %d calls failed and were repeated, %d copies", total, failed.Load(), copies)
}
