package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/client/dedup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func message(id string) *client.Message {
	return &client.Message{Topic: "Orders", Keys: []string{"order-7"}, Body: []byte("pay"), ID: id, Queue: 3, QueueOffset: 41}
}

// events counts what a wrapped handler tells.
type events struct {
	mu  sync.Mutex
	all []dedup.Event
}

func (e *events) observe(_ *client.Message, ev dedup.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

func (e *events) want(t *testing.T, want ...dedup.Event) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if fmt.Sprint(e.all) != fmt.Sprint(want) {
		t.Errorf("events %v, want %v", e.all, want)
	}
}

type handler = func(context.Context, *client.Message) error

func wrap(t *testing.T, h handler, s dedup.Store, group string, opts ...dedup.Option) (handler, *events) {
	t.Helper()
	e := &events{}
	w, err := dedup.Wrap(h, s, group, append([]dedup.Option{dedup.WithObserver(e.observe)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return w, e
}

func memory() *dedup.Memory { return dedup.NewMemory(dedup.MemoryOptions{}) }

func TestAMessageIsHandledOnceInAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		h, e := wrap(t, func(context.Context, *client.Message) error { calls++; return nil }, memory(), "billing", dedup.WithWindow(time.Hour))
		for range 3 {
			if err := h(t.Context(), message("1")); err != nil {
				t.Fatal(err)
			}
		}
		if err := h(t.Context(), message("2")); err != nil {
			t.Fatal(err)
		}
		if calls != 2 {
			t.Errorf("%d calls for two messages", calls)
		}
		time.Sleep(time.Hour)
		if err := h(t.Context(), message("1")); err != nil || calls != 3 {
			t.Errorf("after the window: %v, %d calls", err, calls)
		}
		e.want(t, dedup.Done, dedup.Skipped, dedup.Skipped, dedup.Done, dedup.Done)
	})
}

func TestGroupsHandleApart(t *testing.T) {
	s := memory()
	var calls []string
	for _, group := range []string{"billing", "shipping", "billing"} {
		h, _ := wrap(t, func(context.Context, *client.Message) error { calls = append(calls, group); return nil }, s, group)
		if err := h(t.Context(), message("1")); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(calls) != "[billing shipping]" {
		t.Errorf("calls %v, want each group's once", calls)
	}
}

func TestAFailedMessageIsHandledAgainAtOnce(t *testing.T) {
	bad := errors.New("no money")
	fail := true
	calls := 0
	h, e := wrap(t, func(context.Context, *client.Message) error {
		calls++
		if fail {
			return bad
		}
		return nil
	}, memory(), "billing")
	if err := h(t.Context(), message("1")); !errors.Is(err, bad) {
		t.Fatalf("%v, want the handler's error", err)
	}
	fail = false
	if err := h(t.Context(), message("1")); err != nil || calls != 2 {
		t.Fatalf("%v after %d calls", err, calls)
	}
	e.want(t, dedup.Failed, dedup.Done)
}

func TestAPanicGivesTheClaimUpAndGoesOn(t *testing.T) {
	calls := 0
	h, e := wrap(t, func(context.Context, *client.Message) error {
		if calls++; calls == 1 {
			panic("out of cheese")
		}
		return nil
	}, memory(), "billing")
	func() {
		defer func() {
			if p := recover(); p != "out of cheese" {
				t.Errorf("recovered %v, want the handler's panic", p)
			}
		}()
		_ = h(t.Context(), message("1"))
	}()
	if err := h(t.Context(), message("1")); err != nil || calls != 2 {
		t.Errorf("after the panic: %v, %d calls", err, calls)
	}
	e.want(t, dedup.Failed, dedup.Done)
}

func TestOfConcurrentDeliveriesOneIsHandled(t *testing.T) {
	s := memory()
	entered, leave := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	h, e := wrap(t, func(context.Context, *client.Message) error {
		calls.Add(1)
		close(entered)
		<-leave
		return nil
	}, s, "billing")
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := h(t.Context(), message("1")); err != nil {
			t.Error(err)
		}
	})
	<-entered
	for range 5 { // by another member of the group
		other, _ := wrap(t, func(context.Context, *client.Message) error { calls.Add(1); return nil }, s, "billing")
		if err := other(t.Context(), message("1")); !errors.Is(err, dedup.ErrInProgress) {
			t.Errorf("%v, want ErrInProgress", err)
		}
	}
	close(leave)
	wg.Wait()
	if err := h(t.Context(), message("1")); err != nil {
		t.Error(err)
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
	e.want(t, dedup.Done, dedup.Skipped)
}

