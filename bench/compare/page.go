package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// check is one condition of a goal.
type check struct {
	what   string
	got    float64
	goal   float64
	atMost bool
	known  bool // both sides were measured
}

func (c check) met() bool {
	if c.atMost {
		return c.got <= c.goal
	}
	return c.got >= c.goal
}

// String says how the condition stands and, where it isn't met, by how much it falls short.
func (c check) String() string {
	sign := "≥"
	if c.atMost {
		sign = "≤"
	}
	switch {
	case !c.known:
		return fmt.Sprintf("%s: **not measured**, goal %s %s", c.what, sign, number(c.goal))
	case c.met():
		return fmt.Sprintf("%s %s, goal %s %s: met", c.what, number(c.got), sign, number(c.goal))
	}
	short := 100 * (c.goal - c.got) / c.goal
	word := "short"
	if c.atMost {
		short, word = -short, "over"
	}
	return fmt.Sprintf("%s %s, goal %s %s: **%.0f %% %s**", c.what, number(c.got), sign, number(c.goal), short, word)
}

// ratio compares the medians of a figure: a's of one row and system by b's.
func (r *results) ratio(what, figure string, row, system, otherRow, other string, goal float64, atMost bool) check {
	a, b := r.stat(row, system, figure), r.stat(otherRow, other, figure)
	c := check{what: what, goal: goal, atMost: atMost, known: a.n > 0 && b.n > 0 && b.med != 0}
	if c.known {
		c.got = a.med / b.med
	}
	return c
}

// value checks a median itself, in a unit of scale.
func (r *results) value(what, figure, row string, scale, goal float64, atMost bool) check {
	a := r.stat(row, "apogee", figure)
	return check{what: what, got: a.med * scale, goal: goal, atMost: atMost, known: a.n > 0}
}

// line is one row of the table.
type line struct {
	work    string
	row     string   // of the samples
	figures []figure // that are shown
	systems []string
	checks  func(r *results) []check
	remark  string
}

type figure struct {
	key, name string
	scale     float64
	unit      string
}

var (
	rate   = figure{"per_second", "", 1, "/s"}
	whole  = figure{"whole_per_second", "in whole batches of 16", 1, "/s"} // JetStream's only
	cpu    = figure{"cpu", "server CPU", 1, "µs a message"}
	p50    = figure{"p50", "p50", 1, "µs"}
	p99    = figure{"p99", "p99", 1, "µs"}
	p999   = figure{"p99_9", "p99.9", 1, "µs"}
	ackP50 = figure{"ack_p50", "ack p50", 1, "µs"}
)

