package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// bench is a run of this program.
type bench struct {
	c       config
	systems []string
	res     *results
	taken   taken
	fresh   map[string]bool // rows and systems measured in this run: old samples are gone
}

// keep adds a sample.
func (b *bench) keep(row, system, command string, s sample) {
	if b.fresh == nil {
		b.fresh = map[string]bool{}
	}
	if b.res.Samples[row] == nil {
		b.res.Samples[row] = map[string][]sample{}
	}
	if key := row + " " + system; !b.fresh[key] {
		b.fresh[key] = true
		b.res.Samples[row][system] = nil
	}
	b.res.Samples[row][system] = append(b.res.Samples[row][system], s)
	if command != "" && (system == "apogee" || b.res.Commands[row] == "") {
		b.res.Commands[row] = command
	}
	b.res.Taken[row] = b.taken
	fmt.Fprintf(os.Stderr, "%-18s %-8s %s\n", row, system, s)
}

// String lists the figures worth seeing while it runs.
func (s sample) String() string {
	var out []string
	for _, k := range []string{"per_second", "p50", "p99", "p99_9", "ack_p50", "cpu", "anon", "seconds", "idle_cpu", "bytes_a_queue", "growth"} {
		if v, ok := s[k]; ok {
			out = append(out, fmt.Sprintf("%s %s", k, number(v)))
		}
	}
	return strings.Join(out, "  ")
}

// runClient runs a load generator's command and returns its output and the command, written without this machine's
// paths and process ids.
func (b *bench) runClient(ctx context.Context, name string, args ...string) (out []byte, command string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err = cmd.Output()
	shown := append([]string{}, args...)
	for i := range shown {
		if i > 0 && (shown[i-1] == "--pid" || shown[i-1] == "-pid") {
			shown[i] = "PID"
		}
	}
	command = name[strings.LastIndexByte(name, '/')+1:] + " " + strings.Join(shown, " ")
	if err != nil {
		return out, command, fmt.Errorf("%s: %w: %s", command, err, strings.TrimSpace(errs.String()))
	}
	return out, command, nil
}

// apogeeBench runs `apogee bench`.
func (b *bench) apogeeBench(ctx context.Context, s *server, args ...string) (sample, string, error) {
	all := append([]string{"bench"}, args...)
	all = append(all, "--namesrv", s.names, "--pid", fmt.Sprint(s.pid()), "--quiet", "-o", "json")
	out, command, err := b.runClient(ctx, b.c.bin, all...)
	if err != nil {
		return nil, command, err
	}
	type quantiles struct{ P50, P99, P99_9, Max float64 }
	var r struct {
		Seconds   float64
		Messages  float64
		PerSecond float64    `json:"per_second"`
		Latency   quantiles  `json:"latency_us"`
		Service   quantiles  `json:"service_us"`
		Late      quantiles  `json:"late_us"`
		EndToEnd  *quantiles `json:"end_to_end_us"`
		Shed      float64
		Lost      float64
		Refused   []struct {
			Code, Count float64
			Remark      string
		}
		Server struct {
			CPU  float64 `json:"cpu_us_per_message"`
			RSS  float64 `json:"rss_mb"`
			Anon float64 `json:"rss_anon_mb"`
			Peak float64 `json:"rss_anon_peak_mb"`
		}
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return nil, command, fmt.Errorf("%s: %w", command, err)
	}
	x := sample{"per_second": r.PerSecond, "p50": r.Latency.P50, "p99": r.Latency.P99, "p99_9": r.Latency.P99_9, "max": r.Latency.Max, "cpu": r.Server.CPU,
		"rss": r.Server.RSS, "anon": r.Server.Anon, "anon_peak": r.Server.Peak, "messages": r.Messages, "service_p99": r.Service.P99, "service_max": r.Service.Max,
		"late_p50": r.Late.P50, "late_p99": r.Late.P99, "shed": r.Shed, "lost": r.Lost}
	if e := r.EndToEnd; e != nil { // then the quantiles of the row are end to end
		x["ack_p50"], x["ack_p99"], x["ack_p99_9"] = x["p50"], x["p99"], x["p99_9"]
		x["p50"], x["p99"], x["p99_9"], x["max"] = e.P50, e.P99, e.P99_9, e.Max
	}
	for _, f := range r.Refused {
		x["refused"] += f.Count
		x[fmt.Sprintf("refused_%g", f.Code)] += f.Count
	}
	return x, command, nil
}