// TestACrashLetsTheMessageRunAgainAfterTheLease: what is left of a process that died is its claim.
func TestACrashLetsTheMessageRunAgainAfterTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory()
		calls := 0
		h, _ := wrap(t, func(context.Context, *client.Message) error { calls++; return nil }, s, "billing", dedup.WithLease(time.Minute), dedup.WithKey(dedup.ByMessageKey))
		if _, err := s.Claim(t.Context(), "billing:Orders:order-7", "of the dead", time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		if err := h(t.Context(), message("1")); !errors.Is(err, dedup.ErrInProgress) {
			t.Fatalf("before the lease ended: %v", err)
		}
		time.Sleep(time.Second)
		if err := h(t.Context(), message("1")); err != nil || calls != 1 {
			t.Fatalf("after it: %v, %d calls", err, calls)
		}
	})
}

func TestAClaimIsExtendedWhileTheHandlerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory()
		var second error
		h, e := wrap(t, func(ctx context.Context, _ *client.Message) error {
			time.Sleep(10 * time.Minute)
			other, _ := wrap(t, func(context.Context, *client.Message) error { return errors.New("must not run") }, s, "billing")
			second = other(ctx, message("1"))
			return ctx.Err()
		}, s, "billing", dedup.WithLease(time.Minute))
		if err := h(t.Context(), message("1")); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(second, dedup.ErrInProgress) {
			t.Errorf("a delivery after ten leases: %v", second)
		}
		e.want(t, dedup.Done)
	})
}

// flaky is a store that fails when told to.
type flaky struct {
	dedup.Store
	mu                      sync.Mutex
	claim, confirm, release error
	hang                    bool // claims wait for their context's end
	claims                  int
}

func (f *flaky) set(change func(f *flaky)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *flaky) Claim(ctx context.Context, key, token string, lease time.Duration) (dedup.Outcome, error) {
	f.mu.Lock()
	err, hang := f.claim, f.hang
	f.claims++
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	if err != nil {
		return 0, err
	}
	return f.Store.Claim(ctx, key, token, lease)
}

func (f *flaky) Confirm(ctx context.Context, key, token string, window time.Duration) error {
	f.mu.Lock()
	err := f.confirm
	f.mu.Unlock()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	return f.Store.Confirm(ctx, key, token, window)
}

func (f *flaky) Release(ctx context.Context, key, token string) error {
	f.mu.Lock()
	err := f.release
	f.mu.Unlock()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	return f.Store.Release(ctx, key, token)
}

func TestAHandlerIsToldThatItsClaimIsLost(t *testing.T) {
	for name, lose := range map[string]func(*flaky){
		"the store fails":      func(f *flaky) { f.claim = errors.New("gone") },
		"the store is hanging": func(f *flaky) { f.hang = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &flaky{Store: memory()}
				began := time.Now()
				h, e := wrap(t, func(ctx context.Context, _ *client.Message) error {
					f.set(lose)
					<-ctx.Done()
					if got := context.Cause(ctx); !errors.Is(got, dedup.ErrClaimLost) {
						t.Errorf("cause %v, want ErrClaimLost", got)
					}
					if d := time.Since(began); d < time.Minute-3*time.Second || d > 80*time.Second {
						t.Errorf("canceled after %v, want about the lease of a minute", d)
					}
					f.set(func(f *flaky) { f.claim, f.hang = nil, false })
					return nil // its effect is there all the same
				}, f, "billing", dedup.WithLease(time.Minute))
				if err := h(t.Context(), message("1")); err != nil {
					t.Fatal(err)
				}
				e.want(t, dedup.Done) // nobody had claimed it meanwhile
			})
		})
	}
}

func TestAnotherDeliveryThatClaimedMeanwhileKeepsItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory()
		h, e := wrap(t, func(ctx context.Context, _ *client.Message) error {
			// As after a pause of the process: the lease ends, another member claims, before this one can extend.
			key := "billing:Orders:order-7"
			must := func(err error) {
				if err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Millisecond) // the lease ends
			must(steal(s, key))
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), dedup.ErrClaimLost) {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			return nil
		}, &thief{Memory: s}, "billing", dedup.WithKey(dedup.ByMessageKey))
		if err := h(t.Context(), message("1")); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Claim(t.Context(), "billing:Orders:order-7", "a third", time.Minute); got != dedup.Busy || err != nil {
			t.Errorf("the other's claim is %v, %v, want busy", got, err)
		}
		e.want(t, dedup.Lost)
	})
}

