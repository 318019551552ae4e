package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/testkit"
)

func TestPenaltiesAreJavas(t *testing.T) {
	for latency, want := range map[time.Duration]time.Duration{
		0: 0, 50 * time.Millisecond: 0, 100 * time.Millisecond: 0, 549 * time.Millisecond: 0, 550 * time.Millisecond: 2 * time.Second, 1799 * time.Millisecond: 2 * time.Second,
		1800 * time.Millisecond: 5 * time.Second, 3 * time.Second: 6 * time.Second, 5 * time.Second: 10 * time.Second, 10 * time.Second: 10 * time.Second, 15 * time.Second: 30 * time.Second, time.Hour: 30 * time.Second,
	} {
		if got := penalty(latency); got != want {
			t.Errorf("%s: avoided for %s, want %s", latency, got, want)
		}
	}
}

func TestAvoidance(t *testing.T) {
	now := time.Unix(1000, 0)
	for what, c := range map[string]struct {
		do             func(a *avoidance)
		after          time.Duration
		avoid, silenti bool
	}{
		"unknown":               {func(*avoidance) {}, 0, false, false},
		"fast":                  {func(a *avoidance) { a.observe("b", 10*time.Millisecond, now) }, 0, false, false},
		"slow":                  {func(a *avoidance) { a.observe("b", 2*time.Second, now) }, 4999 * time.Millisecond, true, false},
		"slow, later":           {func(a *avoidance) { a.observe("b", 2*time.Second, now) }, 5 * time.Second, false, false},
		"slow, then fast":       {func(a *avoidance) { a.observe("b", 2*time.Second, now); a.observe("b", 0, now) }, 0, false, false},
		"refused":               {func(a *avoidance) { a.failed("b", false, now) }, 9 * time.Second, true, false},
		"silent":                {func(a *avoidance) { a.failed("b", true, now) }, 9 * time.Second, true, true},
		"silent, later":         {func(a *avoidance) { a.failed("b", true, now) }, 10 * time.Second, false, false},
		"silent, then answered": {func(a *avoidance) { a.failed("b", true, now); a.observe("b", 0, now) }, 0, false, false},
		"another is silent":     {func(a *avoidance) { a.failed("c", true, now) }, 0, false, false},
	} {
		a := new(avoidance)
		c.do(a)
		if x, y := a.avoid("b", now.Add(c.after)), a.silent("b", now.Add(c.after)); x != c.avoid || y != c.silenti {
			t.Errorf("%s: avoid %v, silent %v; want %v, %v", what, x, y, c.avoid, c.silenti)
		}
	}
}

