package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

type options struct {
	bin, dir string
	rounds   int
	topics   int
	senders  int
	life     time.Duration
	messages int
	seed     uint64
	out      io.Writer
}

const (
	queuesPerTopic = 2
	// persistEvery is flushConsumerOffsetInterval of the server under test.
	persistEvery = time.Second
	// persistSlack is how late a write of offsets may come on a busy machine.
	persistSlack = 500 * time.Millisecond
	startWithin  = 60 * time.Second
	callWithin   = 20 * time.Second
	group        = "crash-group"
)

// report is what a run found.
type report struct {
	rounds, midRecovery                        int
	sent, acked, unsure, batches, there        int64
	lost, duplicates, disorder, moved, unknown int64
	takenBack, offsetsBack, damaged            int64
	commits, worstBack                         int64
	starts                                     []time.Duration // until ready, after a kill
	took                                       time.Duration
	seed                                       uint64
	examples                                   []string
}

func (r *report) violations() int64 {
	return r.lost + r.duplicates + r.disorder + r.moved + r.unknown + r.takenBack + r.offsetsBack + r.damaged
}

// example keeps the first few violations for the reader.
func (r *report) example(format string, args ...any) {
	if len(r.examples) < 20 {
		r.examples = append(r.examples, fmt.Sprintf(format, args...))
	}
}

func (r *report) print(w io.Writer) {
	for _, e := range r.examples {
		fmt.Fprintln(w, "VIOLATION:", e)
	}
	slices.Sort(r.starts)
	var median, worst time.Duration
	if n := len(r.starts); n > 0 {
		median, worst = r.starts[n/2], r.starts[n-1]
	}
	fmt.Fprintf(w, "%d kills (%d of them while the server recovered) in %.0f s, seed %d\n", r.rounds, r.midRecovery, r.took.Seconds(), r.seed)
	fmt.Fprintf(w, "sent %d messages, %d batches among the sends; %d acknowledged, %d without an answer, of which %d were stored\n", r.sent, r.batches, r.acked, r.unsure, r.there-r.acked+r.lost)
	fmt.Fprintf(w, "lost %d, twice in the log %d, out of order %d, at another place than acknowledged %d, never sent %d, seen and taken back %d\n", r.lost, r.duplicates, r.disorder, r.moved, r.unknown, r.takenBack)
	fmt.Fprintf(w, "%d commits; offsets that went back by more than %v: %d; the most that a kill took back: %d messages\n", r.commits, persistEvery, r.offsetsBack, r.worstBack)
	fmt.Fprintf(w, "findings of `apogee store check` after kills and at the end: %d\n", r.damaged)
	fmt.Fprintf(w, "start after a kill until ready: median %d ms, worst %d ms\n", median.Milliseconds(), worst.Milliseconds())
}

// world is one run.
type world struct {
	o    options
	rng  *rand.Rand
	r    report
	mu   sync.Mutex // guards r and queues' lists
	qs   []*queue
	cmd  *exec.Cmd
	addr string // of the broker
	errs bytes.Buffer
}

func run(o options) (*report, error) {
	w := &world{o: o, rng: rand.New(rand.NewPCG(o.seed, 0))}
	w.r.seed = o.seed
	begin := time.Now()
	for t := range o.topics {
		for q := range queuesPerTopic {
			w.qs = append(w.qs, &queue{topic: fmt.Sprintf("crash-%d", t), id: int32(q)})
		}
	}
	defer w.kill()
	if err := w.start(); err != nil {
		return nil, err
	}
	if err := w.makeTopics(); err != nil {
		return nil, err
	}
	for i := range o.rounds {
		if err := w.round(i); err != nil {
			return nil, fmt.Errorf("round %d: %w", i+1, err)
		}
		if (i+1)%20 == 0 && o.out != nil {
			fmt.Fprintf(o.out, "%d kills, %d messages acknowledged, %d violations\n", i+1, w.r.acked, w.r.violations())
		}
	}
	if err := w.verify(); err != nil {
		return nil, err
	}
	if err := w.stop(); err != nil {
		return nil, err
	}
	if err := w.check(); err != nil {
		return nil, err
	}
	w.r.took = time.Since(begin)
	return &w.r, nil
}

var readyLine = regexp.MustCompile(`broker=(\S+)`)

