package dedup

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/apogeemq/apogee/client"
)

// Defaults of the options.
const (
	// DefaultWindow is longer than all of RocketMQ's retries of a message take together (4 h 46 min).
	DefaultWindow = 24 * time.Hour
	// DefaultLease bounds how long a message waits whose process died.
	DefaultLease = time.Minute
	// DefaultStoreTimeout bounds each call of the store.
	DefaultStoreTimeout = 3 * time.Second
)

// ErrInProgress is wrapped by what a handler returns when another delivery of the message is being handled: the
// message is given back and comes again when the lease of the other's claim would have ended (client.RetryAfter).
var ErrInProgress = errors.New("another delivery of the message is being handled")

// ErrNoKey is wrapped by what a handler returns for a message without a key: it is not handled.
var ErrNoKey = errors.New("the message has no key to be known by")

// Event is what became of a delivery.
type Event int

// The events.
const (
	Done        Event = iota + 1 // handled and confirmed
	Skipped                      // handled before: acknowledged without the handler
	InProgress                   // given back: another delivery is being handled
	Failed                       // the handler returned an error or panicked
	Unconfirmed                  // handled, but the store couldn't be told: a further delivery is handled again
	Lost                         // handled, but another delivery had claimed it meanwhile, since the lease had ended
	Unchecked                    // handled without a claim, as WithFailOpen allows
	Refused                      // not handled: the store couldn't be asked, or the message has no key
)

var eventNames = [...]string{"", "done", "skipped", "in progress", "failed", "unconfirmed", "lost", "unchecked", "refused"}

func (e Event) String() string {
	if e < Done || int(e) >= len(eventNames) {
		return fmt.Sprintf("event %d", int(e))
	}
	return eventNames[e]
}

// Option sets something of a wrapped handler. One that can't be right makes Wrap fail.
type Option func(*wrapper) error

// WithWindow sets how long a message that was handled is remembered. Default DefaultWindow. It should be longer than
// the time in which a message may come again: that of all its retries, and of what a producer may repeat.
func WithWindow(d time.Duration) Option {
	return func(w *wrapper) error {
		if d < time.Millisecond {
			return fmt.Errorf("WithWindow: %v: want a millisecond or more", d)
		}
		w.window = d
		return nil
	}
}

// WithLease sets how long a claim lives that isn't extended: a message whose process died waits that long. Default
// DefaultLease. While a handler runs its claim is extended every third of it, so it need not cover the handler's time;
// it must cover a pause of the process and an absence of the store.
func WithLease(d time.Duration) Option {
	return func(w *wrapper) error {
		if d < 10*time.Millisecond {
			return fmt.Errorf("WithLease: %v: want 10 ms or more", d)
		}
		w.lease = d
		return nil
	}
}

// WithStoreTimeout bounds each call of the store. Default DefaultStoreTimeout.
func WithStoreTimeout(d time.Duration) Option {
	return func(w *wrapper) error {
		if d <= 0 {
			return fmt.Errorf("WithStoreTimeout: %v: want a positive time", d)
		}
		w.timeout = d
		return nil
	}
}

// WithKey sets what two deliveries of one message have in common and no two messages share. Default ByID. A message
// for which it returns "" is not handled, and its delivery fails with ErrNoKey.
func WithKey(key func(*client.Message) string) Option {
	return func(w *wrapper) error {
		if key == nil {
			return errors.New("WithKey: nil: want a function, such as ByID or ByMessageKey")
		}
		w.key = key
		return nil
	}
}

// WithFailOpen handles a message when the store can't be asked about it, so that a store that is away stops nothing;
// duplicates go through meanwhile. Default: such a delivery fails and the message comes again after a lease's time.
func WithFailOpen() Option {
	return func(w *wrapper) error {
		w.failOpen = true
		return nil
	}
}

// WithInOrder is for batches of ordered consumers: when a message of a batch can't be claimed, those behind it are given
// back with it. Default: they are handled before it. Wrap, which handles one message at a time, has no use for it.
func WithInOrder() Option {
	return func(w *wrapper) error {
		w.inOrder = true
		return nil
	}
}

// WithObserver has every delivery's event told to observe, for counting. It is called on the handler's goroutine, after
// the handler. Default: nobody is told.
func WithObserver(observe func(*client.Message, Event)) Option {
	return func(w *wrapper) error {
		if observe == nil {
			return errors.New("WithObserver: nil: leave the option out")
		}
		w.observe = observe
		return nil
	}
}

// WithLogger sets where trouble with the store is logged. Default: nowhere.
func WithLogger(l *slog.Logger) Option {
	return func(w *wrapper) error {
		if l == nil {
			return errors.New("WithLogger: nil: leave the option out")
		}
		w.log = l
		return nil
	}
}

