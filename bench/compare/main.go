// Command compare measures Apogee, the released Java RocketMQ and NATS JetStream on this machine, by turns, each on a
// fresh folder, with one load generator, and writes docs/benchmarks.md: a table of medians and spread with its
// settings, and whether each goal is met. It is a module of its own, so that the server doesn't depend on NATS.
//
//	compare [-rows send,pull,…] [-repeat 5] [-seconds 3] [-out FILE] [-data FILE]
//
// JAVA_PEER names a script that runs the Java servers (namesrv PORT; broker DIR PORT NAMESRV [key=value …]). RMQLOAD,
// when set, names another load generator with the verbs send, pull and e2e that replaces `apogee bench` where it can
// do the same. Results of rows that aren't run are kept from -data.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// config is what a run was asked for.
type config struct {
	bin, javaPeer, rmqload, nats string
	dir                          string // where stores are made
	repeat                       int
	seconds                      time.Duration // a sample
	warm                         int           // messages that warm Java up
	memory                       time.Duration // of the memory row
	overload                     time.Duration // of the overload row
	heap                         string
	fill                         int // messages of the 2.7 GB store
	topics                       int
	out, data                    string
}

// family is a group of rows that share a server's life.
type family struct {
	name string
	what string
	run  func(*bench, context.Context) error
}

func families() []family {
	return []family{
		{"send", "page-cache mode: sends 4 × 16, 64 × 1, 1 × 1, 16 × 16; pulls; end to end; 2,000 parked consumers; NATS JetStream's default", (*bench).pageCache},
		{"flushed", "flushed before the answer: sends 1 × 1, 4 × 16, 16 × 16; NATS JetStream with sync_interval: always", (*bench).flushed},
		{"start", "start to first acknowledged send: empty, 2.7 GB clean, 2.7 GB after kill -9", (*bench).start},
		{"memory", "resident memory under the load of the first row", (*bench).memory},
		{"topics", "10,000 topics × 8 queues", (*bench).topics},
		{"overload", "twice the sustainable load", (*bench).overload},
	}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "natsload" {
		if err := natsLoad(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "compare natsload:", err)
			os.Exit(1)
		}
		return
	}
	var c config
	var names []string
	for _, f := range families() {
		names = append(names, f.name)
	}
	rows := flag.String("rows", strings.Join(names, ","), "which rows to measure; none: only write the page anew")
	systems := flag.String("systems", "apogee,java,nats", "which systems to measure")
	flag.StringVar(&c.bin, "bin", "bin/apogee", "Apogee's binary")
	flag.StringVar(&c.javaPeer, "java-peer", os.Getenv("JAVA_PEER"), "script that runs the Java servers; default $JAVA_PEER")
	flag.StringVar(&c.rmqload, "rmqload", os.Getenv("RMQLOAD"), "another load generator instead of `apogee bench`; default $RMQLOAD")
	flag.StringVar(&c.nats, "nats", "bin/nats-server", "NATS server's binary")
	flag.StringVar(&c.dir, "dir", "", "folder for stores, on the disk to measure; default a temporary one")
	flag.IntVar(&c.repeat, "repeat", 5, "turns")
	flag.DurationVar(&c.seconds, "seconds", 3*time.Second, "measured time of a sample")
	flag.IntVar(&c.warm, "warm", 400_000, "messages that warm a Java broker up before it is measured in page-cache mode")
	flag.DurationVar(&c.memory, "memory", 60*time.Second, "duration of the memory row")
	flag.DurationVar(&c.overload, "overload", 20*time.Second, "duration of the overload row")
	flag.StringVar(&c.heap, "heap", "4g", "heap of the Java broker")
	flag.IntVar(&c.fill, "fill", 2_200_000, "messages of 1 KiB in the store of the start rows; 2.2 million are 2.7 GB")
	flag.IntVar(&c.topics, "topics", 10_000, "topics of the topics row, with 8 queues each")
	flag.StringVar(&c.out, "out", "docs/benchmarks.md", "the page to write")
	flag.StringVar(&c.data, "data", "docs/benchmarks.json", "the samples, kept between runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, strings.Split(*rows, ","), strings.Split(*systems, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, c config, rows, systems []string) error {
	for _, r := range rows {
		if r != "none" && !slices.ContainsFunc(families(), func(f family) bool { return f.name == r }) {
			return fmt.Errorf("-rows %s: not one of send, flushed, start, memory, topics, overload, or none to write the page anew", r)
		}
	}
	all, err := loadResults(c.data)
	if err != nil {
		return err
	}
	if slices.Equal(rows, []string{"none"}) {
		return writePage(c.out, all)
	}
	for _, s := range systems {
		if s != "apogee" && s != "java" && s != "nats" {
			return fmt.Errorf("-systems %s: not one of apogee, java, nats", s)
		}
	}
	if c.repeat < 1 {
		return errors.New("-repeat: want at least 1")
	}
	if slices.Contains(systems, "java") && c.javaPeer == "" {
		return errors.New("no Java peer: set JAVA_PEER to a script that runs the Java servers, or give -systems apogee,nats")
	}
	if _, err := os.Stat(c.bin); err != nil {
		return fmt.Errorf("no Apogee: %w: run make build", err)
	}
	if _, err := os.Stat(c.nats); err != nil && slices.Contains(systems, "nats") {
		return fmt.Errorf("no NATS server: %w: run make compare, which builds it, or give -systems apogee,java", err)
	}
	fine := false
	if c.dir == "" {
		dir, err := os.MkdirTemp("", "compare")
		if err != nil {
			return err
		}
		c.dir = dir
		defer func() {
			for _, system := range systems {
				_ = os.RemoveAll(filepath.Join(dir, system))
			}
			if fine { // else a server's log, which an error names, is in it
				_ = os.RemoveAll(dir)
			}
		}()
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return err
	}
	b := &bench{c: c, systems: systems, res: all}
	if err := b.describe(ctx); err != nil {
		return err
	}
	began := time.Now()
	for _, f := range families() {
		if !slices.Contains(rows, f.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "== %s (%v)\n", f.what, time.Since(began).Round(time.Second))
		if err := f.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := b.res.save(c.data); err != nil { // what is measured isn't lost when a later row fails
			return err
		}
	}
	fine = true
	fmt.Fprintf(os.Stderr, "== done in %v\n", time.Since(began).Round(time.Second))
	return writePage(c.out, b.res)
}
