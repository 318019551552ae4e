package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apogeemq/apogee/client"
)

// peer is a client of any make: a program that measures what its arguments say and prints it (see FiguresMain of
// interop/java).
type peer struct {
	name    string
	command []string
}

func parsePeer(s string) (peer, error) {
	name, command, ok := strings.Cut(s, "=")
	if !ok || command == "" {
		return peer{}, fmt.Errorf("-peer %q: want NAME=COMMAND", s)
	}
	return peer{name, strings.Fields(command)}, nil
}

// conversation is a peer that runs.
type conversation struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (p peer) start(args ...string) (*conversation, error) {
	c := &conversation{cmd: exec.Command(p.command[0], append(slices.Clone(p.command[1:]), args...)...)}
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	return c, c.cmd.Start()
}

// expect returns the numbers behind a word, which begins one of the lines to come.
func (c *conversation) expect(word string) ([]float64, error) {
	for {
		line, err := c.out.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("the peer ended before it said %s: %w", word, err)
		}
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != word {
			continue
		}
		var out []float64
		for _, x := range f[1:] {
			n, err := strconv.ParseFloat(x, 64)
			if err != nil {
				return nil, fmt.Errorf("the peer said %q", line)
			}
			out = append(out, n)
		}
		return out, nil
	}
}

func (c *conversation) end() {
	_ = c.in.Close()
	kill := time.AfterFunc(20*time.Second, func() { _ = c.cmd.Process.Kill() })
	_ = c.cmd.Wait()
	kill.Stop()
}

// ask runs a peer that prints one line.
func (p peer) ask(word string, args ...string) (float64, error) {
	c, err := p.start(args...)
	if err != nil {
		return 0, err
	}
	defer c.end()
	got, err := c.expect(word)
	if err != nil || len(got) == 0 {
		return 0, fmt.Errorf("%s: %w", p.name, err)
	}
	return got[0], nil
}

// row is what was measured of one client, in words.
type row struct {
	name                                string
	first, twice, missing, moved, other string
	ids, send, drain                    string
	sendRate, drainRate                 float64
}

// compare measures every peer in turn on one server, and writes the table into page.
func compare(s *server, peers []peer, rate int, page string) error {
	const topics, queues, members = 50, 20, 10
	names, err := s.makeTopics("first", topics, queues)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	c, err := s.client()
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	p, err := c.NewProducer("figures", client.WithOutstanding(2000, 64<<20))
	if err != nil {
		return err
	}
	if _, err := p.Send(ctx, &client.Message{Topic: names[topics/2], Body: []byte("x")}); err != nil {
		return err
	}
	const backlog = 200_000
	drainTopic, err := s.makeTopics("drain", 1, 8)
	if err != nil {
		return err
	}
	if err := fill(ctx, p, drainTopic[0], backlog); err != nil {
		return err
	}
	if _, err := s.makeTopics("send", 1, 8); err != nil {
		return err
	}
	var rows []row
	for _, x := range peers {
		fmt.Fprintln(os.Stderr, "measuring", x.name)
		r := row{name: x.name}
		var ms []float64
		for i := range 3 {
			f, err := x.ask("first", "first", s.names, fmt.Sprintf("first-%s-%d", x.name, i), "first", strconv.Itoa(topics))
			if err != nil {
				return err
			}
			ms = append(ms, f)
		}
		slices.Sort(ms)
		r.first = fmt.Sprintf("%.0f ms", ms[1])
		if r.ids, err = ids(x, s.names); err != nil {
			return err
		}
		if err := restart(ctx, s, x, p, members, rate, &r); err != nil {
			return err
		}
		var sends, drains []float64
		for i := range 3 {
			v, err := x.ask("rate", "send", s.names, "send0", "64", "4")
			if err != nil {
				return err
			}
			sends = append(sends, v)
			if v, err = x.ask("rate", "drain", s.names, fmt.Sprintf("drain-%s-%d", x.name, i), drainTopic[0], strconv.Itoa(backlog)); err != nil {
				return err
			}
			drains = append(drains, v)
		}
		slices.Sort(sends)
		slices.Sort(drains)
		r.sendRate, r.drainRate = sends[1], drains[1]
		r.send, r.drain = fmt.Sprintf("%.0f /s", sends[1]), fmt.Sprintf("%.0f /s", drains[1])
		rows = append(rows, r)
	}
	return write(rows, page, rate)
}

