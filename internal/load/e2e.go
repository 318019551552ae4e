package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/apogeemq/apogee/internal/message"
)

// EndToEnd sends, receives by long polling, and reports the time from when a message was due to when it came.
func EndToEnd(ctx context.Context, o Options) (*Report, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Size < stampSize {
		return nil, fmt.Errorf("body size of %d: end to end, a body carries a time and needs at least %d bytes", o.Size, stampSize)
	}
	ts, err := topics(ctx, o, 2|4)
	if err != nil {
		return nil, err
	}
	m := newMeter(o, o.Rate > 0)
	m.byDue = true // as the messages that come are
	rs, err := dialReceivers(ctx, m, ts)
	if err != nil {
		return nil, err
	}
	defer rs.close()
	var got arrivals
	for i := range got.parts {
		got.parts[i].h = newHistogram()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var once sync.Once
	var first error
	var wg sync.WaitGroup
	for i, c := range rs.conns {
		part := &got.parts[i%recorders]
		c.arrived = func(c *receiver, records []byte, now time.Duration) error { return got.take(part, c, records, now) }
		for j := range c.queues {
			c.queues[j].next = c.queues[j].max
		}
		wg.Go(func() {
			if err := c.loop(true); err != nil {
				once.Do(func() { first = err })
				cancel() // a consumer that fails ends the run
			}
		})
	}
	ss, err := dialSenders(ctx, m, ts)
	if err == nil {
		err = ss.run(ctx)
	} else {
		m.stop() // the consumers end
	}
	if err == nil {
		got.await(ctx, m)
	}
	rs.close()
	wg.Wait()
	if first != nil {
		err = first
	}
	if err != nil {
		return nil, err
	}
	r := &Report{Run: "e2e", Queues: len(ts), Batch: o.Batch}
	m.report(r)
	all := newHistogram()
	for i := range got.parts {
		all.Merge(got.parts[i].h)
	}
	q := quantiles(all)
	r.EndToEnd, r.Received = &q, got.measured.Load()
	r.Lost = max(r.Messages-r.Received, 0)
	r.Unanswered, r.Unsent = ss.unanswered, ss.unsent
	if err := r.succeeded(); err != nil {
		return r, err
	}
	if r.Received == 0 {
		return r, errors.New("messages were sent, but none was received")
	}
	return r, nil
}

// acknowledged returns how many measured sends were acknowledged.
func (m *meter) acknowledged() (n int64) {
	for _, r := range m.recorders {
		r.mu.Lock()
		n += r.messages
		r.mu.Unlock()
	}
	return n
}

// arrivals are the messages that came.
type arrivals struct {
	measured atomic.Int64
	parts    [recorders]arrivalPart
}

type arrivalPart struct {
	mu sync.Mutex
	h  *hdrhistogram.Histogram
}

// await waits until everything that was acknowledged has come, or for drainWithin.
func (a *arrivals) await(ctx context.Context, m *meter) {
	ctx, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for a.measured.Load() < m.acknowledged() {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// take records the messages of one pull's answer that belong to this run's measured part.
func (a *arrivals) take(p *arrivalPart, c *receiver, records []byte, now time.Duration) error {
	n := int64(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(records) > 0 {
		var m message.Message
		size, err := message.DecodeRecord(records, &m, false)
		if err != nil {
			return fmt.Errorf("broker %s: pull answer: %w", c.nc.RemoteAddr(), err)
		}
		records = records[size:]
		if len(m.Body) < stampSize || binary.BigEndian.Uint64(m.Body[8:]) != c.m.mark() {
			continue
		}
		if due := time.Duration(binary.BigEndian.Uint64(m.Body)); c.m.counts(due) {
			n++
			_ = p.h.RecordValue(value(now - due))
		}
	}
	a.measured.Add(n)
	return nil
}
