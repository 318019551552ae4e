package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsStream is the stream that is published to: on disk, one replica, as `nats bench js pub` makes it.
const natsStream = "compare"

// nats measures JetStream publishes in a process of its own, as the other load generators are.
func (b *bench) nats(ctx context.Context, s *server, row string, conns, outstanding int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	warm := 2 * time.Second
	args := []string{"natsload", "-addr", s.addr, "-conns", fmt.Sprint(conns), "-outstanding", fmt.Sprint(outstanding), "-size", "1024", "-warmup", warm.String(), "-duration", b.c.seconds.String()}
	out, command, err := b.runClient(ctx, self, append(slices.Clone(args), "-pid", fmt.Sprint(s.pid()))...)
	if err != nil {
		return err
	}
	b.res.Commands[row+" (JetStream)"] = command
	x := sample{}
	if err := json.Unmarshal(out, &x); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	// The same in whole batches, for those who know the figures of NATS's own tool.
	if out, command, err = b.runClient(ctx, self, append(args, "-whole")...); err != nil {
		return err
	}
	batches := sample{}
	if err := json.Unmarshal(out, &batches); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	x["whole_per_second"] = batches["per_second"]
	b.keep(row, "nats", "", x)
	return nil
}

// natsLoad keeps publishes outstanding on each connection and prints a sample.
func natsLoad(args []string) error {
	f := flag.NewFlagSet("natsload", flag.ContinueOnError)
	addr := f.String("addr", "127.0.0.1:4222", "server")
	conns := f.Int("conns", 4, "connections")
	outstanding := f.Int("outstanding", 16, "publishes on their way on each")
	size := f.Int("size", 1024, "bytes of a body")
	warm := f.Duration("warmup", time.Second, "time before it is measured")
	duration := f.Duration("duration", 3*time.Second, "measured time")
	pid := f.Int("pid", 0, "server process")
	whole := f.Bool("whole", false, "wait for all that are on their way before the next are sent, as `nats bench js pub` does")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), *warm+*duration+30*time.Second)
	defer cancel()
	var phase atomic.Int32 // 0 warming, 1 measuring, 2 over
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	total := hdrhistogram.New(1, 60_000_000, 3)
	for range *conns {
		nc, err := nats.Connect("nats://" + *addr)
		if err != nil {
			return err
		}
		defer nc.Close()
		js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(*outstanding))
		if err != nil {
			return err
		}
		if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: natsStream, Subjects: []string{natsStream}, Storage: jetstream.FileStorage, Replicas: 1}); err != nil {
			return err
		}
		wg.Go(func() {
			h, err := publish(ctx, js, *outstanding, *whole, make([]byte, *size), &phase)
			mu.Lock()
			defer mu.Unlock()
			total.Merge(h)
			if failed == nil {
				failed = err
			}
		})
	}
	used := func() (u use) {
		if *pid != 0 {
			u, _ = useOf(*pid)
		}
		return u
	}
	time.Sleep(*warm)
	before, began := used(), time.Now()
	phase.Store(1)
	time.Sleep(*duration)
	phase.Store(2)
	took, after := time.Since(began), used()
	wg.Wait()
	if failed != nil {
		return failed
	}
	n := float64(total.TotalCount())
	if n == 0 {
		return fmt.Errorf("no publish was acknowledged in %v", *duration)
	}
	return json.NewEncoder(os.Stdout).Encode(sample{"per_second": n / took.Seconds(), "messages": n, "p50": float64(total.ValueAtQuantile(50)), "p99": float64(total.ValueAtQuantile(99)),
		"p99_9": float64(total.ValueAtQuantile(99.9)), "cpu": float64((after.cpu - before.cpu).Microseconds()) / n, "rss": after.rss, "anon": after.anon})
}

// publish keeps publishes on their way until the run is over. Acknowledgements of one connection come in order, so
// the oldest is waited for.
func publish(ctx context.Context, js jetstream.JetStream, outstanding int, whole bool, body []byte, phase *atomic.Int32) (*hdrhistogram.Histogram, error) {
	h := hdrhistogram.New(1, 60_000_000, 3)
	type sent struct {
		ack  jetstream.PubAckFuture
		left time.Time
	}
	var ring []sent
	for {
		for refill := !whole || len(ring) == 0; refill && len(ring) < outstanding && phase.Load() != 2; {
			ack, err := js.PublishAsync(natsStream, body)
			if err != nil {
				return h, err
			}
			ring = append(ring, sent{ack, time.Now()})
		}
		if len(ring) == 0 {
			return h, nil
		}
		select {
		case <-ring[0].ack.Ok():
			if phase.Load() == 1 {
				_ = h.RecordValue(max(time.Since(ring[0].left).Microseconds(), 1))
			}
		case err := <-ring[0].ack.Err():
			return h, err
		case <-ctx.Done():
			return h, ctx.Err()
		}
		ring = append(ring[:0], ring[1:]...)
	}
}
