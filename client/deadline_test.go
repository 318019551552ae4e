package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apogeemq/apogee/apogeetest"
	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/internal/testkit"
)

// TestServerProcess is no test but the server of those that stop a whole process: it runs until its input ends.
func TestServerProcess(t *testing.T) {
	if os.Getenv("APOGEE_TEST_SERVE") == "" {
		t.Skip("run by other tests, in a process of its own")
	}
	fmt.Printf("serving %s\n", apogeetest.Start(t).NameServer())
	_, _ = bufio.NewReader(os.Stdin).ReadString(0)
}

// serverProcess starts a server in a process of its own and returns its name server's address.
func serverProcess(t *testing.T) (string, *os.Process) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerProcess$", "-test.count=1")
	cmd.Env = append(os.Environ(), "APOGEE_TEST_SERVE=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		in.Close()
		for {
			if _, err := lines.ReadString('\n'); err != nil {
				break
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server process: %v", err)
		}
	})
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("the server process ended: %v", err)
		}
		if addr, ok := strings.CutPrefix(line, "serving "); ok {
			return strings.TrimSpace(addr), cmd.Process
		}
	}
}

// stopped stops a process and returns when it stands.
func stopProcess(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 10*time.Second, "the process stands", func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(p.Pid), "stat"))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
}

// TestDeadlinesHoldAgainstAStoppedServer: with the server's process stopped every call of a producer returns at its
// deadline, whether it knew the server before or not, and the log says how far beyond.
func TestDeadlinesHoldAgainstAStoppedServer(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks into /proc")
	}
	addr, process := serverProcess(t)
	c := newClient(t, addr)
	opts := []client.ProducerOption{client.WithTransactionCheck(never), client.WithAutoBatch(5*time.Millisecond, 1000)}
	auto, plain := newProducer(t, c, opts...), newProducer(t, c, opts[0])
	topic := unique(t, "t")
	warm(t, plain, topic)
	closing := newClient(t, addr)
	closingProducer, busy := newProducer(t, closing), newProducer(t, c)
	warm(t, closingProducer, topic)
	stopProcess(t, process)
	m := func() *client.Message { return &client.Message{Topic: topic, Body: []byte("x")} }
	keyed := func() *client.Message { x := m(); x.ShardingKey = "k"; return x }
	other := func() *client.Message { x := m(); x.Topic = unique(t, "unknown"); return x }
	large := func() *client.Message { x := m(); x.Body = make([]byte, 3<<20); return x }
	fresh := func() *client.Producer { return newProducer(t, newClient(t, addr), opts...) }
	async := func(ctx context.Context, p *client.Producer, m *client.Message) error {
		got := make(chan error, 1)
		p.SendAsync(ctx, m, func(_ *client.SendResult, err error) { got <- err })
		return <-got
	}
	calls := map[string]func(ctx context.Context) error{
		"Send":             func(ctx context.Context) error { _, err := plain.Send(ctx, m()); return err },
		"Send, new client": func(ctx context.Context) error { _, err := fresh().Send(ctx, m()); return err },
		"Send, new topic":  func(ctx context.Context) error { _, err := plain.Send(ctx, other()); return err },
		"Send, key":        func(ctx context.Context) error { _, err := plain.Send(ctx, keyed()); return err },
		"Send, 3 MiB":      func(ctx context.Context) error { _, err := plain.Send(ctx, large()); return err },
		"Send, auto batch": func(ctx context.Context) error { _, err := auto.Send(ctx, m()); return err },
		"SendAsync":        func(ctx context.Context) error { return async(ctx, plain, m()) },
		"SendBatch": func(ctx context.Context) error {
			_, err := plain.SendBatch(ctx, []*client.Message{m(), m()})
			return err
		},
		"SendInTransaction": func(ctx context.Context) error { _, err := plain.SendInTransaction(ctx, m(), commit); return err },
		"Request":           func(ctx context.Context) error { _, err := plain.Request(ctx, m()); return err },
		"Queues":            func(ctx context.Context) error { _, err := plain.Queues(ctx, unique(t, "unknown")); return err },
		"Recall": func(ctx context.Context) error {
			_, err := plain.Recall(ctx, topic, "djEgVCBhcG9nZWV0ZXN0IDE3OTYwOTgyMTAwMDEgSUQ=")
			return err
		},
		"SendOneWay, new": func(ctx context.Context) error { return fresh().SendOneWay(ctx, m()) },
		"Send, many":      func(ctx context.Context) error { return many(ctx, plain, m) },
	}
	const deadline = 400 * time.Millisecond
	var worst, bare time.Duration
	measure := func(name string, call func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		begin := time.Now()
		control := make(chan time.Duration, 1) // what a goroutine that only waits for the context sees on this machine now
		go func() { <-ctx.Done(); control <- time.Since(begin) - deadline }()
		err := call(ctx)
		over := time.Since(begin) - deadline
		cancel()
		c := <-control
		t.Logf("%-18s deadline %s, returned %7.3f ms after it, a bare wait %7.3f ms: %v", name, deadline, ms(over), ms(c), err)
		worst, bare = max(worst, over), max(bare, c)
		if err == nil || over > 5*time.Second {
			t.Errorf("%s: returned %s after its deadline: %v", name, over, err)
		}
		return err
	}
	for name, call := range calls {
		if err := measure(name, call); !client.Classify(err).Retriable {
			t.Errorf("%s: %v is classified as %+v", name, err, client.Classify(err))
		}
	}
	// Closing, while a message is under way.
	closingProducer.SendAsync(short(t), m(), nil)
	busy.SendAsync(short(t), m(), nil)
	_ = measure("Producer.Close", busy.Close)
	_ = measure("Client.Close", closing.Close)
	t.Logf("the latest came %.3f ms after its deadline, the latest bare wait %.3f ms", ms(worst), ms(bare))
	if err := process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Send(short(t), m()); err != nil {
		t.Errorf("after the server went on: %v", err)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func many(ctx context.Context, p *client.Producer, m func() *client.Message) error {
	errs := make(chan error, 100)
	for range cap(errs) {
		p.SendAsync(ctx, m(), func(_ *client.SendResult, err error) { errs <- err })
	}
	var last error
	for range cap(errs) {
		if err := <-errs; err != nil {
			last = err
		}
	}
	return last
}

// TestAHalfDeadConnectionIsFound: a call without a near deadline doesn't hang on a server that stopped answering.
func TestAHalfDeadConnectionIsFound(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks into /proc")
	}
	addr, process := serverProcess(t)
	p := newProducer(t, newClient(t, addr), client.WithRetries(0))
	topic := unique(t, "t")
	warm(t, p, topic)
	stopProcess(t, process)
	begin := time.Now()
	_, err := p.Send(short(t), &client.Message{Topic: topic, Body: []byte("x")})
	took := time.Since(begin)
	t.Logf("found after %s: %v", took.Round(time.Millisecond), err)
	if !errors.Is(err, client.ErrHalfDead) || !client.Classify(err).Retriable || took > 15*time.Second {
		t.Errorf("after %s: %v", took, err)
	}
}

