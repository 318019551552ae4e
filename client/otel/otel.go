// Package otel measures and traces producers and consumers with OpenTelemetry:
//
//	hooks, err := otel.ProducerHooks(otel.Options{})
//	p, err := c.NewProducer("orders", client.WithProducerHooks(hooks))
//
// A producer's span goes with the message, in properties that the propagator names (traceparent, for W3C's), and a
// consumer's span continues it, in whatever language either is written. Names and attributes are those of
// OpenTelemetry's conventions for messaging.
//
// It is a module of its own, so that package client doesn't bring OpenTelemetry with it.
package otel

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/apogeemq/apogee/client"
)

// Options say where spans and measurements go. Zero fields take OpenTelemetry's global ones.
type Options struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// Propagator writes a span's identity into a message's properties and reads it.
	Propagator propagation.TextMapPropagator
	// Group is the consumer's group, an attribute of its spans and measurements.
	Group string
}

const scope = "github.com/apogeemq/apogee/client/otel"

// Keys of OpenTelemetry's conventions for messaging.
const (
	keySystem        = attribute.Key("messaging.system")
	keyOperation     = attribute.Key("messaging.operation.name")
	keyOperationType = attribute.Key("messaging.operation.type")
	keyDestination   = attribute.Key("messaging.destination.name")
	keyPartition     = attribute.Key("messaging.destination.partition.id")
	keyGroup         = attribute.Key("messaging.consumer.group.name")
	keyCount         = attribute.Key("messaging.batch.message_count")
	keyID            = attribute.Key("messaging.message.id")
	keySize          = attribute.Key("messaging.message.body.size")
	keyTag           = attribute.Key("messaging.rocketmq.message.tag")
	keyKeys          = attribute.Key("messaging.rocketmq.message.keys")
	keyMessageGroup  = attribute.Key("messaging.rocketmq.message.group")
	keyError         = attribute.Key("error.type")
	keyServer        = attribute.Key("server.address")
)

// instruments are what both sides measure with.
type instruments struct {
	o        Options
	tracer   trace.Tracer
	duration metric.Float64Histogram
	messages metric.Int64Counter
	attempts metric.Float64Histogram // of producers
}

func newInstruments(o Options, duration, messages string) (*instruments, error) {
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.Propagator == nil {
		o.Propagator = otel.GetTextMapPropagator()
	}
	i := &instruments{o: o, tracer: o.TracerProvider.Tracer(scope)}
	m := o.MeterProvider.Meter(scope)
	var err error
	if i.duration, err = m.Float64Histogram(duration, metric.WithUnit("s")); err != nil {
		return nil, err
	}
	if i.messages, err = m.Int64Counter(messages, metric.WithUnit("{message}")); err != nil {
		return nil, err
	}
	i.attempts, err = m.Float64Histogram("apogee.client.send.attempt.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of single attempts to send; a send makes several when some fail."))
	return i, err
}

// observe measures one operation on n messages.
func (i *instruments) observe(ctx context.Context, begin time.Time, n int, err error, attrs ...attribute.KeyValue) {
	if err != nil {
		attrs = append(attrs, keyError.String(client.Classify(err).Why))
	}
	set := metric.WithAttributes(attrs...)
	i.duration.Record(ctx, time.Since(begin).Seconds(), set)
	i.messages.Add(ctx, int64(n), set)
}

