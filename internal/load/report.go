package load

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report is the outcome of a run; its JSON is the output of `apogee bench -o json`.
type Report struct {
	Run         string  `json:"run"`  // produce, consume or e2e
	Loop        string  `json:"loop"` // open or closed
	Connections int     `json:"connections"`
	Outstanding int     `json:"outstanding"` // a connection
	Size        int     `json:"size"`        // bytes of a body
	Topics      int     `json:"topics"`
	Queues      int     `json:"queues"` // of all topics together
	Rate        float64 `json:"rate,omitempty"`
	Batch       int     `json:"batch,omitempty"`

	Seconds   float64 `json:"seconds"` // measured
	Messages  int64   `json:"messages"`
	PerSecond float64 `json:"per_second"`
	Bytes     int64   `json:"bytes"` // of bodies sent, or of records received
	Requests  int64   `json:"requests,omitempty"`

	// Latency is, of a send, from when it was due (open loop) or left (closed loop) to its answer; of a pull, from its
	// leaving to its answer.
	Latency Quantiles `json:"latency_us"`
	// Service is, in an open loop, from when a send left to its answer.
	Service *Quantiles `json:"service_us,omitempty"`
	// Late is by how much the generator itself was late, in an open loop: from due to leaving.
	Late *Quantiles `json:"late_us,omitempty"`
	// EndToEnd is from when a message was due to when it was received.
	EndToEnd *Quantiles `json:"end_to_end_us,omitempty"`

	Refused    []Refusal `json:"refused,omitempty"`
	Shed       int64     `json:"shed,omitempty"`       // due, but not sent
	Unanswered int64     `json:"unanswered,omitempty"` // sent, but not answered until the end
	Unsent     int64     `json:"unsent,omitempty"`     // due, but not sent until the end
	Received   int64     `json:"received,omitempty"`   // end to end, of the measured ones
	Lost       int64     `json:"lost,omitempty"`       // acknowledged, but not received until the end

	Server *ServerUse `json:"server,omitempty"`
	Client ClientUse  `json:"client"`
}

// Quantiles are of durations, in microseconds.
type Quantiles struct {
	Count int64   `json:"count"`
	Min   float64 `json:"min"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99_9"`
	Max   float64 `json:"max"`
}

// Refusal counts answers of one response code other than success.
type Refusal struct {
	Code   int32  `json:"code"`
	Count  int64  `json:"count"`
	Remark string `json:"remark"` // of the first
}

// ServerUse is what the server's process used while it was measured.
type ServerUse struct {
	PID          int     `json:"pid"`
	CPUSeconds   float64 `json:"cpu_seconds"`
	CPUPerMsg    float64 `json:"cpu_us_per_message"`
	Cores        float64 `json:"cores"`            // CPU seconds a second
	RSSMB        float64 `json:"rss_mb"`           // at the end
	RSSNoFilesMB float64 `json:"rss_anon_mb"`      // of it, without pages of mapped files
	PeakAnonMB   float64 `json:"rss_anon_peak_mb"` // the most that was seen, once a second
}

// ClientUse is what the load generator itself used.
type ClientUse struct {
	CPUSeconds float64 `json:"cpu_seconds"`
	CPUPerMsg  float64 `json:"cpu_us_per_message"`
	Go         string  `json:"go"`
}

// unit is the resolution of histograms.
const unit = 100 * time.Nanosecond

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(2*time.Minute/unit), 3)
}

func quantiles(h *hdrhistogram.Histogram) Quantiles {
	us := func(v int64) float64 { return float64(v) * float64(unit) / float64(time.Microsecond) }
	return Quantiles{Count: h.TotalCount(), Min: us(h.Min()), Mean: h.Mean() * float64(unit) / float64(time.Microsecond),
		P50: us(h.ValueAtQuantile(50)), P90: us(h.ValueAtQuantile(90)), P99: us(h.ValueAtQuantile(99)), P999: us(h.ValueAtQuantile(99.9)), Max: us(h.Max())}
}

func (q Quantiles) String() string {
	return fmt.Sprintf("p50 %s  p90 %s  p99 %s  p99.9 %s  max %s", micros(q.P50), micros(q.P90), micros(q.P99), micros(q.P999), micros(q.Max))
}

// micros writes microseconds so that people can read them.
func micros(us float64) string {
	switch {
	case us < 1000:
		return fmt.Sprintf("%.1f µs", us)
	case us < 1_000_000:
		return fmt.Sprintf("%.2f ms", us/1000)
	}
	return fmt.Sprintf("%.2f s", us/1_000_000)
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s "+format+"\n", append([]any{name}, args...)...)
	}
	line(r.Run, "%d messages in %.2f s: %.0f messages/s, %.1f MB/s", r.Messages, r.Seconds, r.PerSecond, float64(r.Bytes)/1e6/max(r.Seconds, 1e-9))
	setting := fmt.Sprintf("%s loop, %d connections, bodies of %d bytes, %d queues of %d topics", r.Loop, r.Connections, r.Size, r.Queues, r.Topics)
	switch {
	case r.Run == "consume":
		setting = fmt.Sprintf("%d connections, %d queues of %d topics, %d messages a pull at most, %.1f on average", r.Connections, r.Queues, r.Topics, r.Batch, float64(r.Messages)/float64(max(r.Requests, 1)))
	case r.Rate > 0:
		setting += fmt.Sprintf(", %g due a second", r.Rate)
	default:
		setting += fmt.Sprintf(", %d outstanding on each", r.Outstanding)
	}
	line("setting", "%s", setting)
	line("latency", "%s", r.Latency)
	if r.Service != nil {
		line("service", "%s (from leaving, not from due)", r.Service)
	}
	if r.EndToEnd != nil {
		line("end to end", "%s", r.EndToEnd)
		line("received", "%d, lost %d", r.Received, r.Lost)
	}
	if r.Late != nil {
		line("late", "%s (the generator's own delay)", r.Late)
	}
	for _, x := range r.Refused {
		line("refused", "%d with code %d: %s", x.Count, x.Code, x.Remark)
	}
	if r.Shed > 0 {
		line("shed", "%d due while every place was taken", r.Shed)
	}
	if r.Unanswered > 0 {
		line("unanswered", "%d", r.Unanswered)
	}
	if r.Unsent > 0 {
		line("unsent", "%d were due, but could not leave until the end", r.Unsent)
	}
	if s := r.Server; s != nil {
		line("server", "%.2f µs of CPU a message, %.2f cores, %.0f MB resident, %.0f MB without mapped files (peak %.0f)", s.CPUPerMsg, s.Cores, s.RSSMB, s.RSSNoFilesMB, s.PeakAnonMB)
	}
	line("client", "%.2f µs of CPU a message", r.Client.CPUPerMsg)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) fill(o Options) {
	r.Connections, r.Outstanding, r.Size, r.Topics, r.Rate = o.Conns, o.Outstanding, o.Size, o.Topics, o.Rate
	r.Loop = "closed"
	if o.Rate > 0 {
		r.Loop = "open"
	}
	r.Client.Go = runtime.Version()
}

func sortRefusals(m map[int32]*Refusal) []Refusal {
	var out []Refusal
	for _, x := range m {
		out = append(out, *x)
	}
	slices.SortFunc(out, func(a, b Refusal) int { return int(a.Code - b.Code) })
	return out
}
