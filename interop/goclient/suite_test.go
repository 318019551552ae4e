package goclient

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// The environment that the suite reads.
const (
	envBinary  = "APOGEE_BIN"      // the server under test; built from ../.. when unset
	envResults = "INTEROP_RESULTS" // file to which a line for each case is appended
	envServer  = "INTEROP_SERVER"  // "java" runs the cases against the released Java servers instead
	envPeer    = "JAVA_PEER"       // path of the java-peer script, for that
	envChild   = "INTEROP_CHILD"   // set in the consumers that the suite starts as processes of their own
	envFolder  = "INTEROP_FOLDER"  // the suite's temporary folder, set by its first stage

	// envOffsets is the client's: where broadcasting consumers keep their offsets. The client reads it before main.
	envOffsets = "rocketmq.client.localOffsetStoreDir"
)

// How many cases run side by side: nearly all of them wait nearly all of the time. The Java servers, cold as they
// are, get fewer.
const (
	atOnce     = "48"
	atOnceJava = "4"
)

func TestMain(m *testing.M) {
	rlog.SetLogLevel("fatal")
	if spec := os.Getenv(envChild); spec != "" {
		os.Exit(child(spec))
	}
	folder := os.Getenv(envFolder)
	if folder == "" {
		fmt.Println(firstStage())
		os.Exit(1)
	}
	os.Exit(run(m, folder))
}

// firstStage replaces this process by itself, with a folder of its own for the client's local offsets: the client
// takes its path from the environment before main begins. It returns only when that fails.
func firstStage() error {
	folder, err := os.MkdirTemp("", "apogee-interop-")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	env := append(os.Environ(), envFolder+"="+folder, envOffsets+"="+filepath.Join(folder, "offsets"))
	return syscall.Exec(self, os.Args, env)
}

func run(m *testing.M, folder string) int {
	defer os.RemoveAll(folder)
	suite.folder = folder
	suite.java = os.Getenv(envServer) == "java"
	parallel := atOnce
	if suite.java {
		parallel = atOnceJava
	}
	if err := flag.Set("test.parallel", parallel); err != nil {
		fmt.Println(err)
		return 1
	}
	if err := suite.prepare(); err != nil {
		fmt.Println(err)
		return 1
	}
	status := m.Run()
	if err := suite.stop(); err != nil {
		fmt.Println(err)
		status = 1
	}
	return status
}

// suite is what all cases share.
var suite suiteState

type suiteState struct {
	folder string
	java   bool
	binary string // of the server, or the java-peer script

	mu      sync.Mutex
	servers map[string]*sharedServer // by their settings
	unique  atomic.Int64
	results sync.Mutex // guards the result file
}

type sharedServer struct {
	once sync.Once
	s    *server
	err  error
}

// prepare finds or builds the server's binary.
func (s *suiteState) prepare() error {
	s.servers = map[string]*sharedServer{}
	if s.java {
		s.binary = os.Getenv(envPeer)
		if s.binary == "" {
			return fmt.Errorf("%s=java needs %s, the path of the java-peer script", envServer, envPeer)
		}
		return nil
	}
	if s.binary = os.Getenv(envBinary); s.binary != "" {
		return nil
	}
	s.binary = filepath.Join(s.folder, "apogee")
	build := exec.Command("go", "build", "-o", s.binary, "./cmd/apogee")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the server: %w\n%s", err, out)
	}
	return nil
}

// shared returns the server with these settings that cases share; the first one to ask starts it.
func (s *suiteState) shared(settings ...string) (*server, error) {
	key := strings.Join(settings, " ")
	s.mu.Lock()
	e := s.servers[key]
	if e == nil {
		e = &sharedServer{}
		s.servers[key] = e
	}
	n := len(s.servers)
	s.mu.Unlock()
	e.once.Do(func() { e.s, e.err = startServer(filepath.Join(s.folder, fmt.Sprint("shared", n)), settings) })
	return e.s, e.err
}

func (s *suiteState) stop() (failed error) {
	for _, e := range s.servers {
		if e.s != nil {
			failed = errors.Join(failed, e.s.stop())
		}
	}
	return failed
}

// testCase is one row of the interop table while it runs.
type testCase struct {
	*testing.T
	name string

	mu     sync.Mutex
	note   string // why it was skipped or failed, or what it measured
	broken bool   // note says why it failed, and stays
}