func end(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// describe are the attributes of messages in a span.
func describe(ms []*client.Message) []attribute.KeyValue {
	attrs := []attribute.KeyValue{keySystem.String("rocketmq"), keyDestination.String(ms[0].Topic)}
	if len(ms) > 1 {
		return append(attrs, keyCount.Int(len(ms)))
	}
	m := ms[0]
	attrs = append(attrs, keySize.Int(len(m.Body)))
	if m.ID != "" {
		attrs = append(attrs, keyID.String(m.ID))
	}
	if m.Tags != "" {
		attrs = append(attrs, keyTag.String(m.Tags))
	}
	if len(m.Keys) > 0 {
		attrs = append(attrs, keyKeys.StringSlice(m.Keys))
	}
	if m.ShardingKey != "" {
		attrs = append(attrs, keyMessageGroup.String(m.ShardingKey))
	}
	return attrs
}

// ProducerHooks returns hooks for client.WithProducerHooks. Each send is a span "send TOPIC"; it is measured in
// messaging.client.operation.duration (s) and messaging.client.sent.messages, single attempts in
// apogee.client.send.attempt.duration (s). The error is that of an instrument that can't be made.
func ProducerHooks(o Options) (client.ProducerHooks, error) {
	i, err := newInstruments(o, "messaging.client.operation.duration", "messaging.client.sent.messages")
	if err != nil {
		return client.ProducerHooks{}, err
	}
	return client.ProducerHooks{Send: i.send, Attempt: i.attempt}, nil
}

func (i *instruments) send(ctx context.Context, ms []*client.Message, next func(context.Context) ([]*client.SendResult, error)) error {
	begin := time.Now()
	attrs := []attribute.KeyValue{keySystem.String("rocketmq"), keyDestination.String(ms[0].Topic), keyOperation.String("send"), keyOperationType.String("send")}
	ctx, span := i.tracer.Start(ctx, "send "+ms[0].Topic, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(append(describe(ms), attrs[2:]...)...))
	for _, m := range ms {
		p := maps.Clone(m.Properties) // the caller may use its map elsewhere
		if p == nil {
			p = map[string]string{}
		}
		i.o.Propagator.Inject(ctx, propagation.MapCarrier(p))
		m.Properties = p
	}
	results, err := next(ctx)
	if len(ms) == 1 && err == nil && len(results) == 1 {
		span.SetAttributes(keyID.String(results[0].ID), keyPartition.String(strconv.Itoa(results[0].Queue)))
	}
	i.observe(ctx, begin, len(ms), err, attrs...)
	end(span, err)
	return err
}

func (i *instruments) attempt(a client.Attempt) {
	attrs := []attribute.KeyValue{keySystem.String("rocketmq"), keyDestination.String(a.Queue.Topic), keyServer.String(a.Addr)}
	if a.Err != nil {
		attrs = append(attrs, keyError.String(client.Classify(a.Err).Why))
	}
	i.attempts.Record(context.Background(), a.Took.Seconds(), metric.WithAttributes(attrs...))
}

// ConsumerHooks returns hooks for client.WithConsumerHooks. Each call of a handler is a span "process TOPIC": of one
// message the child of the send's span, of several linked to theirs. It is measured in messaging.process.duration (s)
// and messaging.client.consumed.messages; a message that went to the dead-letter queue is counted with
// messaging.operation.name "dead_letter". The error is that of an instrument that can't be made.
func ConsumerHooks(o Options) (client.ConsumerHooks, error) {
	i, err := newInstruments(o, "messaging.process.duration", "messaging.client.consumed.messages")
	if err != nil {
		return client.ConsumerHooks{}, err
	}
	return client.ConsumerHooks{Handle: i.handle, DeadLettered: i.deadLettered}, nil
}

func (i *instruments) handle(ctx context.Context, ms []*client.Message, next func(context.Context) error) error {
	begin := time.Now()
	attrs := []attribute.KeyValue{keySystem.String("rocketmq"), keyDestination.String(realTopic(ms[0].Topic)), keyOperation.String("process"), keyOperationType.String("process"), keyGroup.String(i.o.Group)}
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(append(describe(ms), attrs[2:]...)...)}
	for _, m := range ms {
		sent := i.o.Propagator.Extract(ctx, propagation.MapCarrier(m.Properties))
		if c := trace.SpanContextFromContext(sent); c.IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: c}))
		}
		if len(ms) == 1 {
			ctx = sent
		}
	}
	ctx, span := i.tracer.Start(ctx, "process "+realTopic(ms[0].Topic), opts...)
	err := next(ctx)
	i.observe(ctx, begin, len(ms), err, attrs...)
	end(span, err)
	return err
}

func (i *instruments) deadLettered(m *client.Message, _ error) {
	i.messages.Add(context.Background(), 1, metric.WithAttributes(keySystem.String("rocketmq"), keyDestination.String(realTopic(m.Topic)), keyOperation.String("dead_letter"), keyGroup.String(i.o.Group)))
}

// realTopic keeps retry topics, one for each group, from making time series of their own.
func realTopic(topic string) string {
	if strings.HasPrefix(topic, "%RETRY%") {
		return "%RETRY%"
	}
	return topic
}
