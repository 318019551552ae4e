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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// server is a running name server with a broker: ours in one process, or Java's two.
type server struct {
	names, broker string // addresses
	dir           string
	settings      []string
	processes     []*exec.Cmd // in the order in which they are to be stopped

	mu   sync.Mutex
	name string // of the broker, when it is known
}

const (
	readyWithin     = 20 * time.Second
	javaReadyWithin = 120 * time.Second // several JVMs start side by side
)

// startServer starts a server on free ports with its data under dir. settings are key=value.
func startServer(dir string, settings []string) (*server, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	s := &server{dir: dir, settings: settings}
	if suite.java {
		return s, s.startJava()
	}
	return s, s.startApogee("0", "0")
}

// restart starts a stopped server again, on its data and its ports.
func (s *server) restart() error {
	if suite.java {
		return s.startJava()
	}
	return s.startApogee(port(s.names), port(s.broker))
}

// stop ends the server as an operator would, and waits for it. Ours says that all is well by its exit status.
func (s *server) stop() error {
	var failed error
	for _, p := range s.processes {
		_ = p.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(readyWithin, func() { _ = p.Process.Kill() })
		err := p.Wait()
		kill.Stop()
		if err != nil && !suite.java && failed == nil {
			failed = fmt.Errorf("stop the server: %w; its log: %s", err, s.logTail())
		}
	}
	s.processes = nil
	return failed
}

// logTail returns the end of what the server's processes said.
func (s *server) logTail() string {
	b, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}

func (s *server) logFile() string { return filepath.Join(s.dir, "server.log") }

// launch starts a process of the server; what it says goes to the log file, and its first lines of standard output
// to the reader returned.
func (s *server) launch(name string, args ...string) (*exec.Cmd, io.Reader, error) {
	log, err := os.OpenFile(s.logFile(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	cmd := exec.Command(name, args...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "APOGEE_") { // APOGEE_BIN is for the suite, not for the server
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "HEAP=512m")
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	return cmd, out, nil
}

var readyLine = regexp.MustCompile(`^apogee ready .*namesrv=(\S+) broker=(\S+)`)

func (s *server) startApogee(namesPort, brokerPort string) error {
	args := []string{"server", "--data", filepath.Join(s.dir, "data"), "--log-level", "warn",
		"--namesrv-port", namesPort, "--broker-port", brokerPort, "--http-port", "0"}
	for _, kv := range s.settings {
		args = append(args, "--set", kv)
	}
	cmd, out, err := s.launch(suite.binary, args...)
	if err != nil {
		return err
	}
	s.processes = []*exec.Cmd{cmd}
	line := make(chan string, 1)
	go func() { // ends with the process
		r := bufio.NewReader(out)
		l, _ := r.ReadString('\n')
		line <- l
		_, _ = io.Copy(io.Discard, r)
	}()
	select {
	case l := <-line:
		m := readyLine.FindStringSubmatch(l)
		if m == nil {
			_ = s.stop()
			return fmt.Errorf("the server isn't ready, it said %q; its log: %s", l, s.logTail())
		}
		s.names, s.broker = m[1], m[2]
		return nil
	case <-time.After(readyWithin):
		_ = s.stop()
		return fmt.Errorf("the server isn't ready within %v; its log: %s", readyWithin, s.logTail())
	}
}

func (s *server) startJava() error {
	if s.names == "" {
		ports, err := freePorts()
		if err != nil {
			return err
		}
		s.names, s.broker = fmt.Sprint("127.0.0.1:", ports[0]), fmt.Sprint("127.0.0.1:", ports[1])
	}
	start := func(args ...string) error {
		cmd, out, err := s.launch(suite.binary, args...)
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(io.Discard, out) }()
		s.processes = append([]*exec.Cmd{cmd}, s.processes...) // the broker ends before the name server
		return nil
	}
	if err := start("namesrv", port(s.names)); err != nil {
		return err
	}
	// A cold broker that shares its processors with the suite would refuse what waited longer than 200 ms.
	args := append([]string{"broker", filepath.Join(s.dir, "data"), port(s.broker), s.names, "brokerFastFailureEnable=false"}, s.settings...)
	if err := start(args...); err != nil {
		_ = s.stop()
		return err
	}
	deadline := time.Now().Add(javaReadyWithin)
	for !s.registered() {
		if time.Now().After(deadline) {
			_ = s.stop()
			return fmt.Errorf("the Java broker isn't ready; its log: %s", s.logTail())
		}
		<-time.After(100 * time.Millisecond)
	}
	return nil
}

// registered reports whether the broker is there and known to the name server.
func (s *server) registered() bool {
	for _, addr := range []string{s.names, s.broker} {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return false
		}
		_ = c.Close()
	}
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{s.names})))
	if err != nil {
		return false
	}
	defer a.Close()
	queues, err := a.FetchPublishMessageQueues(context.Background(), "TBW102")
	return err == nil && len(queues) > 0
}

// freePorts finds a port for a name server, and one for a broker whose VIP and replication ports beside it are free.
func freePorts() ([2]int, error) {
	var out [2]int
	for range 50 {
		var ls []net.Listener
		listen := func(p int) int {
			l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", p))
			if err != nil {
				return 0
			}
			ls = append(ls, l)
			return l.Addr().(*net.TCPAddr).Port
		}
		names, broker := listen(0), listen(0)
		ok := names != 0 && broker != 0 && listen(broker-2) != 0 && listen(broker+1) != 0
		for _, l := range ls {
			_ = l.Close()
		}
		if ok {
			out = [2]int{names, broker}
			return out, nil
		}
	}
	return out, fmt.Errorf("no free ports found")
}

func port(addr string) string {
	_, p, _ := net.SplitHostPort(addr)
	return p
}

// brokerName asks the name server for the broker's name, once.
func (s *server) brokerName(c *testCase) string {
	c.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.name == "" {
		queues, err := c.admin(s).FetchPublishMessageQueues(context.Background(), "TBW102")
		c.must(err)
		if len(queues) == 0 {
			c.Fatalf("no broker is registered")
		}
		s.name = queues[0].BrokerName
	}
	return s.name
}

// queue names a queue of a topic.
func (s *server) queue(c *testCase, topic string, id int) *primitive.MessageQueue {
	c.Helper()
	return &primitive.MessageQueue{Topic: topic, BrokerName: s.brokerName(c), QueueId: id}
}

func itoa(i int) string { return strconv.Itoa(i) }