// ByID knows a message by its unique id, which its producer made: it is the same when the producer sends it again, and
// when a broker delivers it again.
//
// A digest of body, tags and keys is part of it: the members of a batch of a 5.x Java producer reach consumers with one
// id, the batch's. Members of such a batch that are alike in all three count as one message; where a batch may hold such
// members, use WithKey.
func ByID(m *client.Message) string {
	if m.ID == "" {
		return ""
	}
	h := sha256.New()
	field(h, m.Tags)
	for _, k := range m.Keys {
		field(h, k)
	}
	field(h, "")
	_, _ = h.Write(m.Body)
	return m.ID + "-" + hex.EncodeToString(h.Sum(nil)[:8])
}

// field adds a text that can't run into the next one.
func field(h hash.Hash, s string) {
	_, _ = io.WriteString(h, s)
	_, _ = h.Write([]byte{0})
}

// ByMessageKey knows a message by its topic and its keys, which the application set: two messages about one order are
// one, whoever sent them. A message without keys is known by its id (ByID).
func ByMessageKey(m *client.Message) string {
	if len(m.Keys) == 0 {
		return ByID(m)
	}
	return m.Topic + ":" + strings.Join(m.Keys, " ")
}

// Wrap returns a handler that calls h for messages that weren't handled before. group is the consumer group: each
// group handles a message once. What the wrapped handler returns tells the consumer what to do: nil acknowledges,
// an error has the message delivered again.
func Wrap(h client.Handler, store Store, group string, opts ...Option) (client.Handler, error) {
	if h == nil {
		return nil, errors.New("dedup: the handler is nil")
	}
	w, err := newWrapper(store, group, opts)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, m *client.Message) error {
		c, err := w.take(ctx, m)
		if c == nil {
			return err
		}
		return w.run(ctx, []*claim{c}, func(ctx context.Context) ([]int, error) {
			err := h(ctx, m)
			return all(1, err), err
		})
	}, nil
}

// WrapBatch is Wrap for handlers of batches: h gets those messages of a batch that weren't handled before and that
// nobody else handles now, and isn't called when there are none. Of a message that comes twice in one batch the second
// is given back. See WithInOrder for ordered consumers.
func WrapBatch(h client.BatchHandler, store Store, group string, opts ...Option) (client.BatchHandler, error) {
	if h == nil {
		return nil, errors.New("dedup: the handler is nil")
	}
	w, err := newWrapper(store, group, opts)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, ms []*client.Message) error { return w.batch(ctx, ms, h) }, nil
}

type wrapper struct {
	store                  Store
	group                  string
	window, lease, timeout time.Duration
	key                    func(*client.Message) string
	failOpen, inOrder      bool
	observe                func(*client.Message, Event)
	log                    *slog.Logger
}

func newWrapper(store Store, group string, opts []Option) (*wrapper, error) {
	switch {
	case store == nil:
		return nil, errors.New("dedup: the store is nil: NewMemory makes one")
	case group == "" || strings.Contains(group, ":"):
		return nil, fmt.Errorf("dedup: group %q: want the consumer group's name", group)
	}
	w := &wrapper{store: store, group: group, window: DefaultWindow, lease: DefaultLease, timeout: DefaultStoreTimeout,
		key: ByID, observe: func(*client.Message, Event) {}, log: slog.New(slog.DiscardHandler)}
	for _, o := range opts {
		if err := o(w); err != nil {
			return nil, fmt.Errorf("dedup: %w", err)
		}
	}
	return w, nil
}

// claim is a message that is to be handled. Without a token nothing is claimed (WithFailOpen).
type claim struct {
	m          *client.Message
	key, token string
	since      time.Time // before it was claimed: its lease ends no sooner than a lease later
}

// take claims a message. It returns no claim for one that isn't to be handled: with an error when it is to come again.
func (w *wrapper) take(ctx context.Context, m *client.Message) (*claim, error) {
	key := w.key(m)
	if key == "" {
		w.observe(m, Refused)
		return nil, fmt.Errorf("dedup: message at offset %d of queue %d of %s: %w", m.QueueOffset, m.Queue, m.Topic, ErrNoKey)
	}
	c := &claim{m: m, key: w.group + ":" + key, token: rand.Text(), since: time.Now()}
	cctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	met, err := w.store.Claim(cctx, c.key, c.token, w.lease)
	switch {
	case err == nil && met == Claimed:
		return c, nil
	case err == nil && met == Handled:
		w.observe(m, Skipped)
		return nil, nil
	case err == nil && met == Busy:
		w.observe(m, InProgress)
		return nil, client.RetryAfter(w.lease, fmt.Errorf("dedup: %s: %w", c.key, ErrInProgress))
	case err == nil:
		err = fmt.Errorf("the store answered %v", met)
	case w.failOpen && ctx.Err() == nil:
		w.log.Warn("the message is handled without a claim", "key", c.key, "error", err)
		c.token = ""
		return c, nil
	}
	w.observe(m, Refused)
	// The claim may have been made all the same: no sooner than when it has ended can the message be handled.
	return nil, client.RetryAfter(w.lease, fmt.Errorf("dedup: claim %s: %w", c.key, err))
}