// thief notes the token of the first claim, so that a test can end its lease.
type thief struct {
	*dedup.Memory
}

// Claim implements dedup.Store with a lease that ends at once, as it does for a process that is paused.
func (s *thief) Claim(ctx context.Context, key, token string, _ time.Duration) (dedup.Outcome, error) {
	return s.Memory.Claim(ctx, key, token, time.Nanosecond)
}

// steal claims what another member's lease, which must have ended, no longer holds.
func steal(s dedup.Store, key string) error {
	got, err := s.Claim(context.Background(), key, "another member", time.Hour)
	if err == nil && got != dedup.Claimed {
		err = fmt.Errorf("the claim is %v", got)
	}
	return err
}

func TestWhatAFailingStoreMeans(t *testing.T) {
	gone := errors.New("connection refused")
	ok := func(context.Context, *client.Message) error { return nil }

	t.Run("no claim: the message is given back", func(t *testing.T) {
		h, e := wrap(t, func(context.Context, *client.Message) error { t.Error("handled"); return nil }, &flaky{Store: memory(), claim: gone}, "billing")
		if err := h(t.Context(), message("1")); !errors.Is(err, gone) || !strings.Contains(err.Error(), "billing:1-") {
			t.Errorf("%v, want the store's error and the key", err)
		}
		e.want(t, dedup.Refused)
	})
	t.Run("no claim, fail open: handled", func(t *testing.T) {
		calls := 0
		h, e := wrap(t, func(context.Context, *client.Message) error {
			if calls++; calls == 2 {
				return gone
			}
			return nil
		}, &flaky{Store: memory(), claim: gone}, "billing", dedup.WithFailOpen())
		if err := h(t.Context(), message("1")); err != nil {
			t.Error(err)
		}
		if err := h(t.Context(), message("1")); !errors.Is(err, gone) {
			t.Error(err)
		}
		e.want(t, dedup.Unchecked, dedup.Failed)
	})
	t.Run("fail open, but the delivery ended: not handled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		h, e := wrap(t, func(context.Context, *client.Message) error { t.Error("handled"); return nil }, &flaky{Store: memory(), hang: true}, "billing", dedup.WithFailOpen())
		if err := h(ctx, message("1")); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		e.want(t, dedup.Refused)
	})
	t.Run("no confirmation: the message is acknowledged", func(t *testing.T) {
		f := &flaky{Store: memory(), confirm: gone}
		h, e := wrap(t, ok, f, "billing")
		if err := h(t.Context(), message("1")); err != nil {
			t.Errorf("%v: a message that was handled would be handled again for certain", err)
		}
		if err := h(t.Context(), message("1")); !errors.Is(err, dedup.ErrInProgress) {
			t.Errorf("a further delivery within the lease: %v", err)
		}
		e.want(t, dedup.Unconfirmed, dedup.InProgress)
	})
	t.Run("no release: the handler's error stays", func(t *testing.T) {
		bad := errors.New("no money")
		h, _ := wrap(t, func(context.Context, *client.Message) error { return bad }, &flaky{Store: memory(), release: gone}, "billing")
		if err := h(t.Context(), message("1")); !errors.Is(err, bad) {
			t.Error(err)
		}
	})
	t.Run("a hanging store is waited for no longer than its time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h, _ := wrap(t, ok, &flaky{Store: memory(), hang: true}, "billing", dedup.WithStoreTimeout(time.Second))
			began := time.Now()
			if err := h(t.Context(), message("1")); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		})
	})
}

// TestAHandledMessageIsConfirmedThoughItsQueueIsLost: the context of the handler ended, what it did stays.
func TestAHandledMessageIsConfirmedThoughItsQueueIsLost(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h, e := wrap(t, func(context.Context, *client.Message) error { cancel(); return nil }, &flaky{Store: memory()}, "billing")
	if err := h(ctx, message("1")); err != nil {
		t.Fatal(err)
	}
	if err := h(t.Context(), message("1")); err != nil {
		t.Fatal(err)
	}
	e.want(t, dedup.Done, dedup.Skipped)
}

