package run

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCloseWaitsForEveryGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(t.Context())
		var ended atomic.Int32
		for i := range 5 {
			g.Go(func(ctx context.Context) {
				<-ctx.Done()
				time.Sleep(time.Duration(i) * time.Second)
				ended.Add(1)
			})
		}
		if g.Running() != 5 {
			t.Errorf("%d run", g.Running())
		}
		if err := g.Close(context.Background()); err != nil || ended.Load() != 5 || g.Running() != 0 {
			t.Errorf("%v with %d ended, %d running", err, ended.Load(), g.Running())
		}
		if err := g.Close(context.Background()); err != nil {
			t.Errorf("second close: %v", err)
		}
	})
}

func TestGoIsRefusedAfterStop(t *testing.T) {
	g := NewGroup(context.Background())
	g.Stop()
	if g.Go(func(context.Context) { t.Error("it ran") }) {
		t.Error("it was taken")
	}
	if err := g.Wait(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestDoorAgainstRace starts goroutines from many sides while the owner stops: each that was taken has ended when
// Close returns, none runs later.
func TestDoorAgainstRace(t *testing.T) {
	for range 200 {
		g := NewGroup(context.Background())
		var taken, ended atomic.Int32
		var closed atomic.Bool
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for range 20 {
					if g.Go(func(context.Context) {
						if closed.Load() {
							t.Error("a goroutine of the group runs after Close")
						}
						ended.Add(1)
					}) {
						taken.Add(1)
					}
				}
			})
		}
		runtime.Gosched()
		if err := g.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		closed.Store(true)
		callers.Wait()
		if taken.Load() != ended.Load() {
			t.Fatalf("%d taken, %d ended", taken.Load(), ended.Load())
		}
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(context.Background())
		release := make(chan struct{})
		g.Go(func(context.Context) { <-release })
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := g.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		close(release)
		if err := g.Wait(context.Background()); err != nil {
			t.Errorf("%v", err)
		}
		if err := g.Wait(ctx); err != nil {
			t.Errorf("an ended group, waited for with an ended context: %v", err)
		}
	})
}

func TestStopFromInsideAndGoexit(t *testing.T) {
	g := NewGroup(context.Background())
	g.Go(func(ctx context.Context) {
		g.Go(func(ctx context.Context) { <-ctx.Done() })
		g.Stop()
		runtime.Goexit()
	})
	if err := g.Wait(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestParentEndsTheContextButNotTheDoor(t *testing.T) {
	parent, cancel := context.WithCancel(context.Background())
	g := NewGroup(parent)
	cancel()
	seen := make(chan error, 1)
	if !g.Go(func(ctx context.Context) { seen <- ctx.Err() }) {
		t.Fatal("refused before Stop")
	}
	if err := <-seen; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := g.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
