package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/apogeemq/apogee/internal/filter"
	"github.com/apogeemq/apogee/internal/rebalance"
)

// Handler handles one message. Returning nil means that it is done; an error, or a panic, that it comes again: see
// RetryAfter, DeadLetter and WithMaxAttempts. ctx ends when the message's queue is lost to another consumer, when
// its time is up (WithHandlerTimeout), or when Close doesn't wait any longer.
type Handler func(ctx context.Context, m *Message) error

// BatchHandler handles several messages of one queue at once. An error means all of them, unless it is a
// *PartialError.
type BatchHandler func(ctx context.Context, ms []*Message) error

// PartialError says which messages of a batch failed, by their places in it; the others are done.
type PartialError struct {
	Failed []int
	Err    error
}

func (e *PartialError) Error() string {
	return fmt.Sprintf("%d messages of the batch failed: %v", len(e.Failed), e.Err)
}

// Unwrap returns the cause.
func (e *PartialError) Unwrap() error { return e.Err }

// retryError is what RetryAfter returns.
type retryError struct {
	after time.Duration
	err   error
}

func (e *retryError) Error() string { return fmt.Sprintf("retry after %s: %v", e.after, e.err) }
func (e *retryError) Unwrap() error { return e.err }

// RetryAfter makes a handler's error ask for another delay than the consumer's back-off. Concurrent consumers give
// messages back to the broker, which knows 18 delays (see Message.DelayLevel): the next longer one is taken.
func RetryAfter(d time.Duration, err error) error { return &retryError{d, err} }

// errDeadLetter marks what DeadLetter returns.
var errDeadLetter = errors.New("goes to the dead-letter queue")

// DeadLetter makes a handler's error send the message to the group's dead-letter queue (%DLQ%group) without further
// attempts.
func DeadLetter(err error) error { return fmt.Errorf("%w: %w", errDeadLetter, err) }

// Expression chooses messages of a topic.
type Expression struct{ kind, text string }

// All lets every message through.
var All = Expression{filter.TypeTag, "*"}

// Tags chooses by tags: "A || B". Empty text and "*" mean all.
func Tags(expression string) Expression { return Expression{filter.TypeTag, expression} }

// SQL chooses by properties, in the SQL92 subset of RocketMQ, on brokers that have it switched on
// (enablePropertyFilter); on others Start fails with their words.
func SQL(expression string) Expression { return Expression{filter.TypeSQL92, expression} }

// subscription is one topic of a consumer.
type subscription struct {
	topic   string // wrapped
	expr    Expression
	tags    *filter.Tags // nil: everything, or decided by the broker
	single  Handler      // this or
	handler BatchHandler // this; neither of Pollers
	version int64        // ms
}

// From says where a group begins in a queue of which it has no offset yet.
type From struct {
	kind int
	at   time.Time
}

const (
	fromLatest = iota
	fromEarliest
	fromTime
)

// FromLatest begins with what is stored after Start returned, on queues made later too; FromEarliest with the oldest
// message there is.
var (
	FromLatest   = From{kind: fromLatest}
	FromEarliest = From{kind: fromEarliest}
)

// FromTime begins with the first message stored at or after t.
func FromTime(t time.Time) From { return From{kind: fromTime, at: t} }

// consumerOptions are what ConsumerOptions set.
type consumerOptions struct {
	subs        []subscription
	ordered     bool
	broadcast   bool
	from        From
	batch       int
	concurrency int
	maxAttempts int
	backoff     func(attempt int) time.Duration
	timeout     time.Duration
	drain       time.Duration

	pullBatch     int
	queueMessages int
	queueBytes    int
	allMessages   int
	allBytes      int
	rate          float64

	strategy       rebalance.Strategy
	commitInterval time.Duration
	rebalanceEvery time.Duration
	offsetsDir     string
	instance       string

	stopWhenDisconnected bool
	hooks                ConsumerHooks
}

// ConsumerHooks are called around a consumer's work, for metrics and tracing. Any may be nil. They run on the
// goroutine of the handler and must be quick.
type ConsumerHooks struct {
	// Handle wraps every call of a handler: it calls next and returns its error, or another.
	Handle func(ctx context.Context, ms []*Message, next func(context.Context) error) error
	// DeadLettered is called for each message that went to the dead-letter queue, or was dropped by a broadcasting
	// consumer, after its last attempt.
	DeadLettered func(m *Message, err error)
}

