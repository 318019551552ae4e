package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/client/dedup"
)

// batchOf are messages with ids.
func batchOf(ids ...string) []*client.Message {
	var out []*client.Message
	for _, id := range ids {
		out = append(out, message(id))
	}
	return out
}

// batcher is a handler of batches that notes what it got and returns what it is told to.
type batcher struct {
	got [][]string
	err error
}

func (b *batcher) handle(_ context.Context, ms []*client.Message) error {
	var ids []string
	for _, m := range ms {
		ids = append(ids, m.ID)
	}
	b.got = append(b.got, ids)
	return b.err
}

func (b *batcher) want(t *testing.T, want string) {
	t.Helper()
	if got := fmt.Sprint(b.got); got != want {
		t.Errorf("handled %s, want %s", got, want)
	}
}

func wrapBatch(t *testing.T, b *batcher, s dedup.Store, opts ...dedup.Option) (client.BatchHandler, *events) {
	t.Helper()
	e := &events{}
	w, err := dedup.WrapBatch(b.handle, s, "billing", append([]dedup.Option{dedup.WithObserver(e.observe), dedup.WithKey(byID)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return w, e
}

func byID(m *client.Message) string { return m.ID }

// elsewhere claims an id for another member.
func elsewhere(t *testing.T, s dedup.Store, id string) {
	t.Helper()
	if got, err := s.Claim(t.Context(), "billing:"+id, "another member", time.Hour); got != dedup.Claimed || err != nil {
		t.Fatal(got, err)
	}
}

// wantFailed checks which messages of a batch go back, and that the others don't.
func wantFailed(t *testing.T, err error, want ...int) *client.PartialError {
	t.Helper()
	var partial *client.PartialError
	if !errors.As(err, &partial) || !slices.Equal(partial.Failed, want) {
		t.Fatalf("%v, want messages %v back", err, want)
	}
	return partial
}

func TestABatchHasOnlyWhatWasNotHandled(t *testing.T) {
	b, s := &batcher{}, memory()
	h, e := wrapBatch(t, b, s)
	for _, ids := range [][]string{{"1", "2"}, {"2", "3", "1", "4"}, {"1", "4"}} {
		if err := h(t.Context(), batchOf(ids...)); err != nil {
			t.Fatal(err)
		}
	}
	b.want(t, "[[1 2] [3 4]]") // and no call for the last one
	e.want(t, dedup.Done, dedup.Done, dedup.Skipped, dedup.Skipped, dedup.Done, dedup.Done, dedup.Skipped, dedup.Skipped)
}

func TestABusyMessageOfABatchGoesBackAlone(t *testing.T) {
	b, s := &batcher{}, memory()
	h, _ := wrapBatch(t, b, s)
	elsewhere(t, s, "2")
	partial := wantFailed(t, h(t.Context(), batchOf("1", "2", "3", "3")), 1, 3) // 3 comes twice
	if !errors.Is(partial.Err, dedup.ErrInProgress) {
		t.Errorf("%v, want ErrInProgress", partial.Err)
	}
	b.want(t, "[[1 3]]")
}

func TestInOrderNothingOvertakesABusyMessage(t *testing.T) {
	b, s := &batcher{}, memory()
	h, e := wrapBatch(t, b, s, dedup.WithInOrder())
	elsewhere(t, s, "2")
	wantFailed(t, h(t.Context(), batchOf("1", "2", "3")), 1, 2)
	b.want(t, "[[1]]")
	e.want(t, dedup.InProgress, dedup.InProgress, dedup.Done)
}

func TestWhatABatchHandlerReturns(t *testing.T) {
	bad := errors.New("no money")
	t.Run("an error is of all", func(t *testing.T) {
		b := &batcher{err: bad}
		h, e := wrapBatch(t, b, memory())
		if err := h(t.Context(), batchOf("1", "2")); !errors.Is(err, bad) {
			t.Fatal(err)
		}
		b.err = nil
		if err := h(t.Context(), batchOf("1", "2")); err != nil {
			t.Fatal(err)
		}
		b.want(t, "[[1 2] [1 2]]")
		e.want(t, dedup.Failed, dedup.Failed, dedup.Done, dedup.Done)
	})
	t.Run("a partial error is of some, counted in the whole batch", func(t *testing.T) {
		b, s := &batcher{}, memory()
		h, _ := wrapBatch(t, b, s)
		if err := h(t.Context(), batchOf("1")); err != nil {
			t.Fatal(err)
		}
		b.err = &client.PartialError{Failed: []int{1, 7}, Err: bad} // place 7 is none
		partial := wantFailed(t, h(t.Context(), batchOf("1", "2", "3", "4")), 2)
		if !errors.Is(partial.Err, bad) {
			t.Errorf("%v, want the handler's error", partial.Err)
		}
		b.err = nil
		if err := h(t.Context(), batchOf("1", "2", "3", "4")); err != nil {
			t.Fatal(err)
		}
		b.want(t, "[[1] [2 3 4] [3]]")
	})
	t.Run("a message for the dead-letter queue takes no busy one along", func(t *testing.T) {
		b, s := &batcher{err: client.DeadLetter(bad)}, memory()
		h, _ := wrapBatch(t, b, s)
		elsewhere(t, s, "2")
		partial := wantFailed(t, h(t.Context(), batchOf("1", "2")), 0, 1)
		if errors.Is(partial.Err, bad) || !errors.Is(partial.Err, dedup.ErrInProgress) || !strings.Contains(partial.Err.Error(), "no money") {
			t.Errorf("%v, want ErrInProgress with the handler's words", partial.Err)
		}
	})
}

func TestABatchsClaimsAreExtendedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory()
		h, err := dedup.WrapBatch(func(ctx context.Context, _ []*client.Message) error {
			time.Sleep(10 * time.Minute)
			for _, id := range []string{"1", "2", "3"} {
				if got, err := s.Claim(ctx, "billing:"+id, "another member", time.Minute); got != dedup.Busy || err != nil {
					t.Errorf("%s after ten leases: %v, %v", id, got, err)
				}
			}
			return ctx.Err()
		}, s, "billing", dedup.WithKey(byID), dedup.WithLease(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if err := h(t.Context(), batchOf("1", "2", "3")); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAFailingStoreGivesABatchBack(t *testing.T) {
	gone := errors.New("connection refused")
	b := &batcher{}
	h, e := wrapBatch(t, b, &flaky{Store: memory(), claim: gone})
	partial := wantFailed(t, h(t.Context(), batchOf("1", "2")), 0, 1)
	if !errors.Is(partial.Err, gone) || len(b.got) > 0 {
		t.Errorf("%v, handled %v", partial.Err, b.got)
	}
	e.want(t, dedup.Refused, dedup.Refused)

	h, e = wrapBatch(t, b, &flaky{Store: memory(), claim: gone}, dedup.WithFailOpen())
	if err := h(t.Context(), batchOf("1", "2")); err != nil {
		t.Fatal(err)
	}
	e.want(t, dedup.Unchecked, dedup.Unchecked)

	if _, err := dedup.WrapBatch(nil, memory(), "billing"); err == nil {
		t.Error("a nil handler was taken")
	}
	if _, err := dedup.WrapBatch(b.handle, nil, "billing"); err == nil {
		t.Error("a nil store was taken")
	}
}
