package badinput

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The server that the tests speak to, and the client that behaves.
var (
	target  *server
	witness *behaved
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "apogee-badinput-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(folder)
	binary := os.Getenv("APOGEE_BIN")
	if binary == "" {
		binary = filepath.Join(folder, "apogee")
		build := exec.Command("go", "build", "-o", binary, "./cmd/apogee")
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Printf("build the server: %v\n%s", err, out)
			return 1
		}
	}
	if target, err = startServer(binary, filepath.Join(folder, "data")); err != nil {
		fmt.Println(err)
		return 1
	}
	witness = startBehaved(target)
	status := m.Run()
	if err := witness.stop(); err != nil {
		fmt.Println("the client that behaves:", err)
		status = 1
	}
	if err := target.stop(); err != nil {
		fmt.Println("the server after all this:", err)
		status = 1
	}
	return status
}

// server is a running server.
type server struct {
	cmd                 *exec.Cmd
	dir                 string
	names, broker, http string // addresses
	vip                 string // the broker's other listener
	log                 lockedBuffer
}

const idleSeconds = 3 // after which this server closes a silent connection; 120 by default

var readyLine = regexp.MustCompile(`^apogee ready .*namesrv=(\S+) broker=(\S+) http=(\S+)`)

func startServer(binary, dir string) (*server, error) {
	s := &server{dir: dir}
	s.cmd = exec.Command(binary, "server", "--data", dir, "--log-level", "warn", "--namesrv-port", "0", "--broker-port", "0", "--http-port", "0",
		"--set", "serverChannelMaxIdleTimeSeconds="+strconv.Itoa(idleSeconds))
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "APOGEE_") {
			s.cmd.Env = append(s.cmd.Env, kv)
		}
	}
	s.cmd.Stderr = &s.log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
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
			return nil, fmt.Errorf("the server said %q, and %s", l, s.log.String())
		}
		s.names, s.broker, s.http = m[1], m[2], m[3]
		host, port, err := net.SplitHostPort(s.broker)
		if err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(port)
		if err != nil {
			return nil, err
		}
		s.vip = net.JoinHostPort(host, strconv.Itoa(n-2))
		return s, nil
	case <-time.After(20 * time.Second):
		_ = s.stop()
		return nil, fmt.Errorf("the server isn't ready within 20 s: %s", s.log.String())
	}
}

// stop ends the server as an operator would; it must end by itself, and say that all was well.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(20*time.Second, func() { _ = s.cmd.Process.Kill() })
	defer kill.Stop()
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, s.log.String())
	}
	return nil
}

// metrics returns the server's figures, by name with labels.
func (s *server) metrics(t *testing.T) map[string]float64 {
	t.Helper()
	r, err := http.Get("http://" + s.http + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, line := range strings.Split(string(text), "\n") {
		name, value, ok := strings.Cut(line, " ")
		if strings.HasPrefix(line, "#") || !ok {
			continue
		}
		if f, err := strconv.ParseFloat(value, 64); err == nil {
			out[name] = f
		}
	}
	return out
}

// resident returns the server's resident memory in bytes.
func (s *server) resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	var kb int
	if _, err := fmt.Sscan(after, &kb); err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// eventually waits until cond holds.
func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		<-tick.C
	}
}

// lockedBuffer keeps what the server says.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.b.Len() > 1<<20 {
		return len(p), nil // enough of it
	}
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.b.String()
	return s[max(0, len(s)-4000):]
}

// behaved is a client that sends and pulls all the time on two connections, looks the route up now and then, and notes
// the first thing that isn't as it should be.
type behaved struct {
	quit   chan struct{}
	done   chan struct{}
	rounds atomic.Int64

	mu      sync.Mutex
	err     error
	slowest time.Duration
}

func startBehaved(s *server) *behaved {
	w := &behaved{quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		if err := w.work(s); err != nil {
			w.mu.Lock()
			w.err = err
			w.mu.Unlock()
		}
	}()
	return w
}

func (w *behaved) work(s *server) error {
	var conns [3]*client
	for i, addr := range []string{s.broker, s.broker, s.names} {
		c, err := dial(addr)
		if err != nil {
			return err
		}
		defer c.Close()
		conns[i] = c
	}
	producer, consumer, names := conns[0], conns[1], conns[2]
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for n := int64(0); ; n++ {
		select {
		case <-w.quit:
			return nil
		case <-tick.C:
		}
		began := time.Now()
		body := fmt.Sprintf("message %d of one who behaves", n)
		a, err := producer.call(sendMessage, sendFields("behaved"), []byte(body))
		if err != nil || a.Code != success || a.ExtFields["queueOffset"] != strconv.FormatInt(n, 10) {
			return fmt.Errorf("send %d: %+v, %w", n, a.header, err)
		}
		a, err = consumer.call(pullMessage, pullFields("behaved", n), nil)
		if err != nil || a.Code != success || !bytes.Contains(a.body, []byte(body)) {
			return fmt.Errorf("pull %d: %+v with %d bytes, %w", n, a.header, len(a.body), err)
		}
		if n%20 == 0 {
			a, err = names.call(routeOfTopic, map[string]string{"topic": "behaved"}, nil)
			if err != nil || a.Code != success || !bytes.Contains(a.body, []byte(s.broker)) {
				return fmt.Errorf("route: %+v %s, %w", a.header, a.body, err)
			}
		}
		w.mu.Lock()
		w.slowest = max(w.slowest, time.Since(began))
		w.mu.Unlock()
		w.rounds.Add(1)
	}
}

func (w *behaved) stop() error {
	close(w.quit)
	<-w.done
	fmt.Printf("the client that behaves: %d messages sent and pulled, the slowest took %v\n", w.rounds.Load(), w.slowest.Round(time.Millisecond))
	return w.err
}

// unharmed checks, when the test ends, that the client that behaves goes on, and that the server has no panic to report.
func unharmed(t *testing.T) {
	t.Helper()
	began := witness.rounds.Load()
	t.Cleanup(func() {
		from := witness.rounds.Load()
		eventually(t, answersWithin, "the client that behaves goes on", func() bool {
			witness.mu.Lock()
			err := witness.err
			witness.mu.Unlock()
			if err != nil {
				t.Fatalf("the client that behaves: %v", err)
			}
			return witness.rounds.Load() >= from+3
		})
		m := target.metrics(t)
		if n := m[`apogee_handler_panics_total{role="broker"}`] + m[`apogee_handler_panics_total{role="namesrv"}`]; n != 0 {
			t.Errorf("%v panics in the server: %s", n, target.log.String())
		}
		t.Logf("the client that behaves did %d rounds meanwhile", witness.rounds.Load()-began)
	})
}