// command is the server with files small enough that every kind of boundary is met often.
func (w *world) command() *exec.Cmd {
	mode := "SYNC_FLUSH"
	if w.rng.IntN(3) == 0 {
		mode = "ASYNC_FLUSH"
	}
	args := []string{"server", "--data", w.o.dir, "--namesrv-port", "0", "--broker-port", "0", "--http-port", "0", "--log-level", "error"}
	for _, kv := range []string{"flushDiskType=" + mode, "mappedFileSizeCommitLog=16777216", "mappedFileSizeConsumeQueue=20000", "maxHashSlotNum=5000", "maxIndexNum=20000",
		fmt.Sprintf("flushConsumerOffsetInterval=%d", persistEvery.Milliseconds())} {
		args = append(args, "--set", kv)
	}
	cmd := exec.Command(w.o.bin, args...)
	w.errs.Reset()
	cmd.Stderr = &w.errs
	return cmd
}

// start starts the server and waits until it says that it is ready.
func (w *world) start() error {
	w.cmd = w.command()
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := w.cmd.Start(); err != nil {
		return err
	}
	late := time.AfterFunc(startWithin, func() { _ = w.cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	late.Stop()
	m := readyLine.FindStringSubmatch(line)
	if m == nil {
		w.kill()
		return fmt.Errorf("the server didn't start: %q, %v\n%s", line, err, w.errs.String())
	}
	w.addr = m[1]
	return nil
}

// kill ends the server with kill -9 and waits until it is gone.
func (w *world) kill() {
	if w.cmd == nil {
		return
	}
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
	w.cmd = nil
}

// stop ends the server cleanly.
func (w *world) stop() error {
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	err := w.cmd.Wait()
	w.cmd = nil
	if err != nil {
		return fmt.Errorf("a clean stop: %w\n%s", err, w.errs.String())
	}
	return nil
}

// check runs `apogee store check` over the folder.
func (w *world) check() error {
	out, err := exec.Command(w.o.bin, "store", "check", w.o.dir).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		w.r.damaged++
		w.r.example("apogee store check: %s", out)
		return nil
	}
	return err
}

func (w *world) dial() (*remoting.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callWithin)
	defer cancel()
	return remoting.Dial(ctx, w.addr, remoting.DialOptions{})
}

func (w *world) makeTopics() error {
	c, err := w.dial()
	if err != nil {
		return err
	}
	defer closeConn(c)
	for t := range w.o.topics {
		h := &protocol.CreateTopicRequest{Topic: fmt.Sprintf("crash-%d", t), DefaultTopic: "TBW102", ReadQueueNums: queuesPerTopic, WriteQueueNums: queuesPerTopic, Perm: 6, TopicFilterType: "SINGLE_TAG"}
		if _, err := call(c, protocol.UpdateAndCreateTopic, h, nil); err != nil {
			return err
		}
	}
	return nil
}

func closeConn(c *remoting.Conn) {
	c.Close(nil)
	c.Wait()
}

// refused is an answer with another code than success.
type refused struct {
	code   int32
	remark string
}

func (r *refused) Error() string { return fmt.Sprintf("code %d: %s", r.code, r.remark) }

func call(c *remoting.Conn, code protocol.RequestCode, header any, body []byte) (*remoting.Command, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callWithin)
	defer cancel()
	a, err := c.Invoke(ctx, &remoting.Request{Code: code, Header: header, Body: body, Language: protocol.Go})
	if err != nil {
		return nil, err
	}
	if a.Code != 0 {
		return a, &refused{a.Code, a.Remark}
	}
	return a, nil
}

// round lets traffic run until the kill, kills, and starts again.
func (w *world) round(i int) error {
	if err := w.restored(); err != nil {
		return err
	}
	life := time.Duration(w.rng.Int64N(int64(w.o.life)))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for s := range w.o.senders {
		wg.Go(func() { w.send(ctx, s) })
	}
	for s := range w.o.senders {
		wg.Go(func() { w.consume(ctx, s) })
	}
	time.Sleep(life)
	w.kill()
	killed := time.Now()
	cancel()
	wg.Wait()
	for _, q := range w.qs {
		q.killedAt(killed)
	}
	w.r.rounds++
	if w.rng.IntN(10) == 0 {
		if err := w.check(); err != nil {
			return err
		}
	}
	for w.rng.IntN(4) == 0 { // and again while it recovers
		w.cmd = w.command()
		if err := w.cmd.Start(); err != nil {
			return err
		}
		time.Sleep(time.Duration(w.rng.Int64N(int64(60 * time.Millisecond))))
		w.kill()
		w.r.rounds++
		w.r.midRecovery++
	}
	began := time.Now()
	if err := w.start(); err != nil {
		return err
	}
	w.r.starts = append(w.r.starts, time.Since(began))
	return nil
}