// lines is the goal table of the project, row by row.
func lines() []line {
	both, all := []string{"apogee", "java"}, []string{"apogee", "java", "nats"}
	against := func(row string, times float64, more ...func(*results) check) func(*results) []check {
		return func(r *results) []check {
			out := []check{r.ratio("messages/s by Java's", "per_second", row, "apogee", row, "java", times, false)}
			for _, m := range more {
				out = append(out, m(r))
			}
			return out
		}
	}
	perMessage := func(row string, of float64) func(*results) check {
		return func(r *results) check {
			return r.ratio("CPU a message by Java's", "cpu", row, "apogee", row, "java", of, true)
		}
	}
	return []line{
		{"send 1 KiB, page cache, 4 × 16 outstanding", "send-4x16", []figure{rate, cpu, p50, p99, whole}, all, func(r *results) []check {
			return append(against("send-4x16", 3, perMessage("send-4x16", 0.25))(r),
				r.value("CPU a message, µs", "cpu", "send-4x16", 1, 16, true),
				r.ratio("messages/s by JetStream's", "per_second", "send-4x16", "apogee", "send-4x16", "nats", 1.7, false),
				r.ratio("CPU a message by JetStream's", "cpu", "send-4x16", "apogee", "send-4x16", "nats", 1, true))
		}, ""},
		{"send, page cache, 64 × 1", "send-64x1", []figure{rate, cpu, p50, p99}, both, against("send-64x1", 3), ""},
		{"send, page cache, 1 × 1", "send-1x1", []figure{rate, cpu, p50, p99}, both, against("send-1x1", 3, func(r *results) check { return r.value("p50, µs", "p50", "send-1x1", 1, 70, true) }), ""},
		{"send, flushed before the answer, 1 × 1", "flushed-1x1", []figure{rate, cpu, p50, p99}, both, against("flushed-1x1", 10), ""},
		{"send, flushed, 4 × 16", "flushed-4x16", []figure{rate, cpu, p50, p99, whole}, all, func(r *results) []check {
			return append(against("flushed-4x16", 5)(r), r.ratio("messages/s by JetStream's with sync_interval: always", "per_second", "flushed-4x16", "apogee", "flushed-4x16", "nats", 10, false))
		}, ""},
		{"send, flushed, 16 × 16", "flushed-16x16", []figure{rate, cpu, p50, p99}, both, func(r *results) []check {
			return append(against("flushed-16x16", 4)(r), r.ratio("messages/s by our own page-cache mode's", "per_second", "flushed-16x16", "apogee", "send-16x16", "apogee", 0.6, false))
		}, ""},
		{"send, page cache, 16 × 16 (for the row above)", "send-16x16", []figure{rate, cpu, p50, p99}, both, nil, ""},
		{"pull of a backlog in the page cache, 32 a pull", "pull-32", []figure{rate, cpu, p50, p99}, both, against("pull-32", 2, perMessage("pull-32", 0.5)), "latency is a pull's"},
		{"the same, 1 a pull", "pull-1", []figure{rate, cpu, p50, p99}, both, against("pull-1", 2, perMessage("pull-1", 0.5)), "latency is a pull's"},
		{"end to end at 2,000/s, open loop", "e2e", []figure{p50, p99, p999, ackP50, cpu}, both, func(r *results) []check {
			return []check{r.value("p50, ms", "p50", "e2e", 1e-3, 0.4, true), r.value("p99, ms", "p99", "e2e", 1e-3, 1.5, true), r.value("p99.9, ms", "p99_9", "e2e", 1e-3, 5, true)}
		}, "from when a message was due to when it came"},
		{"start to first acknowledged send, empty", "start-empty", []figure{{"seconds", "", 1, "s"}}, both, func(r *results) []check {
			return []check{r.value("seconds", "seconds", "start-empty", 1, 0.1, true)}
		}, "a process's start included, a Java name server's not"},
		{"the same, 2.7 GB after a clean stop", "start-clean", []figure{{"seconds", "", 1, "s"}}, both, func(r *results) []check {
			return []check{r.value("seconds", "seconds", "start-clean", 1, 0.2, true)}
		}, "the files are in the page cache"},
		{"the same, 2.7 GB after kill -9", "start-killed", []figure{{"seconds", "", 1, "s"}}, both, func(r *results) []check {
			return []check{r.value("seconds", "seconds", "start-killed", 1, 1, true)}
		}, "killed in the middle of sends"},
		{"resident memory under the first row's load", "memory", []figure{{"anon_peak", "peak without mapped files", 1, "MB"}, {"growth", "growth from the second quarter to the last", 1, "MB"}, {"messages", "messages", 1, ""}}, []string{"apogee"}, func(r *results) []check {
			return []check{r.value("peak, MB", "anon_peak", "memory", 1, 300, true)}
		}, "goal: an hour's worth; see the duration in the command"},
		{"10,000 topics × 8 queues, one message each in turn", "topics", []figure{rate, {"per_second_first", "when each queue is new", 1, "/s"}, cpu, {"bytes_a_queue", "memory", 1, "bytes a queue"}, {"idle_cpu", "idle CPU", 1, "% of a processor"}}, both, func(r *results) []check {
			return append(against("topics", 3)(r), r.value("memory a queue, bytes", "bytes_a_queue", "topics", 1, 1024, true), r.value("idle CPU, %", "idle_cpu", "topics", 1, 1, true))
		}, "memory: resident, without mapped files, less that of an empty server"},
		{"2,000 consumers with parked pulls on 2,000 queues, 1,000 sends/s", "parked", []figure{p50, p99, p999, cpu}, both, func(r *results) []check {
			return []check{r.value("end to end p99, ms", "p99", "parked", 1e-3, 5, true)}
		}, "a connection each"},
		{"twice the sustainable load", "overload", []figure{rate, {"peak", "carried before", 1, "/s"}, {"closed", "in a closed loop", 1, "/s"}, {"service_p99", "p99 of what is accepted", 1, "µs"}, {"service_max", "max", 1, "µs"}, {"refused", "refused", 1, ""}}, []string{"apogee"}, func(r *results) []check {
			return []check{r.value("throughput by what it carried before", "ratio", "overload", 1, 0.95, false)}
		}, "goal: 5 minutes; see the duration in the command. Offered in an open loop; what finds no place on the connections isn't sent. The generator's own work comes out of the same processors, so what is carried is measured with the same loop"},
		{"our Go client by the Apache Go client and the Java client", "clients", nil, nil, nil, "not measured yet: the public client is being finished"},
	}
}

