package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/apogeemq/apogee/internal/load"
)

// benchCommand measures a RocketMQ from outside, any of them.
func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a RocketMQ: throughput and latency of sends and pulls",
		Long: `Measure a RocketMQ from outside, Apogee or another: it needs the address of a name server.

In a closed loop (no --rate) each connection keeps --outstanding requests on their way. In an open loop (--rate)
each message is due at a time that the server can't move, and its latency counts from there.

One line a second tells on stderr how it goes; the result goes to stdout, as text or with -o json.`,
	}
	cmd.AddCommand(benchRun("produce", "Send messages", load.Produce), benchRun("consume", "Pull a backlog", load.Consume),
		benchRun("e2e", "Send, receive by long polling, and measure from when a message was due to when it came", load.EndToEnd))
	return cmd
}

type benchFunc func(context.Context, load.Options) (*load.Report, error)

func benchRun(use, short string, run benchFunc) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs}
	names := nameServers(cmd)
	var o load.Options
	f := cmd.Flags()
	f.StringVar(&o.Topic, "topic", "bench", "topic; with --topics above 1 the names are TOPIC-0, TOPIC-1 …")
	f.IntVar(&o.Topics, "topics", 1, "topics; those that don't exist are made")
	f.IntVar(&o.Queues, "queues", 4, "queues of a topic that is made, on each broker")
	f.DurationVar(&o.Duration, "duration", 0, "measured time; default 10 s, or none with --count")
	f.Int64Var(&o.Count, "count", 0, "measured messages after which it ends; 0: by --duration alone")
	f.DurationVar(&o.Warmup, "warmup", 2*time.Second, "time before it is measured")
	f.IntVar(&o.PID, "pid", 0, "process id of the server on this machine: adds its CPU time a message and its memory")
	format := f.StringP("output", "o", "text", "text or json")
	quiet := f.Bool("quiet", false, "no progress lines")
	if use != "consume" {
		f.IntVar(&o.Conns, "conns", 4, "connections that send")
		f.IntVar(&o.Outstanding, "outstanding", 16, "requests on their way on each of them")
		f.IntVar(&o.Size, "size", 1024, "bytes of a body")
		rate := 0.0
		if use == "e2e" {
			rate = 1000
		}
		f.Float64Var(&o.Rate, "rate", rate, "messages due a second (open loop); 0: closed loop")
		f.BoolVar(&o.Shed, "shed", false, "open loop: what is due while all places are taken is not sent, and counted")
	}
	if use != "produce" {
		f.IntVar(&o.ConsumeConns, "consume-conns", 0, "connections that pull, the queues spread over them; 0: one a queue, at most 64")
		f.IntVar(&o.Groups, "groups", 1, "consumer groups, the connections spread over them")
		f.IntVar(&o.Batch, "batch", 32, "messages asked for in one pull")
	}
	if use == "consume" {
		f.BoolVar(&o.Loop, "loop", false, "begin again at the end of the backlog, until --duration is over")
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *format != "text" && *format != "json" {
			return fmt.Errorf("--output %s: want text or json", *format)
		}
		if o.Warmup == 0 {
			o.Warmup = -1 // none, not the default
		}
		o.Names = strings.FieldsFunc(*names, func(r rune) bool { return r == ';' || r == ',' })
		if !*quiet {
			o.Progress = func(p load.Progress) { progressLine(cmd.ErrOrStderr(), p) }
		}
		r, err := run(cmd.Context(), o)
		if r != nil {
			if werr := writeReport(cmd.OutOrStdout(), r, *format); err == nil {
				err = werr
			}
		}
		if err != nil {
			return fmt.Errorf("bench %s: %w", use, err)
		}
		return nil
	}
	return cmd
}

func writeReport(w io.Writer, r *load.Report, format string) error {
	if format == "text" {
		return r.WriteText(w)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func progressLine(w io.Writer, p load.Progress) {
	note := ""
	if p.Warming {
		note = "  (warming up)"
	}
	if p.Refused > 0 {
		note += fmt.Sprintf("  %d refused", p.Refused)
	}
	if p.Shed > 0 {
		note += fmt.Sprintf("  %d shed so far", p.Shed)
	}
	fmt.Fprintf(w, "%4.0f s  %9.0f messages/s  p50 %-10v p99 %-10v%s\n", p.At.Seconds(), p.Rate, p.P50.Round(time.Microsecond), p.P99.Round(time.Microsecond), note)
}
