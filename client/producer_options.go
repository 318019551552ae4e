package client

import (
	"context"
	"time"

	"github.com/apogeemq/apogee/internal/message"
)

// ProducerOption sets something of a Producer. An option that can't be right makes NewProducer fail.
type ProducerOption func(*producerOptions) error

type producerOptions struct {
	timeout      time.Duration
	attempt      time.Duration
	retries      int
	retryNotOK   bool
	selector     Selector
	maxSize      int
	batchSize    int
	compression  Compression
	compressOver int
	level        int
	outstanding  int
	bytes        int64
	avoidSlow    bool
	newQueues    int
	check        func(ctx context.Context, m *Message) Resolution
	linger       time.Duration
	lingerBytes  int
	hooks        ProducerHooks
}

// Java's sizes of a message and of a new topic, and the size of a batch.
const (
	maxMessageSize = 4 << 20
	batchSize      = 1 << 20
	newTopicQueues = 4
)

func defaultProducerOptions() producerOptions {
	return producerOptions{timeout: 3 * time.Second, retries: 2, maxSize: maxMessageSize, batchSize: batchSize, compression: ZLIB, compressOver: 4096,
		outstanding: 1024, bytes: 100 << 20, newQueues: newTopicQueues}
}

// WithSendTimeout bounds a call whose context has no deadline, with all its attempts. Default 3 s, as in Java.
func WithSendTimeout(d time.Duration) ProducerOption {
	return func(o *producerOptions) error {
		if d <= 0 {
			return invalid("WithSendTimeout: %s isn't positive", d)
		}
		o.timeout = d
		return nil
	}
}

// WithAttemptTimeout bounds each attempt of a send. By default an attempt may take its share of the time that is left
// when the topic has another broker to go to (left time / attempts left), and all of it when there is no other.
func WithAttemptTimeout(d time.Duration) ProducerOption {
	return func(o *producerOptions) error {
		if d <= 0 {
			return invalid("WithAttemptTimeout: %s isn't positive", d)
		}
		o.attempt = d
		return nil
	}
}

// WithRetries sets how often a failed attempt is repeated; 0 is never. Default 2, as in Java. It counts for
// Send and SendAsync alike. An attempt that got no answer may have stored the message: a repetition can make a
// duplicate, which has the same id.
func WithRetries(n int) ProducerOption {
	return func(o *producerOptions) error {
		if !within(n, 0, 100) {
			return invalid("WithRetries: %d is not within 0 and 100", n)
		}
		o.retries = n
		return nil
	}
}

// WithRetryUnlessOK repeats attempts with another status than StatusOK on another broker, too: more copies in place
// of less certain ones (Java's retryAnotherBrokerWhenNotStoreOK). Default off. It makes duplicates with the same id.
func WithRetryUnlessOK() ProducerOption {
	return func(o *producerOptions) error { o.retryNotOK = true; return nil }
}

// WithQueueSelector picks the queue of every message. Default: the ShardingKey's hash where there is one, else round
// robin over all queues of a topic. It replaces both; SelectQueue and ToQueue go before it. The order of messages
// with one ShardingKey is kept only if the selector gives them one queue.
func WithQueueSelector(s Selector) ProducerOption {
	return func(o *producerOptions) error {
		if s == nil {
			return invalid("WithQueueSelector: nil")
		}
		o.selector = s
		return nil
	}
}

// WithMaxMessageSize sets the largest body in bytes, before compression. Default 4 MiB, as brokers have it
// (maxMessageSize): raise both.
func WithMaxMessageSize(bytes int) ProducerOption {
	return func(o *producerOptions) error {
		if !within(bytes, 1, 15<<20) {
			return invalid("WithMaxMessageSize: %d is not within 1 and %d, which fits a frame", bytes, 15<<20)
		}
		o.maxSize = bytes
		return nil
	}
}

// WithBatchSize sets up to how many bytes SendBatch puts into one request. Default 1 MiB. It is at most the largest
// message's size.
func WithBatchSize(bytes int) ProducerOption {
	return func(o *producerOptions) error {
		if bytes < 1 {
			return invalid("WithBatchSize: %d isn't positive", bytes)
		}
		o.batchSize = bytes
		return nil
	}
}

