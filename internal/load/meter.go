package load

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// phase is where a run is.
type phase int32

const (
	warming phase = iota
	measuring
	over
)

// meter knows the phase of a run and gathers what its loops did.
type meter struct {
	o     Options
	byDue bool      // a send is measured by when it was due; else by when it was answered
	base  time.Time // times of the run are durations since it
	phase atomic.Int32
	begin atomic.Int64 // of measuring, ns since base; 0 before
	end   atomic.Int64 // of measuring, ns since base; 0 before
	done  atomic.Int64 // messages measured
	shed  atomic.Int64
	full  chan struct{} // closed when Count is reached
	once  sync.Once

	recorders []*recorder
	before    usage
	after     usage
	client    [2]time.Duration
	peak      float64
}

// usage is what a process has used.
type usage struct {
	cpu       time.Duration
	rss, anon float64 // MB
}

// recorder gathers the samples of some loops.
type recorder struct {
	mu       sync.Mutex
	latency  *hdrhistogram.Histogram
	service  *hdrhistogram.Histogram // nil in a closed loop
	late     *hdrhistogram.Histogram // nil in a closed loop
	interval *hdrhistogram.Histogram // since the last progress line
	messages int64
	bytes    int64
	requests int64
	since    int64 // messages since the last progress line
	refused  map[int32]*Refusal
	refusals int64 // since the last progress line
}

// recorders bounds the memory of histograms; loops share them.
const recorders = 16

func newMeter(o Options, open bool) *meter {
	m := &meter{o: o, byDue: open, base: time.Now(), full: make(chan struct{})}
	for range recorders {
		r := &recorder{latency: newHistogram(), interval: newHistogram(), refused: map[int32]*Refusal{}}
		if open {
			r.service, r.late = newHistogram(), newHistogram()
		}
		m.recorders = append(m.recorders, r)
	}
	return m
}

func (m *meter) now() time.Duration { return time.Since(m.base) }

func (m *meter) is() phase { return phase(m.phase.Load()) }

// counts reports whether what was due, left or came at this time belongs to the measured part.
func (m *meter) counts(at time.Duration) bool {
	b, e := m.begin.Load(), m.end.Load()
	return b > 0 && int64(at) >= b && (e == 0 || int64(at) < e)
}

// add counts measured messages; the run is over when they are enough.
func (m *meter) add(n int64) {
	if m.done.Add(n) >= m.o.Count && m.o.Count > 0 {
		m.once.Do(func() { close(m.full) })
	}
}