// ConsumerOption sets something of a Consumer or Poller. An option that can't be right makes NewConsumer fail.
type ConsumerOption func(*consumerOptions) error

func defaultConsumerOptions() consumerOptions {
	return consumerOptions{batch: 1, concurrency: 20, maxAttempts: 17, timeout: 15 * time.Minute, drain: 10 * time.Second,
		pullBatch: 32, queueMessages: 1000, queueBytes: 64 << 20, allMessages: 100_000, allBytes: 512 << 20,
		strategy: rebalance.Average{}, commitInterval: 20 * time.Millisecond, rebalanceEvery: 20 * time.Second}
}

// WithHandler subscribes to a topic and handles its messages one by one.
func WithHandler(topic string, e Expression, h Handler) ConsumerOption {
	if h == nil {
		return func(*consumerOptions) error { return invalid("WithHandler(%q): the handler is nil", topic) }
	}
	return func(o *consumerOptions) error { return o.subscribe(topic, e, h, nil) }
}

// WithBatchHandler subscribes to a topic and handles up to WithBatch messages of one queue at a time.
func WithBatchHandler(topic string, e Expression, h BatchHandler) ConsumerOption {
	return func(o *consumerOptions) error {
		if h == nil {
			return invalid("WithBatchHandler(%q): the handler is nil", topic)
		}
		return o.subscribe(topic, e, nil, h)
	}
}

// WithSubscription subscribes a Poller to a topic.
func WithSubscription(topic string, e Expression) ConsumerOption {
	return func(o *consumerOptions) error { return o.subscribe(topic, e, nil, nil) }
}

func (o *consumerOptions) subscribe(topic string, e Expression, single Handler, batch BatchHandler) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	for _, s := range o.subs {
		if s.topic == topic {
			return invalid("topic %s is subscribed twice", topic)
		}
	}
	s := subscription{topic: topic, expr: e, single: single, handler: batch, version: time.Now().UnixMilli()}
	switch {
	case e.kind == filter.TypeSQL92 && e.text == "":
		return invalid("topic %s: the SQL expression is empty", topic)
	case e.kind != filter.TypeSQL92:
		tags, err := filter.Compile(filter.TypeTag, e.text)
		if err != nil {
			return invalid("topic %s: %s", topic, err)
		}
		s.tags = tags
		if tags == nil {
			s.expr = All
		}
	}
	o.subs = append(o.subs, s)
	return nil
}

// WithOrdered hands over a queue's messages one after the other, in their order: a batch begins when the one before
// is done. A failing message is tried again in its place (after the back-off, default 1 s) until WithMaxAttempts, then
// goes to the dead-letter queue, and the queue goes on. Attempts are counted in memory: a restart begins anew.
func WithOrdered() ConsumerOption {
	return func(o *consumerOptions) error { o.ordered = true; return nil }
}

// WithBroadcast gives every consumer of the group every message. Offsets are kept in a file: see WithOffsetsDir.
// A failing message is tried again here until WithMaxAttempts, and then dropped (ConsumerHooks.DeadLettered).
func WithBroadcast() ConsumerOption {
	return func(o *consumerOptions) error { o.broadcast = true; return nil }
}

// WithOffsetsDir sets the folder of a broadcasting consumer's offsets: <dir>/<instance>/<group>/offsets.json, as Java
// lays them out. Default dir: ~/.rocketmq_offsets; instance names this consumer among those of the host (default
// "DEFAULT"). Two consumers can't share one file: the second is refused.
func WithOffsetsDir(dir, instance string) ConsumerOption {
	return func(o *consumerOptions) error {
		if dir == "" && instance == "" {
			return invalid("WithOffsetsDir: neither a folder nor an instance is given")
		}
		if instance != filepath.Base(instance) && instance != "" {
			return invalid("WithOffsetsDir: instance %q is no plain name", instance)
		}
		o.offsetsDir, o.instance = dir, instance
		return nil
	}
}

func defaultOffsetsDir() string {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "."
	}
	return filepath.Join(home, ".rocketmq_offsets")
}

// WithFrom sets where the group begins in queues of which it has no offset yet. Default FromLatest, as in Java.
func WithFrom(f From) ConsumerOption {
	return func(o *consumerOptions) error {
		if f.kind == fromTime && f.at.IsZero() {
			return invalid("WithFrom: FromTime of the zero time")
		}
		o.from = f
		return nil
	}
}

