package main

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/internal/protocol"
)

// failure is one thing that goes wrong. run returns when it is over, which is when consumption has to go on.
type failure struct {
	name string
	run  func(w *world) error
}

func failures() []failure {
	return []failure{
		{"broker killed with SIGKILL", func(w *world) error {
			w.broker.end(syscall.SIGKILL)
			w.pause(200, 1500)
			return w.broker.start()
		}},
		{"broker stopped and started", func(w *world) error {
			w.broker.end(syscall.SIGTERM)
			w.pause(100, 2000)
			return w.broker.start()
		}},
		{"broker stands still (SIGSTOP)", func(w *world) error {
			if err := w.broker.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
			w.pause(1000, 8000)
			return w.broker.cmd.Process.Signal(syscall.SIGCONT)
		}},
		{"name server away", func(w *world) error {
			w.names.end(syscall.SIGKILL)
			w.pause(1000, 5000)
			return w.names.start()
		}},
		{"broker killed while the name server is away", func(w *world) error {
			w.names.end(syscall.SIGKILL)
			w.broker.end(syscall.SIGKILL)
			w.pause(100, 1000)
			if err := w.names.start(); err != nil {
				return err
			}
			return w.broker.start()
		}},
		{"topic deleted and made again", func(w *world) error {
			f := w.feeds["deleted"]
			if err := w.admin(protocol.DeleteTopicInBroker, &protocol.TopicRequest{Topic: "deleted"}); err != nil {
				return err
			}
			w.pause(0, 1500)
			if err := w.makeTopic("deleted"); err != nil {
				return err
			}
			f.mu.Lock()
			clear(f.acked) // it took them along
			f.since = time.Now()
			f.mu.Unlock()
			return nil
		}},
		{"a consumer leaves, another joins", func(w *world) error {
			ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
			defer cancel()
			if err := w.member.Close(ctx); err != nil {
				return err
			}
			var err error
			w.member, err = w.consume(w.groups[0])
			return err
		}},
		{"a consumer killed with SIGKILL", func(w *world) error { return w.victims.kill() }},
	}
}

// pause waits for some milliseconds between low and high.
func (w *world) pause(low, high int) {
	time.Sleep(time.Duration(low+w.rnd.IntN(high-low+1)) * time.Millisecond)
}

// setUp starts the topics, the producers and the groups.
func (w *world) setUp() error {
	var err error
	if w.producers, err = w.client(); err != nil {
		return err
	}
	for _, topic := range []string{"chaos", "deleted"} {
		if err := w.makeTopic(topic); err != nil {
			return err
		}
		p, err := w.producers.NewProducer("chaos-" + topic)
		if err != nil {
			return err
		}
		f := &feed{topic: topic}
		f.run(p, w.rate)
		w.feeds[topic] = f
	}
	chaos := w.feeds["chaos"]
	add := func(g *group, members int, opts ...client.ConsumerOption) error {
		w.groups = append(w.groups, g)
		for range members {
			c, err := w.consume(g, opts...)
			if err != nil {
				return err
			}
			g.close = append(g.close, c.Close)
		}
		return nil
	}
	if err := add(newGroup("concurrent", chaos, false), 2); err != nil {
		return err
	}
	if w.member, err = w.consume(w.groups[0]); err != nil {
		return err
	}
	if err := add(newGroup("ordered", chaos, true), 3, client.WithOrdered()); err != nil {
		return err
	}
	if err := add(newGroup("broadcast", chaos, false), 1, client.WithBroadcast(), client.WithOffsetsDir(filepath.Join(w.dir, "offsets"), "one")); err != nil {
		return err
	}
	if err := add(newGroup("deleted", w.feeds["deleted"], false), 2); err != nil {
		return err
	}
	polled := newGroup("polled", chaos, false)
	w.groups = append(w.groups, polled)
	if err := w.poll(polled); err != nil {
		return err
	}
	killed := newGroup("killed", chaos, false)
	w.groups = append(w.groups, killed)
	w.victims = &children{w: w, g: killed}
	for range 3 {
		if err := w.victims.start(); err != nil {
			return err
		}
	}
	return nil
}

// run lets everything fail so many times, and then looks at what arrived.
func (w *world) run(rounds int, only *regexp.Regexp) error {
	if err := w.setUp(); err != nil {
		return err
	}
	var list []failure
	for range rounds {
		for _, f := range failures() {
			if only.MatchString(f.name) {
				list = append(list, f)
			}
		}
	}
	w.rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	w.resumed(time.Now(), "start")
	worst := map[string]time.Duration{}
	for i, f := range list {
		w.pause(500, 2500)
		if err := f.run(w); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		took := w.resumed(time.Now(), f.name)
		worst[f.name] = max(worst[f.name], took)
		fmt.Printf("%2d/%d %-46s every group went on within %s\n", i+1, len(list), f.name, took.Round(time.Millisecond))
	}
	for _, f := range w.feeds {
		f.end()
	}
	w.settle()
	w.report(worst, rounds)
	return w.leave()
}

// resumed waits until every group handles messages that were sent after t, and returns how long that took.
func (w *world) resumed(t time.Time, what string) time.Duration {
	late := map[string]bool{}
	for {
		waiting := 0
		for _, g := range w.groups {
			if g.newest().After(t) {
				continue
			}
			waiting++
			if time.Since(t) > resumeWithin && !late[g.name] {
				late[g.name] = true
				w.violation("%s: group %s does not go on within %s", what, g.name, resumeWithin)
			}
		}
		if waiting == 0 || time.Since(t) > 60*time.Second {
			return time.Since(t)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// settle waits until everything arrived that was acknowledged.
func (w *world) settle() {
	deadline := time.Now().Add(60 * time.Second)
	for time.Now().Before(deadline) {
		n := 0
		for _, g := range w.groups {
			k, _ := g.missing()
			n += k
		}
		if n == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (w *world) report(worst map[string]time.Duration, rounds int) {
	fmt.Printf("\n%-48s %6s %s\n", "failure", "times", "longest until every group went on")
	for _, f := range failures() {
		fmt.Printf("%-48s %6d %s\n", f.name, rounds, worst[f.name].Round(time.Millisecond))
	}
	fmt.Printf("\n%-12s %12s %10s %10s %10s %14s\n", "group", "acknowledged", "handled", "missing", "again", "out of order")
	for _, g := range w.groups {
		n, example := g.missing()
		if n > 0 {
			w.violation("group %s misses %d acknowledged messages, one is number %d of key %d", g.name, n, example[1], example[0])
		}
		wrong := g.wrong()
		g.mu.Lock()
		total := g.total
		g.mu.Unlock()
		order := "-"
		if g.ordered {
			order = fmt.Sprint(wrong)
			if wrong > 0 {
				w.violation("group %s: %d messages came after later ones of their key", g.name, wrong)
			}
		}
		fmt.Printf("%-12s %12d %10d %10d %10d %14s\n", g.name, len(g.feed.acked), total, n, g.twice(), order)
	}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for n := range w.feeds {
			if !yield(n) {
				return
			}
		}
	}) {
		f := w.feeds[name]
		fmt.Printf("topic %s: %d sends, %d acknowledged (since it was last made)\n", name, f.tried, len(f.acked))
	}
}

// leave closes everything.
func (w *world) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	w.victims.end()
	closers := []func(context.Context) error{w.producers.Close, w.member.Close}
	for _, g := range w.groups {
		closers = append(closers, g.close...)
	}
	for _, c := range closers {
		if err := c(ctx); err != nil {
			return err
		}
	}
	return nil
}
