package client

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apogeemq/apogee/internal/message"
)

// Message traces as Java's clients write them (AsyncTraceDispatcher, TraceDataEncoder): records of fields separated
// by byte 1, each record ended by byte 2, in messages of a topic of their own whose keys are the ids and keys of what
// was traced.

// Sizes and times of Java's AsyncTraceDispatcher.
const (
	traceQueue   = 2048 // records that wait; more are dropped
	traceBatch   = 10
	traceLinger  = 5 * time.Second
	traceMaxSize = 128000 // bytes of one message
	traceTimeout = 5 * time.Second
)

// WithTracing makes the client's producers and consumers write a trace of every message to a topic, for the
// dashboard and mqadmin queryMsgTraceById. topic "" is RMQ_SYS_TRACE_TOPIC, which a broker with traceTopicEnable has.
// Traces are sent in the background; when more than 2048 records wait, further ones are dropped. Default off.
func WithTracing(topic string) Option {
	return func(o *options) error {
		if topic == "" {
			topic = message.TraceTopic
		}
		if err := checkTopic(topic); err != nil {
			return err
		}
		o.traceTopic = topic
		return nil
	}
}

// traceKind is the kind of a message in a trace (the ordinals of Java's MessageType).
type traceKind int

const (
	traceNormal  traceKind = 0
	traceHalf    traceKind = 1
	traceCommit  traceKind = 2
	traceDelayed traceKind = 3
)

// traceRecord is one record, and the keys under which it is to be found.
type traceRecord struct {
	text string
	keys []string
}

// tracer sends traces in the background. A nil tracer does nothing.
type tracer struct {
	c       *Client
	p       *Producer
	topic   string
	queue   chan traceRecord
	closing chan struct{}
	ended   chan struct{}
	dropped atomic.Int64
}

func newTracer(c *Client, topic string) *tracer {
	p, err := c.makeProducer("_INNER_TRACE_PRODUCER-"+strings.ReplaceAll(c.id, "@", "-")+"-1", WithMaxMessageSize(traceMaxSize), WithCompression(NoCompression, 0, 0))
	if err != nil {
		panic(err) // its options are ours
	}
	p.inner = true
	t := &tracer{c: c, p: p, topic: topic, queue: make(chan traceRecord, traceQueue), closing: make(chan struct{}), ended: make(chan struct{})}
	c.run.Go(t.loop)
	return t
}

// close sends what waits, as long as ctx allows.
func (t *tracer) close(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, traceTimeout)
	defer cancel()
	close(t.closing)
	select {
	case <-t.ended:
	case <-ctx.Done():
	}
	if err := t.p.Close(ctx); err != nil {
		t.c.log.Warn("traces were lost at the end", "error", err)
	}
}

func (t *tracer) add(r traceRecord) {
	select {
	case t.queue <- r:
	default:
		if t.dropped.Add(1)%traceQueue == 1 {
			t.c.log.Warn("traces are dropped: the broker takes them too slowly", "dropped", t.dropped.Load())
		}
	}
}

// loop gathers records and sends them, ten at a time or when the first has waited for 5 s.
func (t *tracer) loop(ctx context.Context) {
	defer close(t.ended)
	var held []traceRecord
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case r := <-t.queue:
			if held = append(held, r); len(held) == 1 {
				timer.Reset(traceLinger)
			}
			if len(held) < traceBatch {
				continue
			}
		case <-timer.C:
		case <-ctx.Done():
			return
		case <-t.closing:
			for len(t.queue) > 0 {
				held = append(held, <-t.queue)
			}
			t.send(ctx, held)
			return
		}
		t.send(ctx, held)
		held = nil
	}
}

// send hands records to the producer, as few messages as their size allows.
func (t *tracer) send(ctx context.Context, records []traceRecord) {
	for len(records) > 0 {
		var body []byte
		var keys []string
		n := 0
		for n < len(records) && (n == 0 || len(body)+len(records[n].text) <= traceMaxSize) {
			body = append(body, records[n].text...)
			for _, k := range records[n].keys {
				if k != "" && !slices.Contains(keys, k) {
					keys = append(keys, k)
				}
			}
			n++
		}
		records = records[n:]
		ctx, cancel := context.WithTimeout(ctx, traceTimeout)
		t.p.SendAsync(ctx, &Message{Topic: t.topic, Keys: keys, Body: body}, func(_ *SendResult, err error) {
			cancel()
			if err != nil {
				t.c.log.Debug("a trace was lost", "error", err)
			}
		})
	}
}