func TestKeys(t *testing.T) {
	one := message("1")
	other := func(change func(*client.Message)) *client.Message {
		m := message("1")
		change(m)
		return m
	}
	for name, c := range map[string]struct {
		key  func(*client.Message) string
		m    *client.Message
		same bool
	}{
		"id: delivered again":       {dedup.ByID, other(func(m *client.Message) { m.Retries, m.QueueOffset, m.Queue = 3, 99, 0 }), true},
		"id: another id":            {dedup.ByID, message("2"), false},
		"id: another member's body": {dedup.ByID, other(func(m *client.Message) { m.Body = []byte("pay more") }), false},
		"id: another member's tag":  {dedup.ByID, other(func(m *client.Message) { m.Tags = "late" }), false},
		"id: another member's keys": {dedup.ByID, other(func(m *client.Message) { m.Keys = []string{"order-8"} }), false},
		"key: another id":           {dedup.ByMessageKey, message("2"), true},
		"key: another body":         {dedup.ByMessageKey, other(func(m *client.Message) { m.Body = nil }), true},
		"key: another topic":        {dedup.ByMessageKey, other(func(m *client.Message) { m.Topic = "Refunds" }), false},
		"key: one more key":         {dedup.ByMessageKey, other(func(m *client.Message) { m.Keys = append(m.Keys, "late") }), false},
		"key: no keys, so by id":    {dedup.ByMessageKey, other(func(m *client.Message) { m.Keys = nil }), false},
	} {
		if same := c.key(one) == c.key(c.m); same != c.same {
			t.Errorf("%s: same is %v: %s and %s", name, same, c.key(one), c.key(c.m))
		}
	}
	// What is in one field doesn't count as another's.
	a, b := &client.Message{ID: "1", Tags: "x", Body: []byte("y")}, &client.Message{ID: "1", Keys: []string{"x"}, Body: []byte("y")}
	if dedup.ByID(a) == dedup.ByID(b) {
		t.Error("a tag and a key are taken for each other")
	}
}

func TestAMessageWithoutAKeyIsRefused(t *testing.T) {
	h, e := wrap(t, func(context.Context, *client.Message) error { t.Error("handled"); return nil }, memory(), "billing")
	err := h(t.Context(), message(""))
	if !errors.Is(err, dedup.ErrNoKey) || !strings.Contains(err.Error(), "offset 41 of queue 3 of Orders") {
		t.Errorf("%v, want ErrNoKey and the message's place", err)
	}
	e.want(t, dedup.Refused)
}

func TestWrongOptionsAreRefused(t *testing.T) {
	ok := func(context.Context, *client.Message) error { return nil }
	for want, wrap := range map[string]func() (handler, error){
		"the handler is nil": func() (handler, error) { return dedup.Wrap(nil, memory(), "g") },
		"the store is nil":   func() (handler, error) { return dedup.Wrap(ok, nil, "g") },
		`group ""`:           func() (handler, error) { return dedup.Wrap(ok, memory(), "") },
		`group "a:b"`:        func() (handler, error) { return dedup.Wrap(ok, memory(), "a:b") },
		"WithWindow: 0s":     func() (handler, error) { return dedup.Wrap(ok, memory(), "g", dedup.WithWindow(0)) },
		"WithLease: -1s":     func() (handler, error) { return dedup.Wrap(ok, memory(), "g", dedup.WithLease(-time.Second)) },
		"WithStoreTimeout":   func() (handler, error) { return dedup.Wrap(ok, memory(), "g", dedup.WithStoreTimeout(0)) },
		"WithKey: nil":       func() (handler, error) { return dedup.Wrap(ok, memory(), "g", dedup.WithKey(nil)) },
		"WithObserver: nil":  func() (handler, error) { return dedup.Wrap(ok, memory(), "g", dedup.WithObserver(nil)) },
		"WithLogger: nil":    func() (handler, error) { return dedup.Wrap(ok, memory(), "g", dedup.WithLogger(nil)) },
	} {
		if _, err := wrap(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func BenchmarkWrap(b *testing.B) {
	h, err := dedup.Wrap(func(context.Context, *client.Message) error { return nil }, memory(), "billing")
	if err != nil {
		b.Fatal(err)
	}
	m := message("")
	m.Body = make([]byte, 1024)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		m.ID = fmt.Sprint(n)
		if err := h(b.Context(), m); err != nil {
			b.Fatal(err)
		}
	}
}
