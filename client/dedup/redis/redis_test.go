package redis_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/client/dedup"
	"github.com/apogeemq/apogee/client/dedup/redis"
	"github.com/apogeemq/apogee/client/dedup/storetest"
)

const wait = 20 * time.Second // for what must come

// childEnv names the socket of the server for a process that is to die with a claim in its hands.
const childEnv = "DEDUP_CHILD_SOCKET"

func TestMain(m *testing.M) {
	if sock := os.Getenv(childEnv); sock != "" {
		child(sock)
	}
	goleak.VerifyTestMain(m)
}

// server is a redis-server of a test.
type server struct {
	t    testing.TB
	dir  string
	sock string
	cmd  *exec.Cmd
}

// start starts the distribution's redis-server in a folder of its own, reachable by a socket there. It keeps an
// append-only file, written before each answer.
func start(t testing.TB) *server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server isn't on the PATH: install the package redis-server")
	}
	dir, err := os.MkdirTemp("", "redis") // the path of a socket has room for 107 bytes: t.TempDir's may be longer
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: dir, sock: filepath.Join(dir, "s")}
	t.Cleanup(func() {
		s.kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s.run()
	return s
}

func (s *server) run() {
	s.t.Helper()
	var out bytes.Buffer
	s.cmd = exec.Command("redis-server", "--port", "0", "--unixsocket", s.sock, "--dir", s.dir, "--save", "", "--appendonly", "yes", "--appendfsync", "always", "--loglevel", "warning")
	s.cmd.Stdout, s.cmd.Stderr = &out, &out
	// A test process that is killed takes it along.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	c := s.client()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for {
		err := c.Ping(ctx).Err()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			s.kill()
			s.t.Fatalf("redis-server isn't ready: %v\n%s", err, out.String())
		}
	}
}