// run takes the meter through its phases. It returns when measuring is over: its time or its count, ctx, or a loop
// that failed (stop is closed then).
func (m *meter) run(ctx context.Context, stop <-chan struct{}) error {
	if m.o.PID != 0 {
		if _, err := serverUsage(m.o.PID); err != nil {
			m.stop()
			return err
		}
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := m.now()
	wait := m.o.Warmup
	if wait == 0 && m.is() == warming {
		m.start()
	}
	if m.is() == measuring {
		wait = m.o.Duration
	}
	next := time.NewTimer(wait)
	defer next.Stop()
	for {
		select {
		case <-tick.C:
			m.progress(&last)
		case <-next.C:
			if m.is() == warming {
				m.start()
				next.Reset(m.o.Duration)
				continue
			}
			m.stop()
			return nil
		case <-m.full:
			m.stop()
			return nil
		case <-ctx.Done():
			m.stop()
			return ctx.Err()
		case <-stop:
			m.stop()
			return nil
		}
	}
}

func (m *meter) start() {
	if m.o.PID != 0 {
		m.before, _ = serverUsage(m.o.PID)
	}
	m.client[0] = ownCPU()
	m.begin.Store(max(int64(m.now()), 1))
	m.phase.Store(int32(measuring))
}

func (m *meter) stop() {
	m.end.Store(max(int64(m.now()), 1))
	m.phase.Store(int32(over))
	if m.o.PID != 0 {
		m.after, _ = serverUsage(m.o.PID)
		m.peak = max(m.peak, m.after.anon)
	}
	m.client[1] = ownCPU()
}

// progress tells what happened since last.
func (m *meter) progress(last *time.Duration) {
	now := m.now()
	if m.o.PID != 0 && m.is() == measuring {
		if u, err := serverUsage(m.o.PID); err == nil {
			m.peak = max(m.peak, u.anon)
		}
	}
	all := newHistogram()
	var n, refused int64
	for _, r := range m.recorders {
		r.mu.Lock()
		all.Merge(r.interval)
		r.interval.Reset()
		n += r.since
		refused += r.refusals
		r.since, r.refusals = 0, 0
		r.mu.Unlock()
	}
	if m.o.Progress != nil {
		m.o.Progress(Progress{At: now, Warming: m.is() == warming, Rate: float64(n) / (now - *last).Seconds(),
			P50: time.Duration(all.ValueAtQuantile(50)) * unit, P99: time.Duration(all.ValueAtQuantile(99)) * unit, Refused: refused, Shed: m.shed.Load()})
	}
	*last = now
}

// report adds up what the loops recorded.
func (m *meter) report(r *Report) {
	latency, service, late := newHistogram(), newHistogram(), newHistogram()
	refused := map[int32]*Refusal{}
	for _, x := range m.recorders {
		x.mu.Lock()
		latency.Merge(x.latency)
		if x.service != nil {
			service.Merge(x.service)
			late.Merge(x.late)
		}
		r.Messages += x.messages
		r.Bytes += x.bytes
		r.Requests += x.requests
		for code, f := range x.refused {
			if g := refused[code]; g != nil {
				g.Count += f.Count
			} else {
				c := *f
				refused[code] = &c
			}
		}
		x.mu.Unlock()
	}
	r.fill(m.o)
	r.Seconds = time.Duration(m.end.Load() - m.begin.Load()).Seconds()
	if m.begin.Load() == 0 {
		r.Seconds = 0 // ended while it warmed up
	}
	if r.Seconds > 0 {
		r.PerSecond = float64(r.Messages) / r.Seconds
	}
	r.Latency = quantiles(latency)
	if m.o.Rate > 0 {
		s, l := quantiles(service), quantiles(late)
		r.Service, r.Late = &s, &l
	}
	r.Refused, r.Shed = sortRefusals(refused), m.shed.Load()
	perMsg := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(max(r.Messages, 1)) }
	if m.o.PID != 0 && r.Seconds > 0 {
		cpu := m.after.cpu - m.before.cpu
		r.Server = &ServerUse{PID: m.o.PID, CPUSeconds: cpu.Seconds(), CPUPerMsg: perMsg(cpu), Cores: cpu.Seconds() / r.Seconds,
			RSSMB: m.after.rss, RSSNoFilesMB: m.after.anon, PeakAnonMB: m.peak}
	}
	own := m.client[1] - m.client[0]
	r.Client.CPUSeconds, r.Client.CPUPerMsg = own.Seconds(), perMsg(own)
}

func ownCPU() time.Duration {
	u, err := serverUsage(os.Getpid())
	if err != nil {
		return 0
	}
	return u.cpu
}

// value turns a duration into a histogram's value.
func value(d time.Duration) int64 { return max(int64(d/unit), 1) }

// sent records an answered send that was due and left at the given times; code is that of its answer.
func (r *recorder) sent(m *meter, due, left, now time.Duration, size int, code int32, remark string) {
	ok := code == 0
	from := due
	if m.o.Rate == 0 { // in a closed loop nothing is due before it leaves
		from = left
	}
	if ok {
		r.since++
		_ = r.interval.RecordValue(value(now - from))
	} else {
		r.refusals++
	}
	at := now
	if m.byDue { // what is due while it is measured counts, however late its answer
		at = due
	}
	if !m.counts(at) {
		return
	}
	r.requests++
	if !ok {
		r.refuse(code, remark)
		return
	}
	r.messages++
	r.bytes += int64(size)
	_ = r.latency.RecordValue(value(now - from))
	if r.service != nil {
		_ = r.service.RecordValue(value(now - left))
		_ = r.late.RecordValue(value(left - due))
	}
}

func (r *recorder) refuse(code int32, remark string) {
	f := r.refused[code]
	if f == nil {
		f = &Refusal{Code: code, Remark: remark}
		r.refused[code] = f
	}
	f.Count++
}