func (w *wrapper) batch(ctx context.Context, ms []*client.Message, h client.BatchHandler) error {
	var claims []*claim
	var places, given []int // in ms, of the claims and of the messages that go back
	var why error
	for i, m := range ms {
		if why != nil && w.inOrder {
			given = append(given, i)
			w.observe(m, InProgress)
			continue
		}
		c, err := w.take(ctx, m)
		switch {
		case c != nil:
			claims, places = append(claims, c), append(places, i)
		case err != nil:
			given = append(given, i)
			why = err
		}
	}
	if len(claims) > 0 {
		run := make([]*client.Message, len(claims))
		for i, c := range claims {
			run[i] = c.m
		}
		var failed []int
		err := w.run(ctx, claims, func(ctx context.Context) ([]int, error) {
			err := h(ctx, run)
			var partial *client.PartialError
			if failed = all(len(run), err); errors.As(err, &partial) {
				failed = partial.Failed
			}
			return failed, err
		})
		switch {
		case err != nil && why == nil && len(claims) == len(ms):
			return err // as if the handler had been called
		case err != nil && why == nil:
			why = cause(err)
		case err != nil:
			// One error stands for all: not the handler's, which may send messages to the dead-letter queue.
			why = fmt.Errorf("%w; and of the batch's handler: %v", why, cause(err))
		}
		for _, i := range failed {
			if i >= 0 && i < len(places) {
				given = append(given, places[i])
			}
		}
	}
	if len(given) == 0 {
		return nil
	}
	slices.Sort(given)
	return &client.PartialError{Failed: given, Err: why}
}

// cause is an error, or what is in it when it says which messages of a batch it is of.
func cause(err error) error {
	if partial := (*client.PartialError)(nil); errors.As(err, &partial) {
		return partial.Err
	}
	return err
}

// all returns the places of n messages when there is an error.
func all(n int, err error) []int {
	if err == nil {
		return nil
	}
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// run calls a handler with claims that are extended meanwhile, and confirms them or gives them up. handle returns the
// places of those that failed.
func (w *wrapper) run(ctx context.Context, claims []*claim, handle func(context.Context) ([]int, error)) error {
	hctx, cancel := context.WithCancelCause(ctx)
	extended := make(chan struct{})
	go func() {
		defer close(extended)
		w.extend(hctx, cancel, claims)
	}()
	failed := all(len(claims), ErrInProgress) // what a panic leaves behind; it goes on to the consumer
	defer func() {
		cancel(nil)
		<-extended
		// The handler's context may have ended with its queue, but what happened must still be written down.
		sctx, stop := context.WithTimeout(context.WithoutCancel(ctx), w.timeout)
		defer stop()
		for i, c := range claims {
			w.end(sctx, c, !slices.Contains(failed, i))
		}
	}()
	places, err := handle(hctx)
	failed = places
	return err
}

// end writes down what became of a message.
func (w *wrapper) end(ctx context.Context, c *claim, ok bool) {
	switch {
	case c.token == "" && ok:
		w.observe(c.m, Unchecked)
	case ok:
		w.observe(c.m, w.confirm(ctx, c))
	default:
		w.observe(c.m, Failed)
		if c.token == "" {
			return
		}
		if err := w.store.Release(ctx, c.key, c.token); err != nil {
			w.log.Warn("a claim could not be given up: the message waits for its lease to end", "key", c.key, "lease", w.lease, "error", err)
		}
	}
}

// confirm writes down that the message was handled. Its failure isn't the message's: to have it delivered again would
// handle it again for certain.
func (w *wrapper) confirm(ctx context.Context, c *claim) Event {
	err := w.store.Confirm(ctx, c.key, c.token, w.window)
	switch {
	case err == nil:
		return Done
	case errors.Is(err, ErrClaimLost):
		w.log.Warn("the message was handled while another delivery had claimed it; raise the lease", "key", c.key, "lease", w.lease)
		return Lost
	}
	w.log.Warn("the message was handled and the store could not be told", "key", c.key, "error", err)
	return Unconfirmed
}

// extend extends claims every third of the lease until ctx ends. When one is another's, or may be since the store
// couldn't be told in time, it cancels ctx.
func (w *wrapper) extend(ctx context.Context, cancel context.CancelCauseFunc, claims []*claim) {
	held := claims[0].since // all leases end a lease later or after that
	tick := time.NewTicker(w.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asked := time.Now()
		met, err := w.again(ctx, claims, min(w.timeout, w.lease-asked.Sub(held)))
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && met == Claimed:
			held = asked
		case err == nil, time.Since(held) >= w.lease:
			w.log.Warn("the claim of a message that is being handled is lost", "now", met, "error", err)
			cancel(ErrClaimLost)
			return
		}
	}
}

// again claims anew what is claimed, all within a time. A call that has begun is waited for, whatever becomes of ctx:
// were it abandoned, it could take effect after the claim was given up.
func (w *wrapper) again(ctx context.Context, claims []*claim, within time.Duration) (Outcome, error) {
	sctx, stop := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer stop()
	for _, c := range claims {
		if c.token == "" {
			continue
		}
		if met, err := w.store.Claim(sctx, c.key, c.token, w.lease); err != nil || met != Claimed {
			return met, err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return Claimed, nil
}
