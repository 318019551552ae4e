package otel_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/apogeemq/apogee/apogeetest"
	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/client/otel"
)

func short(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestASpanGoesFromTheSenderToTheHandler through a real server, and both are measured.
func TestASpanGoesFromTheSenderToTheHandler(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	reader := sdkmetric.NewManualReader()
	o := otel.Options{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)), MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		Propagator: propagation.TraceContext{}, Group: "g"}
	sending, err := otel.ProducerHooks(o)
	if err != nil {
		t.Fatal(err)
	}
	consuming, err := otel.ConsumerHooks(o)
	if err != nil {
		t.Fatal(err)
	}
	s := apogeetest.Start(t)
	c, err := client.New(client.WithNameServers(s.NameServer()))
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.NewProducer("p", client.WithProducerHooks(sending))
	if err != nil {
		t.Fatal(err)
	}
	mine := map[string]string{"mine": "1"}
	if _, err := p.Send(short(t), &client.Message{Topic: "Spans", Tags: "T", Properties: mine, Body: []byte("one")}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.SendBatch(short(t), []*client.Message{{Topic: "Spans", Body: []byte("two")}, {Topic: "Spans", Body: []byte("three")}}); err != nil {
		t.Fatal(err)
	}
	if len(mine) != 1 {
		t.Errorf("the caller's properties became %v", mine)
	}
	handled := make(chan trace.SpanContext, 3)
	co, err := c.NewConsumer("g", client.WithConsumerHooks(consuming), client.WithFrom(client.FromEarliest), client.WithMaxAttempts(1),
		client.WithHandler("Spans", client.All, func(ctx context.Context, m *client.Message) error {
			handled <- trace.SpanContextFromContext(ctx)
			if string(m.Body) == "three" {
				return errors.New("no")
			}
			return nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	if err := co.Start(short(t)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		<-handled
	}
	if err := c.Close(short(t)); err != nil {
		t.Fatal(err)
	}
	sent := map[trace.SpanID]bool{}
	var processed, failed int
	for _, x := range spans.GetSpans() {
		if x.Name == "send Spans" && x.SpanKind == trace.SpanKindProducer {
			sent[x.SpanContext.SpanID()] = true
		}
	}
	for _, x := range spans.GetSpans() {
		if x.Name == "process Spans" && x.SpanKind == trace.SpanKindConsumer && sent[x.Parent.SpanID()] && len(x.Links) == 1 {
			processed++
			if len(x.Events) > 0 {
				failed++
			}
		}
	}
	if len(sent) != 2 || processed != 3 || failed != 1 {
		t.Errorf("%d sends, %d handled with their span as parent, %d of these failed", len(sent), processed, failed)
	}
	var data metricdata.ResourceMetrics
	if err := reader.Collect(short(t), &data); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, sc := range data.ScopeMetrics {
		for _, m := range sc.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, x := range d.DataPoints {
					got[m.Name] += x.Value
				}
			case metricdata.Histogram[float64]:
				for _, x := range d.DataPoints {
					got[m.Name] += int64(x.Count)
				}
			}
		}
	}
	for name, want := range map[string]int64{"messaging.client.operation.duration": 2, "messaging.client.sent.messages": 3, "apogee.client.send.attempt.duration": 2,
		"messaging.process.duration": 3, "messaging.client.consumed.messages": 4} { // three handled, one of them dead-lettered
		if got[name] != want {
			t.Errorf("%s: %d, want %d; all: %v", name, got[name], want, got)
		}
	}
}
