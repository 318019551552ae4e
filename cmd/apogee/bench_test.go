package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/apogeemq/apogee/internal/load"
)

// bench runs `apogee bench ARGS -o json` and returns its report, its other output and its error.
func bench(t *testing.T, namesrv string, args ...string) (load.Report, string, error) {
	t.Helper()
	cmd := benchCommand()
	var out, progress bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&progress)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append(args, "--namesrv", namesrv, "-o", "json"))
	err := cmd.ExecuteContext(timeout(t))
	var r load.Report
	if out.Len() > 0 {
		if jerr := json.Unmarshal(out.Bytes(), &r); jerr != nil {
			t.Fatalf("%v: %s", jerr, out.Bytes())
		}
	}
	return r, progress.String(), err
}

// TestBenchCountsWhatTheServerHas: what the reports say agrees with the server's own offsets.
func TestBenchCountsWhatTheServerHas(t *testing.T) {
	s, _ := startServer(t, t.TempDir(), "flushDiskType=ASYNC_FLUSH")
	sent := int64(0)
	for _, args := range [][]string{
		{"--conns", "1", "--outstanding", "1", "--count", "300"},
		{"--conns", "3", "--outstanding", "7", "--count", "3000", "--size", "5000"},
		{"--conns", "2", "--rate", "4000", "--count", "500"},
	} {
		args = append([]string{"produce", "--topic", "B", "--topics", "5", "--queues", "3", "--warmup", "0", "--pid", fmt.Sprint(os.Getpid())}, args...)
		r, _, err := bench(t, s.NamesrvAddr, args...)
		if err != nil {
			t.Fatal(args, err)
		}
		if r.Queues != 15 || r.Messages == 0 || r.Latency.Count != r.Messages || r.Latency.P50 <= 0 || r.Latency.P999 < r.Latency.P50 || r.Unanswered != 0 || len(r.Refused) != 0 || r.Server == nil {
			t.Errorf("%v: %+v", args, r)
		}
		if open := r.Rate > 0; open != (r.Loop == "open") || open != (r.Service != nil) {
			t.Errorf("%v: %+v", args, r)
		}
		// Those on their way at the end are not measured, but they are stored.
		sent += r.Messages
	}
	r, _, err := bench(t, s.NamesrvAddr, "consume", "--topic", "B", "--topics", "5", "--batch", "7", "--consume-conns", "4")
	if err != nil {
		t.Fatal(err)
	}
	if r.Messages < sent || r.Messages > sent+3+3*7+2*16 || r.Connections != 4 {
		t.Errorf("sent %d, consumed %+v", sent, r)
	}
	backlog := r.Messages
	if r, _, err = bench(t, s.NamesrvAddr, "consume", "--topic", "B", "--topics", "5", "--loop", "--warmup", "0", "--count", fmt.Sprint(3*backlog)); err != nil || r.Messages < 3*backlog {
		t.Errorf("in a loop: %+v, %v", r, err)
	}
}

func TestBenchEndToEnd(t *testing.T) {
	s, _ := startServer(t, t.TempDir())
	r, progress, err := bench(t, s.NamesrvAddr, "e2e", "--topics", "3", "--queues", "2", "--rate", "300", "--warmup", "100ms", "--duration", "1500ms", "--groups", "2")
	if err != nil {
		t.Fatal(err)
	}
	if r.Messages == 0 || r.Received != r.Messages || r.Lost != 0 || r.EndToEnd.Count != r.Received || r.EndToEnd.P50 <= 0 || r.Late.Count != r.Messages {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(progress, "messages/s") {
		t.Errorf("no progress line: %q", progress)
	}
	if r, _, err = bench(t, s.NamesrvAddr, "e2e", "--rate", "0", "--conns", "1", "--warmup", "0", "--count", "100"); err != nil || r.Received < 100 || r.Loop != "closed" {
		t.Errorf("closed loop: %+v, %v", r, err)
	}
}

// TestBenchSheds: with one place and more due than it can carry, the rest is counted and not sent.
func TestBenchSheds(t *testing.T) {
	s, _ := startServer(t, t.TempDir(), "flushDiskType=ASYNC_FLUSH")
	r, _, err := bench(t, s.NamesrvAddr, "produce", "--conns", "1", "--outstanding", "1", "--rate", "2000000", "--shed", "--warmup", "0", "--count", "200")
	if err != nil || r.Messages < 200 || r.Shed == 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestBenchSaysWhatIsWrong(t *testing.T) {
	s, _ := startServer(t, t.TempDir(), "maxMessageSize=2000")
	for _, x := range []struct {
		args []string
		want string
	}{
		{[]string{"produce", "--size", "3000", "--warmup", "0", "--duration", "100ms"}, "no message went through: "},
		{[]string{"produce", "--conns", "0", "--duration", "25h"}, "duration 25h"},
		{[]string{"produce", "--conns", "-1"}, "connections of -1: want 1 to"},
		{[]string{"produce", "--shed"}, "shedding needs a rate"},
		{[]string{"produce", "--rate", "-1"}, "rate of -1/s"},
		{[]string{"produce", "--pid", "999999999", "--duration", "1s"}, "process 999999999"},
		{[]string{"consume", "--topic", "Nothing"}, "no message in the 4 queues of Nothing"},
		{[]string{"e2e", "--size", "8"}, "needs at least 16 bytes"},
		{[]string{"e2e", "-o", "xml"}, "want text or json"},
	} {
		cmd := benchCommand()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(new(bytes.Buffer))
		cmd.SetErr(new(bytes.Buffer))
		cmd.SetArgs(append(x.args, "--namesrv", s.NamesrvAddr))
		if err := cmd.ExecuteContext(timeout(t)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v: %v, want %q", x.args, err, x.want)
		}
	}
	if _, err := load.Produce(timeout(t), load.Options{Names: []string{"127.0.0.1:1"}}); err == nil || !strings.Contains(err.Error(), "no name server can be reached") {
		t.Errorf("%v", err)
	}
}

// TestBenchEndsWithItsServer: a server that goes away ends the run with an error, and an interrupt ends it at once.
func TestBenchEndsWithItsServer(t *testing.T) {
	s, stop := startServer(t, t.TempDir())
	for _, o := range []load.Options{{}, {Rate: 500}} {
		ctx, cancel := context.WithCancel(timeout(t))
		o.Names, o.Warmup, o.Progress = []string{s.NamesrvAddr}, -1, func(load.Progress) { cancel() }
		if _, err := load.EndToEnd(ctx, o); err == nil || ctx.Err() == nil {
			t.Errorf("interrupted: %v", err)
		}
		cancel()
	}
	o := load.Options{Names: []string{s.NamesrvAddr}, Warmup: -1, Progress: func(load.Progress) { stop() }}
	if _, err := load.Produce(timeout(t), o); err == nil || !strings.Contains(err.Error(), "broker ") {
		t.Errorf("stopped: %v", err)
	}
}

func TestFirst(t *testing.T) {
	s, _ := startServer(t, t.TempDir())
	if d, err := load.First(timeout(t), s.BrokerAddr, "First", 100); err != nil || d <= 0 {
		t.Errorf("%v, %v", d, err)
	}
	ctx, cancel := context.WithCancel(timeout(t))
	cancel()
	if _, err := load.First(ctx, "127.0.0.1:1", "First", 100); err == nil || !strings.Contains(err.Error(), "no send was acknowledged") {
		t.Errorf("%v", err)
	}
}
