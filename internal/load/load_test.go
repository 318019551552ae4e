package load

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSpread: every queue has a connection, every connection queues of one broker, whatever there is more of.
func TestSpread(t *testing.T) {
	for brokers := 1; brokers <= 3; brokers++ {
		for queues := 1; queues <= 9; queues++ {
			for conns := 1; conns <= 20; conns++ {
				var ts []target
				for b := range brokers {
					for q := range queues {
						ts = append(ts, target{addr: fmt.Sprint("b", b), topic: "T", queue: int32(q)})
					}
				}
				got := spread(ts, conns)
				if len(got) != max(conns, brokers) {
					t.Fatalf("%d brokers, %d queues, %d connections: %d", brokers, queues, conns, len(got))
				}
				seen := map[target]bool{}
				for _, c := range got {
					if len(c) == 0 {
						t.Errorf("%d brokers, %d queues, %d connections: one has nothing", brokers, queues, conns)
					}
					for _, x := range c {
						seen[x] = true
						if x.addr != c[0].addr {
							t.Errorf("%d brokers, %d queues, %d connections: one of two brokers", brokers, queues, conns)
						}
					}
				}
				if len(seen) != len(ts) {
					t.Errorf("%d brokers, %d queues, %d connections: %d queues of %d", brokers, queues, conns, len(seen), len(ts))
				}
			}
		}
	}
}

// TestWhatCounts: in an open loop by when it was due, in a closed one by when it was answered.
func TestWhatCounts(t *testing.T) {
	for _, open := range []bool{false, true} {
		o := Options{Names: []string{"x"}}.withDefaults()
		if open {
			o.Rate = 10
		}
		m := newMeter(o, open)
		m.begin.Store(int64(10 * time.Second))
		m.end.Store(int64(20 * time.Second))
		r := m.recorders[0]
		for _, s := range []time.Duration{9, 10, 19, 20} { // due at s, answered 1 s later
			r.sent(m, s*time.Second, s*time.Second+500*time.Millisecond, (s+1)*time.Second, 7, 0, "")
		}
		r.sent(m, 12*time.Second, 12*time.Second, 13*time.Second, 7, 2, "busy")
		r.sent(m, 12*time.Second, 12*time.Second, 13*time.Second, 7, 2, "busy again")
		rep := &Report{Run: "produce"}
		m.report(rep)
		if rep.Messages != 2 || rep.Bytes != 14 || rep.Requests != 4 || rep.PerSecond != 0.2 || len(rep.Refused) != 1 || rep.Refused[0] != (Refusal{2, 2, "busy"}) {
			t.Errorf("open %v: %+v", open, rep)
		}
		if near := func(got, want float64) bool { return got > 0.999*want && got < 1.001*want }; !near(rep.Latency.P50, map[bool]float64{false: 5e5, true: 1e6}[open]) || open && (!near(rep.Service.P50, 5e5) || !near(rep.Late.P50, 5e5)) {
			t.Errorf("open %v: %+v", open, rep)
		}
		var b strings.Builder
		if err := rep.WriteText(&b); err != nil || !strings.Contains(b.String(), "2 messages in 10.00 s: 0 messages/s") || !strings.Contains(b.String(), "2 with code 2: busy") {
			t.Errorf("%v: %s", err, b.String())
		}
	}
}

func TestCountRecords(t *testing.T) {
	rec := func(n int) []byte {
		b := make([]byte, n)
		binary.BigEndian.PutUint32(b, uint32(n))
		return b
	}
	if n, err := countRecords(bytes.Join([][]byte{rec(100), rec(4), rec(5000)}, nil)); n != 3 || err != nil {
		t.Error(n, err)
	}
	for _, b := range [][]byte{{1}, rec(100)[:99], {0, 0, 0, 3}, {0xFF, 0xFF, 0xFF, 0xFF}} {
		if _, err := countRecords(b); err == nil {
			t.Errorf("%x: no error", b)
		}
	}
}

// TestQuantiles: the resolution is fine enough for tens of microseconds.
func TestQuantiles(t *testing.T) {
	h := newHistogram()
	for i := range 1000 {
		_ = h.RecordValue(value(time.Duration(i+1) * 10 * time.Microsecond))
	}
	q := quantiles(h)
	for _, x := range [][2]float64{{q.P50, 5000}, {q.P90, 9000}, {q.P99, 9900}, {q.P999, 9990}, {q.Max, 10000}, {q.Mean, 5005}, {q.Min, 10}} {
		if x[0] < 0.998*x[1] || x[0] > 1.002*x[1] {
			t.Errorf("%g, want %g: %+v", x[0], x[1], q)
		}
	}
}
