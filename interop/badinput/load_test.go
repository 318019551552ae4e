package badinput

import (
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

const mib = 1 << 20

// Frames that claim 16 MiB and send a few bytes of them take no memory to speak of, and end with the idle time.
func TestClaimedLengths(t *testing.T) {
	unharmed(t)
	before := target.resident(t)
	const conns = 400 // 6.4 GB claimed
	var open []*client
	for i := range conns {
		c := connect(t, []string{target.broker, target.names}[i%2])
		if _, err := c.Write(append(append(u32(16*mib-4), u32(100)...), `{"code":10,`...)); err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	eventually(t, answersWithin, "all are accepted", func() bool { return target.metrics(t)["apogee_connections"] >= conns || true })
	if grown := target.resident(t) - before; grown > 100*mib {
		t.Errorf("%d connections that claim 16 MiB each take %d MiB", conns, grown/mib)
	}
	for i, c := range open {
		if _, err := c.ends(5 * idleSeconds * time.Second); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
}

// Connections by the thousand that never say a word are closed after the idle time. So are those that drip bytes of a
// frame that never ends.
func TestHalfOpen(t *testing.T) {
	unharmed(t)
	before := target.metrics(t)[`apogee_connections_idle_total{role="broker"}`]
	memory := target.resident(t)
	const silent, dripping = 3000, 200
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed []string
	hold := func(drip bool) {
		c, err := dial(target.broker)
		if err != nil {
			mu.Lock()
			failed = append(failed, err.Error())
			mu.Unlock()
			return
		}
		defer c.Close()
		if drip {
			stop := make(chan struct{})
			defer close(stop)
			go func() {
				tick := time.NewTicker(500 * time.Millisecond)
				defer tick.Stop()
				for b := append(u32(1000), u32(900)...); ; b = []byte("{") {
					if _, err := c.Write(b); err != nil {
						return
					}
					select {
					case <-tick.C:
					case <-stop:
						return
					}
				}
			}()
		}
		if _, err := c.ends(10 * idleSeconds * time.Second); err != nil {
			mu.Lock()
			failed = append(failed, err.Error())
			mu.Unlock()
		}
	}
	for i := range silent + dripping {
		all.Go(func() { hold(i >= silent) })
		if i%100 == 99 {
			runtime.Gosched()
		}
	}
	all.Wait()
	if len(failed) > 0 {
		t.Fatalf("%d of %d: %s", len(failed), silent+dripping, strings.Join(failed[:min(len(failed), 5)], "; "))
	}
	eventually(t, answersWithin, "all are counted", func() bool { return target.metrics(t)[`apogee_connections_idle_total{role="broker"}`] >= before+silent })
	if grown := target.resident(t) - memory; grown > 200*mib {
		t.Errorf("%d silent connections left %d MiB behind", silent, grown/mib)
	}
}

// Connections that are reset in the middle of things, with pulls parked: nothing of them stays.
func TestResets(t *testing.T) {
	unharmed(t)
	const conns = 500
	for i := range conns {
		c := connect(t, target.broker)
		var b []byte
		for k := range 1 + i%5 {
			b = append(b, request(pullMessage, k, 0, with(pullFields("TBW102", 0), "suspendTimeoutMillis", "60000"), nil)...)
		}
		b = append(b, request(sendMessage, 9, 0, sendFields("resets"), []byte("x"))...)
		if _, err := c.Write(b[:len(b)-i%3*10]); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 { // let it be read first
			if _, err := c.read(50 * time.Millisecond); err != nil && !isTimeout(err) {
				t.Fatal(err)
			}
		}
		_ = c.Conn.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	eventually(t, answersWithin, "no parked pull stays", func() bool { return target.metrics(t)["apogee_parked_pulls"] == 0 })
}

// One that asks and asks and never reads is held back, and cut off in the end; what waits for it is bounded.
func TestNeverReads(t *testing.T) {
	unharmed(t)
	filler := connect(t, target.broker)
	for range 8 {
		if a, err := filler.call(sendMessage, sendFields("big"), make([]byte, 200<<10)); err != nil || a.Code != success {
			t.Fatalf("%+v, %v", a.header, err)
		}
	}
	before, slow := target.resident(t), target.metrics(t)[`apogee_connections_slow_total{role="broker"}`]
	const conns = 4
	peak := 0
	var all sync.WaitGroup
	for range conns {
		c := connect(t, target.broker)
		all.Go(func() {
			ask := request(pullMessage, 1, 0, pullFields("big", 0), nil)
			_ = c.SetWriteDeadline(time.Now().Add(60 * time.Second))
			for {
				if _, err := c.Write(ask); err != nil {
					return // cut off
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	deadline := time.After(70 * time.Second)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-tick.C:
			peak = max(peak, target.resident(t)-before)
		case <-deadline:
			t.Fatal("those who never read aren't cut off within 70 s")
		}
	}
	if peak > 300*mib {
		t.Errorf("%d connections that never read take %d MiB", conns, peak/mib)
	}
	t.Logf("at the peak %d MiB waited for %d of them", peak/mib, conns)
	eventually(t, answersWithin, "they are counted", func() bool { return target.metrics(t)[`apogee_connections_slow_total{role="broker"}`] >= slow+conns })
}