// TestCyclesLeaveNothing: 1,000 clients with a producer, one message each, leave goroutines and descriptors where
// they were.
func TestCyclesLeaveNothing(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks into /proc")
	}
	addr := nameServer(t)
	topic := unique(t, "t")
	cycle := func() {
		c, err := client.New(client.WithNameServers(addr), client.WithTracing(topic+"-trace"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.NewProducer("cycle", client.WithAutoBatch(time.Millisecond, 1))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Send(short(t), &client.Message{Topic: topic, Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		p.SendAsync(short(t), &client.Message{Topic: topic, Body: []byte("x")}, nil)
		if err := c.Close(short(t)); err != nil {
			t.Fatal(err)
		}
	}
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	for range 100 { // until the server has opened the files of all queues, which is its own business
		cycle()
	}
	cycles := 1000
	if testing.Short() {
		cycles = 100
	}
	goroutines, files := runtime.NumGoroutine(), descriptors()
	for range cycles {
		cycle()
	}
	var g, f int
	// The server is in this process: what it does at the moment is in the counts. One thing left in a hundred cycles shows.
	const noise = 9
	defer func() {
		if t.Failed() {
			t.Logf("after %d cycles there are %d goroutines where there were %d, and %d descriptors where there were %d", cycles, g, goroutines, f, files)
		}
	}()
	testkit.Eventually(t, 20*time.Second, "goroutines and descriptors are where they were", func() bool {
		g, f = runtime.NumGoroutine(), descriptors()
		return g <= goroutines+noise && f <= files+noise
	})
	t.Logf("%d cycles: goroutines %d → %d, descriptors %d → %d", cycles, goroutines, g, files, f)
}