func TestAttemptTime(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		left              time.Duration
		attempts, brokers int
		limit, want       time.Duration
	}{
		{3 * s, 3, 2, 0, s},     // two more may follow elsewhere
		{2 * s, 2, 2, 0, s},     //
		{s, 1, 2, 0, s},         // the last
		{3 * s, 3, 1, 0, 3 * s}, // nowhere else to go
		{3 * s, 3, 1, s / 2, s / 2},
		{3 * s, 3, 2, 2 * s, s},
		{3 * s, 1, 2, s / 2, s / 2},
	} {
		if got := attemptTime(c.left, c.attempts, c.brokers, c.limit); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestPickMeetsTheStrictestWishThatCanBeMet(t *testing.T) {
	qs := []MessageQueue{{"T", "a", 0}, {"T", "a", 1}, {"T", "b", 0}, {"T", "b", 1}}
	is := func(names ...string) func(string) bool {
		return func(b string) bool { return slices.Contains(names, b) }
	}
	for _, c := range []struct {
		wishes []func(string) bool
		want   string // brokers of eight picks, in turn
	}{
		{nil, "a a b b a a b b"},
		{[]func(string) bool{is("a")}, "b b b b b b b b"},
		{[]func(string) bool{is("a", "b")}, "a a b b a a b b"},
		{[]func(string) bool{is("a", "b"), is("b")}, "a a a a a a a a"},
	} {
		n := uint32(3)
		var got []string
		for range 8 {
			got = append(got, pick(qs, func() uint32 { n++; return n }, c.wishes...).Broker)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestRepeats(t *testing.T) {
	code := func(c protocol.ResponseCode) error { return &Error{Code: int(c)} }
	for _, c := range []struct {
		err             error
		elsewhere, want bool
	}{
		{code(protocol.SystemBusy), false, true},
		{code(protocol.SystemBusy), true, true},
		{code(protocol.NoPermission), false, false},
		{code(protocol.NoPermission), true, true},
		{code(protocol.TopicNotExist), false, false},
		{code(protocol.MessageIllegal), true, false},
		{fmt.Errorf("x: %w", ErrUnreachable), false, true},
		{context.DeadlineExceeded, false, true},
		{invalid("x"), true, false},
		{ErrClosed, true, false},
	} {
		if got := repeats(c.err, c.elsewhere); got != c.want {
			t.Errorf("%v, elsewhere %v: %v", c.err, c.elsewhere, got)
		}
	}
}

func TestLanes(t *testing.T) {
	var l lanes
	a, b, c, other := l.queue("T", "k"), l.queue("T", "k"), l.queue("T", "k"), l.queue("T", "x")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, x := range []*laneTurn{a, other, nil} {
		if err := x.wait(ended); err != nil {
			t.Errorf("the first of a lane waits: %v", err)
		}
	}
	if err := b.wait(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("the second doesn't wait: %v", err)
	}
	if err := c.wait(t.Context()); !errors.Is(err, ErrEarlierFailed) || !errors.Is(err, context.Canceled) {
		t.Errorf("behind one that gave up: %v", err)
	}
	c = l.queue("T", "k")
	a.done(nil)
	if err := c.wait(t.Context()); err != nil {
		t.Error(err)
	}
	d, e := l.queue("T", "k"), l.queue("T", "k")
	c.done(errors.New("reason"))
	for _, x := range []*laneTurn{d, e} {
		if err := x.wait(t.Context()); !errors.Is(err, ErrEarlierFailed) || !strings.Contains(err.Error(), "reason") {
			t.Errorf("behind a failed one: %v", err)
		}
	}
	other.done(nil)
	if len(l.m) != 0 {
		t.Errorf("%d lanes are left", len(l.m))
	}
}

func TestRoomIsFairAndBounded(t *testing.T) {
	r := newRoom(2, 100)
	take := func(n int64) (int64, error) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return r.take(ctx, n)
	}
	if _, err := take(60); err != nil {
		t.Fatal(err)
	}
	if _, err := take(41); err == nil {
		t.Error("more bytes than there is room for")
	}
	if _, err := take(40); err != nil {
		t.Error(err)
	}
	if _, err := take(0); err == nil {
		t.Error("more than two")
	}
	r.give(60)
	r.give(40)
	n, err := take(1000)
	if err != nil || n != 100 {
		t.Errorf("a large one took %d, %v", n, err)
	}
	got := make(chan int64, 2)
	for i, size := range []int64{50, 10} { // the small one must not pass the large one
		go func() {
			n, err := r.take(t.Context(), size)
			if err != nil {
				t.Error(err)
			}
			got <- n
		}()
		testkit.Eventually(t, 10*time.Second, "both wait", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.waiting.Len() == i+1 })
	}
	r.give(n)
	if a, b := <-got, <-got; a+b != 60 {
		t.Errorf("%d and %d", a, b)
	}
	r.give(50)
	r.give(10)
	if r.count != 2 || r.bytes != 100 {
		t.Errorf("%d and %d bytes left at the end", r.count, r.bytes)
	}
}

// TestTracesAreJavas: the record of a send is, byte for byte, the one that Java's client wrote.
func TestTracesAreJavas(t *testing.T) {
	var body []byte
	for _, f := range testkit.Frames(t, "testdata/trace.jsonl") {
		if f.Header.ExtFields["b"] == message.TraceTopic {
			n := int(f.Raw[5])<<16 | int(f.Raw[6])<<8 | int(f.Raw[7])
			body = f.Raw[8+n:]
		}
	}
	m := &Message{Topic: "GoldenBasic", Tags: "Tr", Keys: []string{"trk"}}
	got := pub(time.UnixMilli(1796099614649), "DefaultRegion", "golden_producer", m, "7F0000012F0D4E0E2F2A00FA77B60000", "127.0.0.1:30911", 6, 114*time.Millisecond, traceNormal,
		"7F000001000078BF000000000001050D", true)
	if got != string(body) || len(body) == 0 {
		t.Errorf("record %q\nJava's  %q", got, body)
	}
}

// TestAFailedFetchKeepsTheListOfNameServers, whatever the address server says.
func TestAFailedFetchKeepsTheListOfNameServers(t *testing.T) {
	var answer atomic.Value
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if s := answer.Load().(string); s != "" {
			fmt.Fprint(w, s)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer h.Close()
	n := newNames(nil, h.URL)
	for _, c := range []struct{ answer, want string }{
		{"", ""},
		{"a:1;b:2\nignored:3", "a:1 b:2"},
		{"", "a:1 b:2"},
		{"\n", "a:1 b:2"},
		{"no port", "a:1 b:2"},
		{" b:2 ; c:3 ", "b:2 c:3"},
	} {
		answer.Store(c.answer)
		n.fetchOnce(t.Context(), h.Client(), slog.New(slog.DiscardHandler))
		got := n.current()
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("after %q: %q, want %q", c.answer, got, c.want)
		}
	}
}