var systemNames = map[string]string{"apogee": "Apogee", "java": "Java 5.3.3", "nats": "NATS JetStream"}

// writePage renders all samples.
func writePage(path string, r *results) error {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# Benchmarks\n")
	p("Written by `make compare`; the samples are in `%s` beside it. Each figure is the median of the turns, with the lowest and the", "benchmarks.json")
	p("highest in brackets; one without brackets was measured once. The systems take turns on one machine, each on a fresh folder, driven by the same load generator in a")
	p("process of its own; server and client share the machine's processors. CPU is the server process's, user and system, from")
	p("`/proc`; memory is resident memory without pages of mapped files. **Compare ratios, not figures of different machines or days.**\n")
	if few := r.fewTurns(5); len(few) > 0 {
		p("**Preliminary:** fewer than five turns were taken of %s.\n", strings.Join(few, ", "))
	}
	p("| work | | measured | goal |")
	p("|---|---|---|---|")
	for _, l := range lines() {
		if l.systems == nil {
			p("| %s | | **%s** | |", l.work, l.remark)
			continue
		}
		var verdict []string
		if l.checks != nil {
			for _, c := range l.checks(r) {
				verdict = append(verdict, c.String())
			}
		}
		for i, s := range l.systems {
			var f []string
			for _, x := range l.figures {
				if st := r.stat(l.row, s, x.key); st.n > 0 {
					f = append(f, strings.TrimSpace(fmt.Sprintf("%s %s %s", x.name, st.scaled(x.scale), x.unit)))
				}
			}
			if f == nil {
				f = []string{"**not measured yet**"}
			}
			work, goal := "", ""
			if i == 0 {
				work, goal = l.work, strings.Join(verdict, "<br>")
				if l.remark != "" {
					work += "<br>" + l.remark
				}
			}
			p("| %s | %s | %s | %s |", work, systemNames[s], strings.Join(f, "<br>"), goal)
		}
	}
	p("\nNSQ isn't in the table: its server's module can't be had from the module proxy where this is built. It would not be a")
	p("like-for-like row either: NSQ keeps messages in memory and writes them to disk only past a limit, so a publish's answer")
	p("promises neither the operating system's cache nor the disk. JetStream without `sync_interval: always` answers when the operating")
	p("system has the bytes, as page-cache mode here and in Java does; with it, it flushes each message before the answer.\n")
	if len(r.Notes) > 0 {
		for _, row := range keys(r.Notes) {
			p("- %s: %s", row, r.Notes[row])
		}
		p("")
	}
	p("## Taken with\n")
	seen := map[taken][]string{}
	var order []taken
	for _, row := range keys(r.Taken) {
		t := r.Taken[row]
		t.Fdatasync = "" // measured anew in each run: the rows' own is not worth a paragraph each
		if seen[t] == nil {
			order = append(order, t)
		}
		seen[t] = append(seen[t], row)
	}
	for _, t := range order {
		p("**%s**\n", strings.Join(seen[t], ", "))
		for _, f := range [][2]string{{"date", t.Date}, {"processor", t.CPU}, {"memory", t.Memory}, {"kernel", t.Kernel}, {"disk of the stores", t.Disk}, {"bare flushes", r.Taken[seen[t][0]].Fdatasync},
			{"Apogee", "commit " + t.Commit + ", " + t.Go + ", default settings but for flushDiskType"}, {"Java", t.Java + ": " + t.JavaSettings}, {"NATS", t.NATS}, {"load generator", t.Client}, {"load average before", t.Load}} {
			if f[1] != "" {
				p("- %s: %s", f[0], f[1])
			}
		}
		p("")
	}
	p("## Commands\n")
	p("Everything: `JAVA_PEER=… make compare`. Of each row, the measured part:\n\n```")
	for _, row := range keys(r.Commands) {
		p("%-24s %s", row, r.Commands[row])
	}
	p("```")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

func keys[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// fewTurns names the rows with fewer than n samples.
func (r *results) fewTurns(n int) (rows []string) {
	for _, row := range keys(r.Samples) {
		for _, s := range r.Samples[row] {
			if len(s) < n {
				rows = append(rows, row)
				break
			}
		}
	}
	return rows
}