// traces reports whether messages of a topic are traced: those with traces in them aren't.
func (t *tracer) traces(topic string) bool {
	return t != nil && !strings.HasPrefix(topic, t.topic)
}

// record joins fields as Java does: an empty one, which is null there, is written as null.
func record(fields ...string) string {
	return strings.Join(fields, string(rune(message.NameSeparator))) + string(rune(message.PropertySeparator))
}

func orNull(s string) string {
	if s == "" {
		return "null"
	}
	return s
}

func millis(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// pub is the record of a message that was sent.
func pub(begin time.Time, region, group string, m *Message, id, storeHost string, body int, cost time.Duration, kind traceKind, offsetID string, ok bool) string {
	return record("Pub", millis(begin), orNull(region), group, m.Topic, id, orNull(m.Tags), orNull(strings.Join(m.Keys, " ")), storeHost, strconv.Itoa(body),
		strconv.FormatInt(cost.Milliseconds(), 10), strconv.Itoa(int(kind)), offsetID, strconv.FormatBool(ok))
}

// trace notes a send. Those that failed leave no trace, as in Java.
func (p *Producer) trace(out *outgoing, res *SendResult, begin time.Time, err error) {
	t := p.c.tracer
	if err != nil || p.inner || out.oneWay || !t.traces(out.topic) || !res.traced {
		return
	}
	cost := time.Since(begin) / time.Duration(len(out.ids))
	r := pub(begin, res.region, p.c.unwrap(p.group), out.m, res.ID, res.addr, len(out.body), cost, out.kind, res.OffsetID, res.Status == StatusOK)
	t.add(traceRecord{r, append(slices.Clone(out.ids), out.m.Keys...)})
}

// endTransaction notes how a transaction ended.
func (t *tracer) endTransaction(now time.Time, region, group string, m *Message, id, storeHost, transaction string, r Resolution, check bool) {
	if !t.traces(m.Topic) {
		return
	}
	t.add(traceRecord{record("EndTransaction", millis(now), orNull(region), group, m.Topic, id, orNull(m.Tags), orNull(strings.Join(m.Keys, " ")), storeHost,
		strconv.Itoa(int(traceCommit)), transaction, r.javaName(), strconv.FormatBool(check)), append([]string{id}, m.Keys...)})
}

// recall notes that a message was called back.
func (t *tracer) recall(now time.Time, region, group, topic, id string, ok bool) {
	if !t.traces(topic) {
		return
	}
	t.add(traceRecord{record("Recall", millis(now), orNull(region), group, topic, id, strconv.FormatBool(ok)), []string{id}})
}

// consumeTrace is the trace of one call of a handler.
type consumeTrace struct {
	t         *tracer
	group     string
	ms        []*Message
	requestID string
	begin     time.Time
}

// Outcomes of a handler, as a trace has them (the ordinals of Java's ConsumeReturnType).
const (
	consumeSuccess   = 0
	consumeTimeOut   = 1
	consumeException = 2
	consumeFailed    = 4
)

// traceConsume notes that a handler of a group is about to get messages. Call after on what it returns once the
// handler has returned. Both do nothing without tracing.
func (c *Client) traceConsume(group string, ms []*Message) *consumeTrace {
	t := c.tracer
	if t == nil || len(ms) == 0 || !t.traces(ms[0].Topic) {
		return nil
	}
	x := &consumeTrace{t: t, group: group, requestID: c.ids.Next(time.Now()), begin: time.Now()}
	for _, m := range ms {
		if strings.EqualFold(m.system[message.PropertyTraceOn], "false") {
			continue
		}
		x.ms = append(x.ms, m)
		t.add(traceRecord{record("SubBefore", millis(x.begin), orNull(m.system[message.PropertyMsgRegion]), group, x.requestID, m.ID, strconv.Itoa(m.Retries),
			orNull(strings.Join(m.Keys, " "))), append([]string{m.ID}, m.Keys...)})
	}
	return x
}

// after notes how the handler ended; outcome is one of the constants above.
func (x *consumeTrace) after(ok bool, outcome int) {
	if x == nil {
		return
	}
	now := time.Now()
	for _, m := range x.ms {
		x.t.add(traceRecord{record("SubAfter", x.requestID, m.ID, strconv.FormatInt(now.Sub(x.begin).Milliseconds()/int64(len(x.ms)), 10), strconv.FormatBool(ok),
			orNull(strings.Join(m.Keys, " ")), strconv.Itoa(outcome), millis(now), x.group), append([]string{m.ID}, m.Keys...)})
	}
}
