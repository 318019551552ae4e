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
// message is to be given back and comes again. A consumer retries it as it does any error.
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
// duplicates go through meanwhile. Default: such a delivery fails and the message comes again.
func WithFailOpen() Option {
	return func(w *wrapper) error {
		w.failOpen = true
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
func Wrap(h func(context.Context, *client.Message) error, store Store, group string, opts ...Option) (func(context.Context, *client.Message) error, error) {
	switch {
	case h == nil:
		return nil, errors.New("dedup: the handler is nil")
	case store == nil:
		return nil, errors.New("dedup: the store is nil: NewMemory makes one")
	case group == "" || strings.Contains(group, ":"):
		return nil, fmt.Errorf("dedup: group %q: want the consumer group's name", group)
	}
	w := &wrapper{handle: h, store: store, group: group, window: DefaultWindow, lease: DefaultLease, timeout: DefaultStoreTimeout,
		key: ByID, observe: func(*client.Message, Event) {}, log: slog.New(slog.DiscardHandler)}
	for _, o := range opts {
		if err := o(w); err != nil {
			return nil, fmt.Errorf("dedup: %w", err)
		}
	}
	return w.deliver, nil
}

type wrapper struct {
	handle                 func(context.Context, *client.Message) error
	store                  Store
	group                  string
	window, lease, timeout time.Duration
	key                    func(*client.Message) string
	failOpen               bool
	observe                func(*client.Message, Event)
	log                    *slog.Logger
}

func (w *wrapper) deliver(ctx context.Context, m *client.Message) error {
	key := w.key(m)
	if key == "" {
		w.observe(m, Refused)
		return fmt.Errorf("dedup: message at offset %d of queue %d of %s: %w", m.QueueOffset, m.Queue, m.Topic, ErrNoKey)
	}
	key = w.group + ":" + key
	token := rand.Text()
	began := time.Now()
	met, err := w.claim(ctx, key, token, w.timeout)
	switch {
	case err != nil && w.failOpen && ctx.Err() == nil:
		w.log.Warn("the message is handled without a claim", "key", key, "error", err)
		err := w.handle(ctx, m)
		w.observe(m, w.eventOf(err, Unchecked))
		return err
	case err != nil:
		w.observe(m, Refused)
		return fmt.Errorf("dedup: claim %s: %w", key, err)
	case met == Handled:
		w.observe(m, Skipped)
		return nil
	case met == Busy:
		w.observe(m, InProgress)
		return fmt.Errorf("dedup: %s: %w", key, ErrInProgress)
	case met != Claimed:
		w.observe(m, Refused)
		return fmt.Errorf("dedup: claim %s: the store answered %v", key, met)
	}
	return w.run(ctx, m, key, token, began)
}

func (w *wrapper) eventOf(err error, ok Event) Event {
	if err != nil {
		return Failed
	}
	return ok
}

func (w *wrapper) claim(ctx context.Context, key, token string, within time.Duration) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return w.store.Claim(ctx, key, token, w.lease)
}

// run calls the handler with a claim that is extended meanwhile, and confirms it or gives it up.
func (w *wrapper) run(ctx context.Context, m *client.Message, key, token string, claimed time.Time) (err error) {
	hctx, cancel := context.WithCancelCause(ctx)
	extended := make(chan struct{})
	go func() {
		defer close(extended)
		w.extend(hctx, cancel, key, token, claimed)
	}()
	returned := false
	defer func() { // by a panic too, which goes on to the consumer
		cancel(nil)
		<-extended
		// The handler's context may have ended with its queue, but what happened must still be written down.
		sctx, stop := context.WithTimeout(context.WithoutCancel(ctx), w.timeout)
		defer stop()
		if !returned || err != nil {
			w.observe(m, Failed)
			w.release(sctx, key, token)
			return
		}
		w.observe(m, w.confirm(sctx, key, token))
	}()
	err = w.handle(hctx, m)
	returned = true
	return err
}

// confirm writes down that the message was handled. Its failure isn't the message's: to have it delivered again would
// handle it again for certain.
func (w *wrapper) confirm(ctx context.Context, key, token string) Event {
	err := w.store.Confirm(ctx, key, token, w.window)
	switch {
	case err == nil:
		return Done
	case errors.Is(err, ErrClaimLost):
		w.log.Warn("the message was handled while another delivery had claimed it; raise the lease", "key", key, "lease", w.lease)
		return Lost
	}
	w.log.Warn("the message was handled and the store could not be told", "key", key, "error", err)
	return Unconfirmed
}

func (w *wrapper) release(ctx context.Context, key, token string) {
	if err := w.store.Release(ctx, key, token); err != nil {
		w.log.Warn("a claim could not be given up: the message waits for its lease to end", "key", key, "lease", w.lease, "error", err)
	}
}

// extend extends the claim every third of the lease until ctx ends. When the claim is another's, or may be since the
// store couldn't be told in time, it cancels ctx. held is when the claim was last known to begin.
func (w *wrapper) extend(ctx context.Context, cancel context.CancelCauseFunc, key, token string, held time.Time) {
	tick := time.NewTicker(w.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asked := time.Now()
		// A call that has begun is waited for: were it abandoned, it could take effect after the claim was given up.
		met, err := w.claim(context.WithoutCancel(ctx), key, token, min(w.timeout, w.lease-asked.Sub(held)))
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && met == Claimed:
			held = asked
		case err == nil, time.Since(held) >= w.lease:
			w.log.Warn("the claim of a message that is being handled is lost", "key", key, "now", met, "error", err)
			cancel(ErrClaimLost)
			return
		}
	}
}