// WithBatch sets how many messages a BatchHandler, or Poll, gets at most: 1 to 1024, default 1 (32 for Poll).
func WithBatch(n int) ConsumerOption {
	return func(o *consumerOptions) error {
		if !within(n, 1, 1024) {
			return invalid("WithBatch: %d is not within 1 and 1024", n)
		}
		o.batch = n
		return nil
	}
}

// WithConcurrency sets how many handlers run at once, over all queues: 1 to 100,000, default 20. Of an ordered
// consumer each queue has one at most.
func WithConcurrency(n int) ConsumerOption {
	return func(o *consumerOptions) error {
		if !within(n, 1, 100_000) {
			return invalid("WithConcurrency: %d is not within 1 and 100000", n)
		}
		o.concurrency = n
		return nil
	}
}

// WithMaxAttempts sets how often a message is handled at most before it goes to the dead-letter queue: 1 to 10,000,
// default 17, which is Java's 16 retries.
func WithMaxAttempts(n int) ConsumerOption {
	return func(o *consumerOptions) error {
		if !within(n, 1, 10_000) {
			return invalid("WithMaxAttempts: %d is not within 1 and 10000", n)
		}
		o.maxAttempts = n
		return nil
	}
}

// WithBackoff sets how long after its n-th failed attempt (from 1) a message comes again. Of a concurrent consumer
// the broker keeps it meanwhile and knows 18 delays: the next longer one is taken. Default: the broker's ladder, 10 s,
// 30 s, 1 min and so on; for ordered and broadcasting consumers 1 s.
func WithBackoff(f func(attempt int) time.Duration) ConsumerOption {
	return func(o *consumerOptions) error {
		if f == nil {
			return invalid("WithBackoff: nil")
		}
		o.backoff = f
		return nil
	}
}

// WithHandlerTimeout ends the context of a handler that takes longer, and a second later stops to wait for it: the
// message counts as failed, and what the handler returns is not looked at. An ordered queue waits all the same.
// Default 15 minutes.
func WithHandlerTimeout(d time.Duration) ConsumerOption {
	return func(o *consumerOptions) error {
		if d <= 0 {
			return invalid("WithHandlerTimeout: %s isn't positive", d)
		}
		o.timeout = d
		return nil
	}
}

// WithDrainTimeout bounds how long a queue that goes to another consumer waits for handlers that still run; then their
// context ends, and a second later the queue is let go, with what they hold unfinished. Default 10 s.
func WithDrainTimeout(d time.Duration) ConsumerOption {
	return func(o *consumerOptions) error {
		if d < 0 {
			return invalid("WithDrainTimeout: %s is negative", d)
		}
		o.drain = d
		return nil
	}
}

// WithPullBatch sets how many messages are fetched at once: 1 to 1024, default 32. Brokers may give fewer.
func WithPullBatch(n int) ConsumerOption {
	return func(o *consumerOptions) error {
		if !within(n, 1, 1024) {
			return invalid("WithPullBatch: %d is not within 1 and 1024", n)
		}
		o.pullBatch = n
		return nil
	}
}

// WithQueueLimits bounds what is fetched of one queue and not done: messages (default 1000) and bytes (64 MiB). Each
// can be exceeded by one fetch. Unlike in Java, how far apart the offsets are doesn't matter: one message that hangs
// doesn't hold its queue back.
func WithQueueLimits(messages, bytes int) ConsumerOption {
	return func(o *consumerOptions) error {
		if messages < 1 || bytes < 1 {
			return invalid("WithQueueLimits: %d messages and %d bytes: both must be positive", messages, bytes)
		}
		o.queueMessages, o.queueBytes = messages, bytes
		return nil
	}
}

// WithTotalLimits bounds what is fetched over all queues and not done: messages (default 100,000) and bytes (512 MiB).
func WithTotalLimits(messages, bytes int) ConsumerOption {
	return func(o *consumerOptions) error {
		if messages < 1 || bytes < 1 {
			return invalid("WithTotalLimits: %d messages and %d bytes: both must be positive", messages, bytes)
		}
		o.allMessages, o.allBytes = messages, bytes
		return nil
	}
}

// WithRate bounds the messages handled a second, over all queues. Default: no bound.
func WithRate(perSecond float64) ConsumerOption {
	return func(o *consumerOptions) error {
		if !(perSecond > 0) {
			return invalid("WithRate: %v isn't positive", perSecond)
		}
		o.rate = perSecond
		return nil
	}
}

// Strategy decides which consumer of a group gets which queues. All consumers of a group must have the same.
type Strategy struct{ s rebalance.Strategy }

