package goclient

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// The server that most cases share, and the path of the binary.
var (
	shared *server
	binary string
)

func TestMain(m *testing.M) {
	rlog.SetLogLevel("fatal")
	if spec := os.Getenv("INTEROP_CHILD"); spec != "" {
		child(spec)
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "interop")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = os.Getenv("APOGEE_BIN")
	if binary == "" {
		binary = filepath.Join(dir, "apogee")
		build := exec.Command("go", "build", "-o", binary, "./cmd/apogee")
		build.Dir = "../.."
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Printf("build: %v\n%s", err, out)
			return 1
		}
	}
	if shared, err = startServer(filepath.Join(dir, "shared"), nil); err != nil {
		fmt.Println(err)
		return 1
	}
	defer shared.stop()
	return m.Run()
}

// server is a running apogee server.
type server struct {
	cmd           *exec.Cmd
	names, broker string
	dir           string
	args          []string
}

var readyLine = regexp.MustCompile(`namesrv=(\S+) broker=(\S+)`)

func startServer(dir string, args []string) (*server, error) {
	s := &server{dir: dir, args: args}
	return s, s.start()
}

func (s *server) start() error {
	args := append([]string{"server", "--data", s.dir, "--log-level", "warn"}, s.args...)
	for _, p := range []string{"--namesrv-port", "--broker-port", "--http-port"} {
		if !strings.Contains(strings.Join(s.args, " "), p) {
			args = append(args, p, "0")
		}
	}
	s.cmd = exec.Command(binary, args...)
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		return err
	}
	line := make(chan string, 1)
	go func() {
		r := bufio.NewReader(out)
		l, _ := r.ReadString('\n')
		line <- l
		_, _ = io.Copy(io.Discard, r)
	}()
	select {
	case l := <-line:
		m := readyLine.FindStringSubmatch(l)
		if m == nil {
			return fmt.Errorf("server said %q", l)
		}
		s.names, s.broker = m[1], m[2]
		return nil
	case <-time.After(20 * time.Second):
		_ = s.cmd.Process.Kill()
		return fmt.Errorf("server not ready within 20 s")
	}
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

func ownServer(t *testing.T, args ...string) *server {
	t.Helper()
	s, err := startServer(t.TempDir(), args)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

// result writes the case's line for the interop table when the test ends.
func result(t *testing.T, name string) *note {
	t.Helper()
	n := &note{}
	began := time.Now()
	t.Cleanup(func() {
		path := os.Getenv("INTEROP_RESULTS")
		if path == "" {
			return
		}
		state := "pass"
		if t.Failed() {
			state = "fail"
		} else if t.Skipped() {
			state = "skip"
		}
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		fmt.Fprintf(f, "go\t%s\t%s\t%.1f\t%s\n", name, state, time.Since(began).Seconds(), n.text)
	})
	return n
}

type note struct{ text string }

var unique atomic.Int64

// name makes a topic or group name of the test's own.
func name(t *testing.T) string {
	return fmt.Sprintf("%s-%d-%d", strings.ReplaceAll(t.Name(), "/", "-"), os.Getpid(), unique.Add(1))
}

func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		<-tick.C
	}
}

func newProducer(t *testing.T, s *server, opts ...producer.Option) rocketmq.Producer {
	t.Helper()
	id := name(t)
	p, err := rocketmq.NewProducer(append([]producer.Option{producer.WithNameServer([]string{s.names}), producer.WithGroupName("P-" + id), producer.WithInstanceName(id)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Shutdown() })
	return p
}

func send(t *testing.T, p rocketmq.Producer, topic, tag, body string) *primitive.SendResult {
	t.Helper()
	m := primitive.NewMessage(topic, []byte(body))
	if tag != "" {
		m.WithTag(tag)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := p.SendSync(ctx, m)
	if err != nil || r.Status != primitive.SendOK {
		t.Fatalf("send: %v %v", r, err)
	}
	return r
}

// seen collects what consumers got.
type seen struct {
	mu   sync.Mutex
	list []string
	ext  []*primitive.MessageExt
	who  []string
}

func (s *seen) add(who string, ms ...*primitive.MessageExt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range ms {
		s.list = append(s.list, string(m.Body))
		s.ext = append(s.ext, m)
		s.who = append(s.who, who)
	}
}

func (s *seen) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list)
}

func (s *seen) bodies() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.list...)
}

type handlerFunc func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func newConsumer(t *testing.T, s *server, group, topic, tags string, h handlerFunc, opts ...consumer.Option) rocketmq.PushConsumer {
	t.Helper()
	c, err := rocketmq.NewPushConsumer(append([]consumer.Option{consumer.WithNameServer([]string{s.names}), consumer.WithGroupName(group),
		consumer.WithInstance(name(t)), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags}, h); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Shutdown() })
	return c
}

func collect(into *seen, who string) handlerFunc {
	return func(_ context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		into.add(who, ms...)
		return consumer.ConsumeSuccess, nil
	}
}

// child is an ordered consumer in a process of its own: it prints each message it gets, and ends cleanly when its
// standard input does. spec is "nameserver group topic".
func child(spec string) {
	f := strings.Fields(spec)
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer([]string{f[0]}), consumer.WithGroupName(f[1]), consumer.WithConsumerOrder(true),
		// The client pulls a queue that it took over only after its periodic renewal of all locks, whatever the
		// broker does: every 20 s by default.
		consumer.WithRebalanceLockInterval(500*time.Millisecond), consumer.WithInstance(fmt.Sprint("child", os.Getpid())), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err == nil {
		err = c.Subscribe(f[2], consumer.MessageSelector{}, func(_ context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, m := range ms {
				fmt.Printf("got %d %d %s\n", m.Queue.QueueId, m.QueueOffset, m.Body)
			}
			return consumer.ConsumeSuccess, nil
		})
	}
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("started")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = c.Shutdown()
}

// process is a running child.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	mu    sync.Mutex
	got   []string // "queue offset body"
	at    []time.Time
}

func startChild(t *testing.T, names, group, topic string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), "INTEROP_CHILD="+names+" "+group+" "+topic)
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = in
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	go func() {
		s := bufio.NewScanner(out)
		for s.Scan() {
			if rest, ok := strings.CutPrefix(s.Text(), "got "); ok {
				p.mu.Lock()
				p.got = append(p.got, rest)
				p.at = append(p.at, time.Now())
				p.mu.Unlock()
			}
		}
	}()
	return p
}

func (p *process) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.got...)
}

// queues returns the ids of the queues the child got messages of since line n.
func (p *process) queues(n int) map[string]bool {
	out := map[string]bool{}
	for _, l := range p.lines()[n:] {
		out[strings.Fields(l)[0]] = true
	}
	return out
}

// resetProxy forwards connections from one address to another and can cut them all with a reset.
type resetProxy struct {
	l     net.Listener
	to    string
	mu    sync.Mutex
	conns []*net.TCPConn
	wg    sync.WaitGroup
}

func startProxy(t *testing.T, listen, to string) *resetProxy {
	t.Helper()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	p := &resetProxy{l: l, to: to}
	p.wg.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				_ = a.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, a.(*net.TCPConn), b.(*net.TCPConn))
			p.mu.Unlock()
			go func() { _, _ = io.Copy(a, b); _ = a.Close() }()
			go func() { _, _ = io.Copy(b, a); _ = b.Close() }()
		}
	})
	t.Cleanup(func() { _ = l.Close(); p.reset(); p.wg.Wait() })
	return p
}

func (p *resetProxy) reset() {
	p.mu.Lock()
	conns := p.conns
	p.conns = nil
	p.mu.Unlock()
	for _, c := range conns {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}