// Compression is how bodies are compressed. Every RocketMQ consumer from 5.0 on reads all kinds, older ones and the
// Apache Go client ZLIB alone.
type Compression int

// The kinds.
const (
	NoCompression Compression = iota
	ZLIB
	LZ4
	ZSTD
)

func (c Compression) flag() message.SysFlag {
	switch c {
	case ZLIB:
		return message.CompressedZLIB
	case LZ4:
		return message.CompressedLZ4
	case ZSTD:
		return message.CompressedZSTD
	}
	return 0
}

// WithCompression sets how bodies are compressed, from which size on (bytes) and how hard: level 1 (fast) to 9
// (small), or 0 for Java's level (5; for LZ4 the fast one). Default ZLIB, 4096, 0, as in Java. Bodies that don't get
// smaller, and batches, go as they are.
func WithCompression(kind Compression, over, level int) ProducerOption {
	return func(o *producerOptions) error {
		switch {
		case kind < NoCompression || kind > ZSTD:
			return invalid("WithCompression: kind %d is none of NoCompression, ZLIB, LZ4 and ZSTD", kind)
		case over < 0:
			return invalid("WithCompression: a size of %d bytes", over)
		case !within(level, 0, 9):
			return invalid("WithCompression: level %d is not within 0 and 9", level)
		}
		o.compression, o.compressOver, o.level = kind, over, level
		return nil
	}
}

// WithOutstanding bounds what SendAsync has outstanding, by messages and by bytes of their bodies; SendAsync waits
// for room. Default 1024 and 100 MiB, as in Java. A message larger than all bytes goes alone.
func WithOutstanding(messages int, bytes int64) ProducerOption {
	return func(o *producerOptions) error {
		if messages < 1 || bytes < 1 {
			return invalid("WithOutstanding: %d messages and %d bytes, both must be positive", messages, bytes)
		}
		o.outstanding, o.bytes = messages, bytes
		return nil
	}
}

// WithSlowBrokerAvoidance makes the round robin leave out brokers that were slow or failed, for a time that grows
// with how slow they were (2 s for 550 ms up to 30 s for 15 s; 10 s for a failure), as long as there is another.
// Default off, as in Java. Messages that have a queue of their own go there all the same.
func WithSlowBrokerAvoidance() ProducerOption {
	return func(o *producerOptions) error { o.avoidSlow = true; return nil }
}

// WithNewTopicQueues sets with how many queues a topic is asked for that doesn't exist yet, where brokers make topics
// at the first send (autoCreateTopicEnable). Default 4, as in Java; the broker's own limit is smaller or equal.
func WithNewTopicQueues(n int) ProducerOption {
	return func(o *producerOptions) error {
		if !within(n, 1, 1024) {
			return invalid("WithNewTopicQueues: %d is not within 1 and 1024", n)
		}
		o.newQueues = n
		return nil
	}
}

// WithTransactionCheck sets who says what became of a transaction when the broker asks: after a crash, or when
// SendInTransaction ended with Unknown. It is asked for any transaction of the producer's group, also those of other
// processes, by up to 16 goroutines at once; ctx ends when the producer closes. A panic counts as Unknown.
// SendInTransaction needs it.
func WithTransactionCheck(check func(ctx context.Context, m *Message) Resolution) ProducerOption {
	return func(o *producerOptions) error {
		if check == nil {
			return invalid("WithTransactionCheck: nil")
		}
		o.check = check
		return nil
	}
}

// WithAutoBatch gathers messages that Send and SendAsync are given into batches, one for each topic and tag: a batch goes
// when it holds so many bytes, or when its first message has waited for linger. Default off. Java's autoBatch has 10 ms
// and 32 KiB. Messages that are delayed, or have a ShardingKey or a queue of their own, go singly at once. Batches are
// not compressed.
func WithAutoBatch(linger time.Duration, bytes int) ProducerOption {
	return func(o *producerOptions) error {
		if !within(linger, time.Millisecond, 30*time.Second) {
			return invalid("WithAutoBatch: linger %s is not within 1ms and 30s", linger)
		}
		if !within(bytes, 1, 2<<20) {
			return invalid("WithAutoBatch: %d bytes, allowed are 1 to %d", bytes, 2<<20)
		}
		o.linger, o.lingerBytes = linger, bytes
		return nil
	}
}
