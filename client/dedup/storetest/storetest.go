// Package storetest checks implementations of dedup.Store. A store's own test calls Run:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t testing.TB) dedup.Store { return mystore.New(…) })
//	}
package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/apogeemq/apogee/client/dedup"
)

const (
	long  = time.Hour             // doesn't end within a test
	short = 20 * time.Millisecond // does, as soon as it is waited for
	wait  = 10 * time.Second      // for what must come
)

// Run checks every promise of dedup.Store. open returns an empty store; it is called once for each check.
func Run(t *testing.T, open func(testing.TB) dedup.Store) {
	for name, check := range map[string]func(*tester){
		"a claimed key is busy for others":                  busy,
		"a confirmed key is handled for everybody":          handled,
		"a released key can be claimed":                     released,
		"only the owner releases":                           notReleased,
		"keys are apart":                                    apart,
		"a lease ends":                                      leaseEnds,
		"a claim is extended by its owner":                  extended,
		"a window ends":                                     windowEnds,
		"what was handled is confirmed after the lease":     lateConfirm,
		"a key that another claimed isn't confirmed":        lostConfirm,
		"of many that claim at once one gets the key":       race,
		"a context that has ended ends the call or is moot": ended,
	} {
		t.Run(name, func(t *testing.T) { check(&tester{TB: t, s: open(t)}) })
	}
}

type tester struct {
	testing.TB
	s dedup.Store
}

func (t *tester) claim(key, token string, lease time.Duration, want dedup.Outcome) {
	t.Helper()
	if got, err := t.s.Claim(context.Background(), key, token, lease); err != nil || got != want {
		t.Fatalf("Claim(%q, %q, %v) = %v, %v, want %v", key, token, lease, got, err, want)
	}
}

func (t *tester) confirm(key, token string, window time.Duration, want error) {
	t.Helper()
	if err := t.s.Confirm(context.Background(), key, token, window); !errors.Is(err, want) {
		t.Fatalf("Confirm(%q, %q, %v) = %v, want %v", key, token, window, err, want)
	}
}

func (t *tester) release(key, token string) {
	t.Helper()
	if err := t.s.Release(context.Background(), key, token); err != nil {
		t.Fatalf("Release(%q, %q) = %v", key, token, err)
	}
}

// eventually claims until the outcome is the wanted one.
func (t *tester) eventually(key, token string, want dedup.Outcome) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	tick := time.NewTicker(short / 4)
	defer tick.Stop()
	for {
		got, err := t.s.Claim(ctx, key, token, long)
		if err == nil && got == want {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("Claim(%q, %q) is still %v, %v after %v, want %v", key, token, got, err, wait, want)
		}
	}
}

func busy(t *tester) {
	t.claim("k", "one", long, dedup.Claimed)
	t.claim("k", "two", long, dedup.Busy)
	t.claim("k", "two", short, dedup.Busy)
}

func handled(t *tester) {
	t.claim("k", "one", long, dedup.Claimed)
	t.confirm("k", "one", long, nil)
	t.claim("k", "two", long, dedup.Handled)
	t.claim("k", "one", long, dedup.Handled)
	t.confirm("k", "two", short, nil) // changes nothing
	t.release("k", "one")
	t.release("k", "two")
	t.claim("k", "three", long, dedup.Handled)
}

func released(t *tester) {
	t.claim("k", "one", long, dedup.Claimed)
	t.release("k", "one")
	t.release("k", "one")
	t.claim("k", "two", long, dedup.Claimed)
}

func notReleased(t *tester) {
	t.release("k", "nobody")
	t.claim("k", "one", long, dedup.Claimed)
	t.release("k", "two")
	t.claim("k", "two", long, dedup.Busy)
}

func apart(t *tester) {
	keys := []string{"k", "K", "k ", "group:k", "group:k:1", "ключ", "a\x00b", "{k}1", "*"}
	for _, k := range keys {
		t.claim(k, "one", long, dedup.Claimed)
	}
	t.confirm(keys[0], "one", long, nil)
	t.release(keys[1], "one")
	t.claim(keys[0], "two", long, dedup.Handled)
	t.claim(keys[1], "two", long, dedup.Claimed)
	for _, k := range keys[2:] {
		t.claim(k, "two", long, dedup.Busy)
	}
}

func leaseEnds(t *tester) {
	t.claim("k", "crashed", short, dedup.Claimed)
	t.eventually("k", "next", dedup.Claimed)
	t.release("k", "crashed") // it isn't its any more
	t.claim("k", "third", long, dedup.Busy)
}

func extended(t *tester) {
	t.claim("k", "one", short, dedup.Claimed)
	t.claim("k", "one", long, dedup.Claimed) // anew, when the first lease has ended meanwhile
	t.claim("other", "two", short, dedup.Claimed)
	t.eventually("other", "three", dedup.Claimed) // the first lease would have ended now
	t.claim("k", "two", long, dedup.Busy)
}

func windowEnds(t *tester) {
	t.claim("k", "one", long, dedup.Claimed)
	t.confirm("k", "one", short, nil)
	t.eventually("k", "two", dedup.Claimed)
}

func lateConfirm(t *tester) {
	t.confirm("k", "late", long, nil)
	t.claim("k", "two", long, dedup.Handled)
}

func lostConfirm(t *tester) {
	t.claim("k", "slow", short, dedup.Claimed)
	t.eventually("k", "next", dedup.Claimed)
	t.confirm("k", "slow", long, dedup.ErrClaimLost)
	t.claim("k", "third", long, dedup.Busy)
	t.confirm("k", "next", long, nil)
	t.claim("k", "third", long, dedup.Handled)
}

func race(t *tester) {
	const members, keys = 8, 50
	var mu sync.Mutex
	owners := map[string][]string{}
	var wg sync.WaitGroup
	for m := range members {
		wg.Go(func() {
			for k := range keys {
				key, token := fmt.Sprint("k", k), fmt.Sprint("member", m)
				got, err := t.s.Claim(context.Background(), key, token, long)
				if err != nil || got == dedup.Handled {
					t.Errorf("Claim(%q) = %v, %v", key, got, err)
				}
				if got == dedup.Claimed {
					mu.Lock()
					owners[key] = append(owners[key], token)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for k := range keys {
		if key := fmt.Sprint("k", k); len(owners[key]) != 1 {
			t.Errorf("%s was claimed by %v, want one", key, owners[key])
		}
	}
}

func ended(t *tester) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	got, err := t.s.Claim(ctx, "k", "one", long)
	if err == nil && got != dedup.Claimed {
		t.Errorf("Claim = %v without an error, want the claim or an error", got)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Claim = %v, want an error that wraps context.Canceled", err)
	}
}
