// Command chaos lets a server, and the network of a name server, fail in every way that can be made to happen here,
// again and again, while producers and consumers of package client work, and looks whether anything is lost, comes in
// the wrong order, or doesn't come back. It is meant to be built with the race detector:
//
//	go run -race ./bench/chaos -bin bin/apogee
//
// It prints a line for each failure and a table at the end, and ends with status 1 when something was violated.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// resumeWithin is how soon consumption has to go on after the broker is back.
const resumeWithin = 5 * time.Second

func main() {
	bin := flag.String("bin", "bin/apogee", "server to be mistreated")
	rounds := flag.Int("rounds", 3, "how often each failure happens")
	rate := flag.Int("rate", 400, "messages a second to each topic")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "repeats the order and the moments of the failures")
	only := flag.String("only", "", "only failures whose name matches this regular expression")
	verbose := flag.Bool("v", false, "log what clients warn of")
	child := flag.String("child", "", "internal: be a consumer of this name server's topic and print what it handles")
	flag.Parse()
	pick, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos: -only:", err)
		os.Exit(2)
	}
	if *child != "" {
		if err := beChild(*child); err != nil {
			fmt.Fprintln(os.Stderr, "chaos child:", err)
			os.Exit(2)
		}
		return
	}
	before := runtime.NumGoroutine()
	w, err := newWorld(*bin, *rate, *seed, *verbose)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}
	fmt.Printf("seed %d\n", *seed)
	err = w.run(*rounds, pick)
	w.stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before+1 && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before+1 {
		w.violation("%d goroutines are left of %d", n, before)
	}
	fmt.Printf("%d violations\n", w.violations)
	if w.violations > 0 {
		os.Exit(1)
	}
}

// process is a server.
type process struct {
	bin   string
	args  []string
	cmd   *exec.Cmd
	ended chan struct{}
}

// start starts it and returns when it is ready.
func (p *process) start() error {
	p.cmd = exec.Command(p.bin, p.args...)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	r := bufio.NewReader(out)
	line, err := r.ReadString('\n')
	p.ended = make(chan struct{})
	go func() {
		_, _ = r.WriteTo(os.Stdout)
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	if !strings.HasPrefix(line, "apogee ready") {
		return fmt.Errorf("%s said %q: %v", strings.Join(p.args, " "), line, err)
	}
	return nil
}

// end sends a signal that ends it, and waits.
func (p *process) end(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig)
	<-p.ended
}

// freePort returns a port outside the range from which the system takes those of outgoing connections: a client that
// connects while the server is away must not take its port.
func freePort(rnd *rand.Rand) (int, error) {
	for range 100 {
		port := 20000 + rnd.IntN(10000)
		var ls []net.Listener
		for _, p := range []int{port, port - 2} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
			if err == nil {
				ls = append(ls, l)
			}
		}
		for _, l := range ls {
			_ = l.Close()
		}
		if len(ls) == 2 {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port between 20000 and 30000")
}

// world is the servers, the clients, and what is known of messages.
type world struct {
	rnd           *rand.Rand
	rate          int
	dir           string
	names, broker process
	namesAddr     string
	brokerAddr    string
	log           *slog.Logger
	self          string
	violations    int
	producers     *client.Client
	groups        []*group
	feeds         map[string]*feed
	member        *client.Client // a consumer that comes and goes
	victims       *children
}

func newWorld(bin string, rate int, seed uint64, verbose bool) (*world, error) {
	w := &world{rnd: rand.New(rand.NewPCG(seed, 1)), rate: rate, feeds: map[string]*feed{}, log: slog.New(slog.DiscardHandler)}
	if verbose {
		w.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	var err error
	if w.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if w.dir, err = os.MkdirTemp("", "chaos"); err != nil {
		return nil, err
	}
	np, err := freePort(w.rnd)
	if err != nil {
		return nil, err
	}
	bp, err := freePort(w.rnd)
	if err != nil {
		return nil, err
	}
	w.namesAddr, w.brokerAddr = fmt.Sprintf("127.0.0.1:%d", np), fmt.Sprintf("127.0.0.1:%d", bp)
	w.names = process{bin: bin, args: []string{"namesrv", "--namesrv-port", fmt.Sprint(np), "--http-port", "0", "--data", filepath.Join(w.dir, "names"), "--log-level", "error"}}
	w.broker = process{bin: bin, args: []string{"broker", "--namesrv", w.namesAddr, "--broker-port", fmt.Sprint(bp), "--http-port", "0", "--data", filepath.Join(w.dir, "broker"), "--log-level", "error"}}
	if err := w.names.start(); err != nil {
		return nil, err
	}
	if err := w.broker.start(); err != nil {
		w.names.end(syscall.SIGKILL)
		return nil, err
	}
	return w, nil
}

func (w *world) stop() {
	w.broker.end(syscall.SIGTERM)
	w.names.end(syscall.SIGTERM)
	_ = os.RemoveAll(w.dir)
}

func (w *world) violation(format string, args ...any) {
	w.violations++
	fmt.Printf("VIOLATION: "+format+"\n", args...)
}

func (w *world) client() (*client.Client, error) {
	return client.New(client.WithNameServers(w.namesAddr), client.WithLogger(w.log))
}

// admin sends the broker a request without a body.
func (w *world) admin(code protocol.RequestCode, header any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := remoting.Dial(ctx, w.brokerAddr, remoting.DialOptions{})
	if err != nil {
		return err
	}
	defer conn.Close(nil)
	a, err := conn.Invoke(ctx, &remoting.Request{Code: code, Header: header})
	if err != nil {
		return err
	}
	if a.Code != 0 {
		return fmt.Errorf("request %d: code %d, %s", code, a.Code, a.Remark)
	}
	return nil
}

func (w *world) makeTopic(name string) error {
	return w.admin(protocol.UpdateAndCreateTopic, &protocol.CreateTopicRequest{Topic: name, DefaultTopic: "TBW102", ReadQueueNums: 8, WriteQueueNums: 8, Perm: 6, TopicFilterType: "SINGLE_TAG"})
}
