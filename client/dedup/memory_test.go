package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/apogeemq/apogee/client/dedup"
	"github.com/apogeemq/apogee/client/dedup/storetest"
)

func TestMemoryStore(t *testing.T) {
	storetest.Run(t, func(testing.TB) dedup.Store { return dedup.NewMemory(dedup.MemoryOptions{}) })
}

// simple is what a Memory must do, without a bound: a map that is looked through at every call.
type simple struct {
	now  time.Time
	keys map[string]simpleEntry
}

type simpleEntry struct {
	token string
	end   time.Time
}

func (s *simple) get(key string) (simpleEntry, bool) {
	e, ok := s.keys[key]
	if ok && !e.end.After(s.now) {
		delete(s.keys, key)
		ok = false
	}
	return e, ok
}

func (s *simple) claim(key, token string, d time.Duration) dedup.Outcome {
	e, ok := s.get(key)
	switch {
	case ok && e.token == "":
		return dedup.Handled
	case ok && e.token != token:
		return dedup.Busy
	}
	s.keys[key] = simpleEntry{token, s.now.Add(d)}
	return dedup.Claimed
}

func (s *simple) confirm(key, token string, d time.Duration) error {
	e, ok := s.get(key)
	switch {
	case ok && e.token == "":
		return nil
	case ok && e.token != token:
		return dedup.ErrClaimLost
	}
	s.keys[key] = simpleEntry{"", s.now.Add(d)}
	return nil
}

func (s *simple) release(key, token string) {
	if e, ok := s.get(key); ok && e.token == token {
		delete(s.keys, key)
	}
}

func (s *simple) len() int {
	n := 0
	for k := range s.keys {
		if _, ok := s.get(k); ok {
			n++
		}
	}
	return n
}

func TestMemoryIsWhatTheSimpleStoreIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := &simple{now: time.Unix(1000, 0), keys: map[string]simpleEntry{}}
		m := dedup.NewMemory(dedup.MemoryOptions{Now: func() time.Time { return model.now }})
		ctx := context.Background()
		key, token := rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.SampledFrom([]string{"x", "y", "z"})
		span := rapid.Map(rapid.IntRange(1, 20), func(n int) time.Duration { return time.Duration(n) * time.Second })
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				k, tok, d := key.Draw(t, "key"), token.Draw(t, "token"), span.Draw(t, "lease")
				got, err := m.Claim(ctx, k, tok, d)
				if want := model.claim(k, tok, d); err != nil || got != want {
					t.Fatalf("Claim(%s, %s) = %v, %v, want %v", k, tok, got, err, want)
				}
			},
			"confirm": func(t *rapid.T) {
				k, tok, d := key.Draw(t, "key"), token.Draw(t, "token"), span.Draw(t, "window")
				err := m.Confirm(ctx, k, tok, d)
				if want := model.confirm(k, tok, d); !errors.Is(err, want) {
					t.Fatalf("Confirm(%s, %s) = %v, want %v", k, tok, err, want)
				}
			},
			"release": func(t *rapid.T) {
				k, tok := key.Draw(t, "key"), token.Draw(t, "token")
				if err := m.Release(ctx, k, tok); err != nil {
					t.Fatal(err)
				}
				model.release(k, tok)
			},
			"time goes": func(t *rapid.T) { model.now = model.now.Add(span.Draw(t, "time")) },
			"": func(t *rapid.T) {
				if got, want := m.Len(), model.len(); got != want {
					t.Fatalf("%d keys, want %d", got, want)
				}
			},
		})
	})
}

// TestAFullMemoryForgetsWhatWasHandledFirst: and no claim that lives.
func TestAFullMemoryForgetsWhatWasHandledFirst(t *testing.T) {
	now := time.Unix(1000, 0)
	m := dedup.NewMemory(dedup.MemoryOptions{MaxKeys: 3, Now: func() time.Time { return now }})
	ctx := context.Background()
	claim := func(key string, want dedup.Outcome, wantErr error) {
		t.Helper()
		if got, err := m.Claim(ctx, key, "t-"+key, time.Minute); got != want || !errors.Is(err, wantErr) {
			t.Fatalf("Claim(%s) = %v, %v, want %v, %v", key, got, err, want, wantErr)
		}
	}
	confirm := func(key string, window time.Duration) {
		t.Helper()
		if err := m.Confirm(ctx, key, "t-"+key, window); err != nil {
			t.Fatal(err)
		}
	}
	claim("a", dedup.Claimed, nil)
	claim("b", dedup.Claimed, nil)
	confirm("a", 2*time.Hour)
	confirm("b", time.Hour)
	claim("c", dedup.Claimed, nil)
	claim("d", dedup.Claimed, nil) // b goes: its window ends first
	claim("a", dedup.Handled, nil)
	claim("e", dedup.Claimed, nil) // a goes
	claim("f", 0, dedup.ErrFull)   // c, d, e are claims
	if err := m.Confirm(ctx, "f", "t-f", time.Hour); !errors.Is(err, dedup.ErrFull) {
		t.Fatalf("Confirm in a full store: %v", err)
	}
	claim("c", dedup.Claimed, nil) // its own again
	confirm("c", time.Hour)
	claim("f", dedup.Claimed, nil) // c goes
	now = now.Add(time.Minute)     // the claims end
	claim("g", dedup.Claimed, nil)
	if n := m.Len(); n != 1 {
		t.Errorf("%d keys, want 1", n)
	}
}

func BenchmarkMemory(b *testing.B) {
	m := dedup.NewMemory(dedup.MemoryOptions{})
	ctx := context.Background()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		key := fmt.Sprint("billing:", n)
		if got, err := m.Claim(ctx, key, "t", time.Minute); got != dedup.Claimed || err != nil {
			b.Fatal(got, err)
		}
		if err := m.Confirm(ctx, key, "t", time.Hour); err != nil {
			b.Fatal(err)
		}
	}
}