// kill ends the server as a crash does.
func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// client returns a client of its own connections, as another process has them.
func (s *server) client() *goredis.Client {
	c := goredis.NewClient(&goredis.Options{Network: "unix", Addr: s.sock, ContextTimeoutEnabled: true})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *server) store(opts ...redis.Option) *redis.Store {
	s.t.Helper()
	st, err := redis.New(s.client(), opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return st
}

func TestStore(t *testing.T) {
	s := start(t)
	n := 0
	storetest.Run(t, func(testing.TB) dedup.Store {
		n++
		return s.store(redis.WithPrefix(fmt.Sprint("test", n, ":")))
	})
}

// TestKeysLiveAsLongAsTheyAreSaid: the times go to Redis in milliseconds, and the keys are those that the package
// documents.
func TestKeysLiveAsLongAsTheyAreSaid(t *testing.T) {
	s := start(t)
	st, c, ctx := s.store(), s.client(), t.Context()
	value := func(key, want string, ttl time.Duration) {
		t.Helper()
		if got := c.Get(ctx, key).Val(); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
		if got := c.PTTL(ctx, key).Val(); got > ttl || got < ttl-wait {
			t.Errorf("%s lives for %v, want %v", key, got, ttl)
		}
	}
	if _, err := st.Claim(ctx, "g:1", "tok", 90*time.Second+time.Millisecond); err != nil {
		t.Fatal(err)
	}
	value("apogee:dedup:g:1", "claim:tok", 90*time.Second+time.Millisecond)
	if _, err := st.Claim(ctx, "g:1", "tok", time.Hour); err != nil {
		t.Fatal(err)
	}
	value("apogee:dedup:g:1", "claim:tok", time.Hour)
	if err := st.Confirm(ctx, "g:1", "tok", 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	value("apogee:dedup:g:1", "handled", 24*time.Hour)
	if n := c.DBSize(ctx).Val(); n != 1 {
		t.Errorf("%d keys, want 1", n)
	}
}

func TestAServerThatForgotTheScriptsGetsThemAgain(t *testing.T) {
	s := start(t)
	st, ctx := s.store(), t.Context()
	for range 2 {
		if err := s.client().ScriptFlush(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := st.Claim(ctx, "k", "one", time.Hour); got != dedup.Claimed || err != nil {
			t.Fatal(got, err)
		}
		if got, err := st.Claim(ctx, "k", "two", time.Hour); got != dedup.Busy || err != nil {
			t.Fatal(got, err)
		}
		if err := st.Release(ctx, "k", "one"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMembersShareWhatWasHandled: each member of the group has its own connections.
func TestMembersShareWhatWasHandled(t *testing.T) {
	s := start(t)
	var calls atomic.Int32
	var members []func(context.Context, *client.Message) error
	for range 4 {
		h, err := dedup.Wrap(func(context.Context, *client.Message) error { calls.Add(1); return nil }, s.store(), "billing")
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, h)
	}
	const messages = 200
	errs := make(chan error, len(members))
	for _, h := range members { // every member gets every message, all at once, until it is handled
		go func() {
			for i := range messages {
				for {
					err := h(t.Context(), &client.Message{Topic: "Orders", ID: fmt.Sprint(i)})
					if err == nil {
						break
					}
					if !errors.Is(err, dedup.ErrInProgress) {
						errs <- err
						return
					}
				}
			}
			errs <- nil
		}()
	}
	for range members {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if n := calls.Load(); n != messages {
		t.Errorf("%d calls for %d messages", n, messages)
	}
}

func TestClaimsSurviveACrashOfRedis(t *testing.T) {
	s := start(t)
	st, ctx := s.store(), t.Context()
	if _, err := st.Claim(ctx, "claimed", "one", time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := st.Confirm(ctx, "handled", "one", time.Hour); err != nil {
		t.Fatal(err)
	}
	s.kill()
	if _, err := st.Claim(ctx, "claimed", "two", time.Hour); err == nil || !strings.Contains(err.Error(), "redis: claim: ") {
		t.Errorf("without a server: %v", err)
	}
	if err := os.Remove(s.sock); err != nil {
		t.Fatal(err)
	}
	s.run()
	for key, want := range map[string]dedup.Outcome{"claimed": dedup.Busy, "handled": dedup.Handled} {
		if got, err := st.Claim(ctx, key, "two", time.Hour); got != want || err != nil {
			t.Errorf("%s is %v, %v, want %v", key, got, err, want)
		}
	}
}

// crashLease is long enough to be extended by a process on a busy machine, and short enough to be waited for.
const crashLease = 3 * time.Second

// child handles a message for ever.
func child(sock string) {
	st, err := redis.New(goredis.NewClient(&goredis.Options{Network: "unix", Addr: sock, ContextTimeoutEnabled: true}))
	if err != nil {
		log.Fatal(err)
	}
	h, err := dedup.Wrap(func(context.Context, *client.Message) error {
		fmt.Println("handling")
		select {}
	}, st, "billing", dedup.WithLease(crashLease))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(h(context.Background(), &client.Message{Topic: "Orders", ID: "1"}))
}

// TestAProcessThatIsKilledLeavesItsMessageToOthersAfterTheLease: the handler of another process runs for longer than its
// lease, and the message is its own all the time; then the process is killed.
func TestAProcessThatIsKilledLeavesItsMessageToOthersAfterTheLease(t *testing.T) {
	s := start(t)
	dying := exec.Command(os.Args[0])
	dying.Env = append(os.Environ(), childEnv+"="+s.sock)
	dying.Stderr = os.Stderr
	out, err := dying.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := dying.Start(); err != nil {
		t.Fatal(err)
	}
	kill := sync.OnceFunc(func() {
		_ = dying.Process.Kill()
		_ = dying.Wait()
	})
	defer kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "handling\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}

	calls := 0
	h, err := dedup.Wrap(func(context.Context, *client.Message) error { calls++; return nil }, s.store(), "billing", dedup.WithLease(crashLease))
	if err != nil {
		t.Fatal(err)
	}
	m := &client.Message{Topic: "Orders", ID: "1"}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < 2*crashLease; <-tick.C {
		if err := h(t.Context(), m); !errors.Is(err, dedup.ErrInProgress) {
			t.Fatalf("while the other process handles it: %v", err)
		}
	}
	kill()
	died := time.Now()
	for err = h(t.Context(), m); errors.Is(err, dedup.ErrInProgress) && time.Since(died) < wait; err = h(t.Context(), m) {
		<-tick.C
	}
	if err != nil || calls != 1 {
		t.Fatalf("%v after the death: %v, %d calls", time.Since(died), err, calls)
	}
	t.Logf("handled %v after the other process died, with a lease of %v", time.Since(died).Round(time.Millisecond), crashLease)
	if err := h(t.Context(), m); err != nil || calls != 1 {
		t.Errorf("once more: %v, %d calls", err, calls)
	}
}

// TestARedisThatHangsKeepsNobodyBeyondItsTime: a stopped process takes connections and answers nothing.
func TestARedisThatHangsKeepsNobodyBeyondItsTime(t *testing.T) {
	s := start(t)
	st := s.store()
	h, err := dedup.Wrap(func(context.Context, *client.Message) error { t.Error("handled"); return nil }, st, "billing", dedup.WithStoreTimeout(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	s.signal(syscall.SIGSTOP)
	defer s.signal(syscall.SIGCONT)
	err = h(t.Context(), &client.Message{Topic: "Orders", ID: "1"})
	var ne net.Error
	if !errors.Is(err, context.DeadlineExceeded) && (!errors.As(err, &ne) || !ne.Timeout()) {
		t.Errorf("%v, want a timeout", err)
	}
}

func TestAForeignKeyIsLeftAlone(t *testing.T) {
	s := start(t)
	st, c, ctx := s.store(redis.WithPrefix("x:")), s.client(), t.Context()
	if err := c.LPush(ctx, "x:k", "something else").Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := st.Claim(ctx, "k", "one", time.Hour); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("Claim = %v, %v, want Redis's refusal", got, err)
	}
	if err := st.Confirm(ctx, "k", "one", time.Hour); err == nil {
		t.Error("a list was confirmed")
	}
	if err := st.Release(ctx, "k", "one"); err == nil {
		t.Error("a list was released")
	}
	if n := c.LLen(ctx, "x:k").Val(); n != 1 {
		t.Errorf("the list has %d entries, want 1", n)
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	good := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true})
	defer good.Close()
	deaf := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"})
	defer deaf.Close()
	deafCluster := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer deafCluster.Close()
	deafRing := goredis.NewRing(&goredis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer deafRing.Close()
	for _, c := range []struct {
		want string
		c    goredis.UniversalClient
		opts []redis.Option
	}{
		{"the client is nil", nil, nil},
		{"ContextTimeoutEnabled", deaf, nil},
		{"ContextTimeoutEnabled", deafCluster, nil},
		{"ContextTimeoutEnabled", deafRing, nil},
		{"WithPrefix: empty", good, []redis.Option{redis.WithPrefix("")}},
	} {
		if _, err := redis.New(c.c, c.opts...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if _, err := redis.New(good); err != nil {
		t.Error(err)
	}
}

func BenchmarkClaimAndConfirm(b *testing.B) {
	s := start(b)
	st := s.store()
	b.RunParallel(func(pb *testing.PB) {
		for n := 0; pb.Next(); n++ {
			key := fmt.Sprintf("billing:%p:%d", pb, n)
			if got, err := st.Claim(b.Context(), key, "t", time.Minute); got != dedup.Claimed || err != nil {
				b.Fatal(got, err)
			}
			if err := st.Confirm(b.Context(), key, "t", time.Minute); err != nil {
				b.Fatal(err)
			}
		}
	})
}