// Java's strategies, hash for hash, so that Java and Go consumers can share a group. StrategyAverage is the default
// of both.
var (
	StrategyAverage         = Strategy{rebalance.Average{}}
	StrategyAverageByCircle = Strategy{rebalance.AverageByCircle{}}
	StrategyConsistentHash  = Strategy{rebalance.ConsistentHash{}}
)

// StrategyConfig gives this consumer exactly these queues, whoever else is in the group: every queue must be named by
// one of its members.
func StrategyConfig(queues ...MessageQueue) Strategy {
	s := rebalance.Config{}
	for _, q := range queues {
		s.Queues = append(s.Queues, rebalance.Queue{Topic: q.Topic, Broker: q.Broker, ID: int32(q.ID)})
	}
	return Strategy{s}
}

// StrategyMachineRoom shares out the queues of brokers in these rooms only; a broker says its room in its name,
// "room@name".
func StrategyMachineRoom(rooms ...string) Strategy {
	return Strategy{rebalance.MachineRoom{Rooms: rooms}}
}

// StrategyMachineRoomNearby shares out each room's queues by inner among the consumers of that room, and those of
// rooms without a consumer among all. The functions say which room a broker and a client id are in; they must agree
// wherever the group runs.
func StrategyMachineRoomNearby(inner Strategy, brokerRoom, clientRoom func(string) string) Strategy {
	return Strategy{rebalance.MachineRoomNearby{Inner: inner.s, Resolver: rooms{brokerRoom, clientRoom}}}
}

// rooms is a resolver of functions.
type rooms struct{ broker, client func(string) string }

// BrokerRoom implements rebalance.Resolver.
func (r rooms) BrokerRoom(q rebalance.Queue) string { return r.broker(q.Broker) }

// ClientRoom implements rebalance.Resolver.
func (r rooms) ClientRoom(id string) string { return r.client(id) }

// WithStrategy sets how queues are shared out. Default StrategyAverage.
func WithStrategy(s Strategy) ConsumerOption {
	return func(o *consumerOptions) error {
		if s.s == nil {
			return invalid("WithStrategy: the zero Strategy")
		}
		o.strategy = s.s
		return nil
	}
}

// WithCommitInterval sets how often finished work is told to the broker at most: what finished since the last time,
// and what was under way, is what a crash brings again. A commit after a quiet time goes at once. 0 to 1 min, default
// 20 ms.
func WithCommitInterval(d time.Duration) ConsumerOption {
	return func(o *consumerOptions) error {
		if !within(d, 0, time.Minute) {
			return invalid("WithCommitInterval: %s is not within 0 and 1m", d)
		}
		o.commitInterval = d
		return nil
	}
}

// WithRebalanceInterval sets how often the group and the queues are looked at when nobody tells of a change. Default
// 20 s, as in Java.
func WithRebalanceInterval(d time.Duration) ConsumerOption {
	return func(o *consumerOptions) error {
		if !within(d, 100*time.Millisecond, 10*time.Minute) {
			return invalid("WithRebalanceInterval: %s is not within 100ms and 10m", d)
		}
		o.rebalanceEvery = d
		return nil
	}
}

// WithStopWhenDisconnected promises the broker that handlers end when the connection to it is lost (their context
// does, at once). Apogee then gives the queues of a consumer that died to others after 1 s instead of 4. Use it when
// handlers respect their context.
func WithStopWhenDisconnected() ConsumerOption {
	return func(o *consumerOptions) error { o.stopWhenDisconnected = true; return nil }
}

// WithConsumerHooks sets hooks for metrics and tracing.
func WithConsumerHooks(h ConsumerHooks) ConsumerOption {
	return func(o *consumerOptions) error { o.hooks = h; return nil }
}

// checkTopic refuses a name that no broker takes (Java's TopicValidator).
func checkTopic(name string) error { return checkName("topic", name, 127) }

// checkGroup is checkTopic for groups (Java's Validators.checkGroup).
func checkGroup(name string) error { return checkName("group", name, 120) }

func checkName(what, name string, limit int) error {
	if name == "" {
		return invalid("the %s is empty", what)
	}
	if len(name) > limit {
		return invalid("%s %q has %d characters, %d are allowed", what, name, len(name), limit)
	}
	for i := range len(name) {
		switch b := name[i]; {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9', b == '_', b == '-', b == '%', b == '|':
		default:
			return invalid("%s %q: %q is not allowed: letters, digits, and _ - %% | are", what, name, b)
		}
	}
	return nil
}