// begin starts the case of that name, side by side with the others, and writes its line of the result file when it
// has ended and its clients are gone.
func begin(t *testing.T, name string) *testCase {
	t.Helper()
	t.Parallel()
	c := &testCase{T: t, name: name}
	began := time.Now()
	t.Cleanup(func() { c.writeResult(time.Since(began)) })
	return c
}

// sub runs a part of the case side by side with its other parts. What fails in it is noted in the case's line.
func (c *testCase) sub(name string, f func(sub *testCase)) {
	c.Run(name, func(t *testing.T) {
		sub := &testCase{T: t, name: c.name}
		t.Cleanup(func() {
			if t.Failed() {
				c.failed(name + ": " + sub.note)
			}
		})
		t.Parallel()
		f(sub)
	})
}

func (c *testCase) writeResult(took time.Duration) {
	path := os.Getenv(envResults)
	if path == "" {
		return
	}
	client, state := "go", "pass"
	if suite.java {
		client = "go on the Java server"
	}
	switch {
	case c.Failed():
		state = "fail"
	case c.Skipped():
		state = "skip"
	}
	c.mu.Lock()
	note := strings.Join(strings.Fields(strings.ReplaceAll(c.note, "|", "/")), " ")
	c.mu.Unlock()
	line := fmt.Sprintf("%s\t%s\t%s\t%.1f\t%s\n", client, c.name, state, took.Seconds(), note)
	suite.results.Lock()
	defer suite.results.Unlock()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		c.T.Error(err)
		return
	}
	_, err = f.WriteString(line)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		c.T.Error(err)
	}
}

// say sets what the result line says beside the state.
func (c *testCase) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.broken {
		c.note = fmt.Sprintf(format, args...)
	}
}

func (c *testCase) failed(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.broken {
		c.broken, c.note = true, what
	}
}

func (c *testCase) Fatalf(format string, args ...any) {
	c.Helper()
	c.failed(fmt.Sprintf(format, args...))
	c.T.Fatalf(format, args...)
}

func (c *testCase) Errorf(format string, args ...any) {
	c.Helper()
	c.failed(fmt.Sprintf(format, args...))
	c.T.Errorf(format, args...)
}

func (c *testCase) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatalf("%v", err)
	}
}

// skip ends the case with a reason for the table.
func (c *testCase) skip(format string, args ...any) {
	c.Helper()
	c.say(format, args...)
	c.T.Skipf(format, args...)
}

// apogeeOnly skips the case on the Java servers, with what they do instead.
func (c *testCase) apogeeOnly(java string) {
	c.Helper()
	if suite.java {
		c.skip("Apogee only: %s", java)
	}
}

// unique makes a name of a topic, group or client that nobody else uses.
func (c *testCase) unique(what string) string {
	return fmt.Sprintf("%s-%s-%d-%d", c.name, what, os.Getpid(), suite.unique.Add(1))
}

// server returns the shared server with these settings (key=value).
func (c *testCase) server(settings ...string) *server {
	c.Helper()
	s, err := suite.shared(settings...)
	c.must(err)
	return s
}

// ownServer starts a server for this case alone.
func (c *testCase) ownServer(settings ...string) *server {
	c.Helper()
	s, err := startServer(c.TempDir(), settings)
	c.must(err)
	c.Cleanup(func() {
		if err := s.stop(); err != nil {
			c.Errorf("%v", err)
		}
	})
	c.Cleanup(func() {
		if c.Failed() {
			c.Logf("the server's log:\n%s", s.logTail())
		}
	})
	return s
}

// eventually waits until cond holds, and fails the case when it doesn't in time. what may be a string or a
// func() string that describes the state in which it failed.
func (c *testCase) eventually(within time.Duration, what any, cond func() bool) {
	c.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			if f, ok := what.(func() string); ok {
				what = f()
			}
			c.Fatalf("not within %v: %v", within, what)
		}
		<-tick.C
	}
}

// forAWhile checks that cond holds all the time.
func (c *testCase) forAWhile(d time.Duration, what string, cond func() bool) {
	c.Helper()
	deadline := time.Now().Add(d)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(deadline) {
		if !cond() {
			c.Fatalf("not for %v: %s", d, what)
		}
		<-tick.C
	}
}

// until waits for a moment.
func until(at time.Time) {
	<-time.After(time.Until(at))
}
