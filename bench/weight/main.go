// Command weight measures what an idle Apogee costs: how soon it is ready on an empty folder, the memory it keeps
// resident, the CPU it uses with many topics, and the goroutines that parked pulls cost. It prints each figure with
// its goal and ends with status 1 when one isn't met.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

const (
	topics   = 1000
	queues   = 8
	parked   = 2000
	idleFor  = 15 * time.Second
	starts   = 5
	userHz   = 100 // clock ticks a second in /proc, on every Linux that Go runs on
	waitLong = 30 * time.Second
)

func main() {
	bin := flag.String("bin", "bin/apogee", "binary to measure")
	flag.Parse()
	ok, err := run(*bin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "weight:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

type server struct {
	cmd                 *exec.Cmd
	names, broker, http string
	ready               time.Duration // from the start of the process to its line
}

var readyLine = regexp.MustCompile(`namesrv=(\S+) broker=(\S+) http=(\S+)`)

func start(bin string) (*server, func(), error) {
	dir, err := os.MkdirTemp("", "weight")
	if err != nil {
		return nil, nil, err
	}
	s := &server{cmd: exec.Command(bin, "server", "--data", dir, "--namesrv-port", "0", "--broker-port", "0", "--http-port", "0", "--log-level", "error")}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	s.ready = time.Since(began)
	stop := func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		_ = s.cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	m := readyLine.FindStringSubmatch(line)
	if m == nil {
		stop()
		return nil, nil, fmt.Errorf("server said %q: %v", line, err)
	}
	s.names, s.broker, s.http = m[1], m[2], m[3]
	return s, stop, nil
}

// resident returns the process's resident memory in MB, and of that what isn't mapped files.
func (s *server) resident() (all, anon float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for _, l := range strings.Split(string(b), "\n") {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		kb, _ := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "VmRSS:":
			all = kb / 1024
		case "RssAnon:":
			anon = kb / 1024
		}
	}
	return all, anon, nil
}

// cpu returns the CPU time the process has used.
func (s *server) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * time.Second / userHz, nil
}

func (s *server) metric(name string) (float64, error) {
	r, err := http.Get("http://" + s.http + "/metrics")
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err
	}
	for _, l := range strings.Split(string(b), "\n") {
		if v, ok := strings.CutPrefix(l, name+" "); ok {
			return strconv.ParseFloat(v, 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

func run(bin string) (bool, error) {
	ok := true
	report := func(what string, got float64, unit string, goal float64) {
		verdict := "ok"
		if got > goal {
			verdict, ok = "OVER", false
		}
		fmt.Printf("%-62s %8.2f %-4s goal %g  %s\n", what, got, unit, goal, verdict)
	}
	var ready []float64
	for range starts {
		s, stop, err := start(bin)
		if err != nil {
			return false, err
		}
		ready = append(ready, float64(s.ready.Microseconds())/1000)
		stop()
	}
	sort.Float64s(ready)
	report(fmt.Sprintf("ready on an empty folder, median of %d starts", starts), ready[starts/2], "ms", 100)

	s, stop, err := start(bin)
	if err != nil {
		return false, err
	}
	defer stop()
	rss, _, err := s.resident()
	if err != nil {
		return false, err
	}
	report("resident memory, idle and empty", rss, "MB", 40)

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c, err := remoting.Dial(ctx, s.broker, remoting.DialOptions{})
	if err != nil {
		return false, err
	}
	defer func() { c.Close(nil); c.Wait() }()
	for i := range topics {
		a, err := c.Invoke(ctx, &remoting.Request{Code: protocol.UpdateAndCreateTopic, Header: &protocol.CreateTopicRequest{Topic: fmt.Sprintf("weight-%d", i), ReadQueueNums: queues, WriteQueueNums: queues, Perm: 6, TopicFilterType: "SINGLE_TAG"}})
		if err != nil || a.Code != 0 {
			return false, fmt.Errorf("create topic: %+v: %w", a, err)
		}
	}
	for i := range topics {
		for q := range int32(queues) {
			h := &protocol.SendMessageRequest{ProducerGroup: []byte("weight"), Topic: fmt.Appendf(nil, "weight-%d", i), DefaultTopic: []byte("TBW102"), QueueID: q}
			if err := c.OneWay(&remoting.Request{Code: protocol.SendMessageV2, Header: h, Body: []byte("x")}); err != nil {
				return false, err
			}
		}
	}
	// A request that is answered on the same connection comes behind all of them.
	if _, err := c.Invoke(ctx, &remoting.Request{Code: protocol.GetMaxOffset, Header: &protocol.QueueRequest{Topic: "weight-0"}}); err != nil {
		return false, err
	}
	// Queues are written and the checkpoint is made within its interval of 10 s; idle begins after it.
	time.Sleep(12 * time.Second)
	before, err := s.cpu()
	if err != nil {
		return false, err
	}
	time.Sleep(idleFor)
	after, err := s.cpu()
	if err != nil {
		return false, err
	}
	report(fmt.Sprintf("CPU when idle with %d topics x %d queues, over %v", topics, queues, idleFor), 100*(after-before).Seconds()/idleFor.Seconds(), "%", 1)
	if rss, _, err = s.resident(); err != nil {
		return false, err
	}
	fmt.Printf("%-62s %8.2f MB\n", "resident memory with them, mapped files included", rss)

	goroutines, err := s.metric("go_goroutines")
	if err != nil {
		return false, err
	}
	failed := make(chan error, parked)
	pullCtx, stopPulls := context.WithCancel(ctx)
	defer stopPulls()
	for i := range parked {
		go func() {
			h := &protocol.PullMessageRequest{ConsumerGroup: []byte("TOOLS_CONSUMER"), Topic: fmt.Appendf(nil, "weight-%d", i%topics), QueueID: int32(i / topics), QueueOffset: 1, MaxMsgNums: 32,
				SysFlag: protocol.PullSuspend | protocol.PullSubscription, SuspendTimeoutMillis: 60_000, Subscription: []byte("*")}
			if _, err := c.Invoke(pullCtx, &remoting.Request{Code: protocol.PullMessage, Header: h}); err != nil && pullCtx.Err() == nil {
				failed <- err
			}
		}()
	}
	deadline := time.Now().Add(waitLong)
	for {
		n, err := s.metric("apogee_parked_pulls")
		if err != nil {
			return false, err
		}
		if n == parked {
			break
		}
		if len(failed) > 0 || time.Now().After(deadline) {
			return false, fmt.Errorf("%g of %d pulls parked, %d failed", n, parked, len(failed))
		}
		time.Sleep(50 * time.Millisecond)
	}
	with, err := s.metric("go_goroutines")
	if err != nil {
		return false, err
	}
	report(fmt.Sprintf("goroutines that %d parked pulls cost", parked), with-goroutines, "", 10)
	return ok, nil
}