// ids asks how many ids fifty clients of one process have; the Apache Go client gives one id to a process.
func ids(x peer, names string) (string, error) {
	n, err := x.ask("ids", "ids", names, "50")
	if err != nil {
		return "can't say", nil //nolint:nilerr // a peer that doesn't know the word has no way to tell
	}
	return fmt.Sprintf("%.0f of 50", n), nil
}

func fill(ctx context.Context, p *client.Producer, topic string, n int) error {
	var wg sync.WaitGroup
	var failed atomic.Int64
	body := make([]byte, 1024)
	for range n {
		wg.Add(1)
		p.SendAsync(ctx, &client.Message{Topic: topic, Body: body}, func(_ *client.SendResult, err error) {
			if err != nil {
				failed.Add(1)
			}
			wg.Done()
		})
	}
	wg.Wait()
	if failed.Load() > 0 {
		return fmt.Errorf("%d sends failed", failed.Load())
	}
	return nil
}

// restart is the rolling restart of a peer's consumers, under load of ours.
func restart(ctx context.Context, s *server, x peer, p *client.Producer, members, rate int, r *row) error {
	topic, err := s.makeTopics("handover-"+x.name, 1, 64)
	if err != nil {
		return err
	}
	k, err := x.start("handover", s.names, "handover-"+x.name, topic[0], strconv.Itoa(members))
	if err != nil {
		return err
	}
	defer k.end()
	if _, err := k.expect("ready"); err != nil {
		return fmt.Errorf("%s: %w", x.name, err)
	}
	produce, stop := context.WithCancel(ctx)
	defer stop()
	var next, sent atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range 16 {
		wg.Go(func() {
			for produce.Err() == nil {
				n := next.Add(1)
				if !rest(produce, time.Until(began.Add(time.Duration(n)*time.Second/time.Duration(rate)))) {
					return
				}
				body := append(binary.BigEndian.AppendUint64(nil, uint64(n)), make([]byte, 248)...)
				if _, err := p.Send(ctx, &client.Message{Topic: topic[0], Body: body}); err == nil {
					sent.Add(1)
				}
			}
		})
	}
	_, err = k.expect("restarted")
	stop()
	wg.Wait()
	if err != nil {
		return fmt.Errorf("%s: %w", x.name, err)
	}
	if _, err := fmt.Fprintln(k.in, "sent", sent.Load()); err != nil {
		return err
	}
	got, err := k.expect("result")
	if err != nil || len(got) != 5 {
		return fmt.Errorf("%s: result %v: %w", x.name, got, err)
	}
	r.twice, r.missing = fmt.Sprintf("%.0f of %d", got[0], sent.Load()), fmt.Sprintf("%.0f", got[1])
	r.moved, r.other = fmt.Sprintf("%.0f ms", got[2]), fmt.Sprintf("%.0f ms", got[3])
	return nil
}

// rest sleeps and reports false when ctx ended.
func rest(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

const (
	beginMark = "<!-- written by make client-compare -->"
	endMark   = "<!-- end -->"
)

// write puts the table between the marks of page and prints it.
func write(rows []row, page string, rate int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "| |%s\n|---|%s\n", cells(rows, func(r row) string { return r.name }), strings.Repeat("---|", len(rows)))
	line := func(what string, f func(row) string) { fmt.Fprintf(&b, "| %s |%s\n", what, cells(rows, f)) }
	line("first message, 1,000 queues of 50 topics, a process that knows nothing", func(r row) string { return r.first })
	line(fmt.Sprintf("rolling restart of 10 consumers, 64 queues, %d/s: handled twice", rate), func(r row) string { return r.twice })
	line("… missing 30 s after the last restart", func(r row) string { return r.missing })
	line("… longest pause of a queue that moved", func(r row) string { return r.moved })
	line("… longest pause of one that didn't", func(r row) string { return r.other })
	line("ids of fifty clients in one process", func(r row) string { return r.ids })
	line("a deadline for each call; a half-dead connection noticed", func(r row) string {
		if r.name == "client" {
			return "see `make client-figures`"
		}
		return "no such thing"
	})
	line("synchronous sends of 1 KiB from 64 at once", func(r row) string { return r.send })
	line("a backlog of 200,000 × 1 KiB handled", func(r row) string { return r.drain })
	fmt.Print(b.String())
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(old), beginMark)
	_, tail, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the table: want %s and %s", page, beginMark, endMark)
	}
	return os.WriteFile(page, []byte(head+beginMark+"\n\n"+b.String()+"\n"+endMark+tail), 0o644)
}

func cells(rows []row, f func(row) string) string {
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, " %s |", f(r))
	}
	return b.String()
}