// send measures sends in a closed loop.
func (b *bench) send(ctx context.Context, s *server, row, topic string, conns, outstanding int, warmup time.Duration) error {
	if b.c.rmqload != "" {
		// Its count is chosen so that it takes about as long: by a short run first, which also warms up.
		per, err := b.rmqSend(ctx, s, "", topic, conns, outstanding, conns*outstanding*200)
		if err != nil {
			return err
		}
		_, err = b.rmqSend(ctx, s, row, topic, conns, outstanding, max(int(per*b.c.seconds.Seconds()), conns*outstanding*10))
		return err
	}
	x, command, err := b.apogeeBench(ctx, s, "produce", "--topic", topic, "--conns", fmt.Sprint(conns), "--outstanding", fmt.Sprint(outstanding), "--size", "1024",
		"--warmup", warmup.String(), "--duration", b.c.seconds.String())
	if err != nil {
		return err
	}
	if x["refused"] > 0 {
		return fmt.Errorf("%s: %s refused %g sends", row, s.system, x["refused"])
	}
	b.keep(row, s.system, command, x)
	return nil
}

var rmqFigure = regexp.MustCompile(`(p50|p99|p99\.9|max|fails|server_cpu|rss|got)=([0-9.]+)`)
var rmqRate = regexp.MustCompile(`: ([0-9]+) msg/s`)

func (b *bench) rmqSend(ctx context.Context, s *server, row, topic string, conns, depth, n int) (float64, error) {
	out, command, err := b.runClient(ctx, b.c.rmqload, "send", "-broker", s.addr, "-topic", topic, "-conns", fmt.Sprint(conns), "-depth", fmt.Sprint(depth), "-size", "1024", "-n", fmt.Sprint(n), "-pid", fmt.Sprint(s.pid()))
	if err != nil {
		return 0, err
	}
	x, err := parseRmqload(string(out))
	if err != nil {
		return 0, err
	}
	if x["fails"] > 0 {
		return 0, fmt.Errorf("%s: %s refused %g sends: %s", row, s.system, x["fails"], out)
	}
	if row != "" {
		if u, err := s.use(); err == nil {
			x["anon"] = u.anon
		}
		b.keep(row, s.system, command, x)
	}
	return x["per_second"], nil
}

// parseRmqload reads a result line of rmqload; of its e2e, the quantiles behind "end-to-end" count.
func parseRmqload(line string) (sample, error) {
	x := sample{}
	ack, rest, e2e := strings.Cut(line, "end-to-end")
	figures := func(prefix, text string) {
		for _, m := range rmqFigure.FindAllStringSubmatch(text, -1) {
			v, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				continue
			}
			switch k := m[1]; k {
			case "p99.9":
				x[prefix+"p99_9"] = v
			case "server_cpu":
				x["cpu"] = v
			case "rss", "fails", "got":
				x[k] = v
			default:
				x[prefix+k] = v
			}
		}
	}
	if e2e {
		figures("ack_", ack)
		figures("", rest)
	} else {
		figures("", line)
	}
	if m := rmqRate.FindStringSubmatch(line); m != nil {
		x["per_second"], _ = strconv.ParseFloat(m[1], 64)
	} else if !e2e {
		return nil, errors.New("the load generator said: " + strings.TrimSpace(line))
	}
	return x, nil
}
