// Package apogeetest runs a whole server, name server and broker, inside a test's process:
//
//	func TestOrders(t *testing.T) {
//		s := apogeetest.Start(t)
//		c, err := client.New(client.WithNameServers(s.NameServer()))
//		…
//	}
//
// It is the same server as the binary's, on free ports of the loopback address and on a temporary folder, ready in
// milliseconds and stopped when the test ends. Tests that run in parallel each start their own. Any RocketMQ client
// can use it, not only this project's.
//
// Three defaults differ from the binary's, and WithSetting gives each of them back: sends are answered when the
// operating system has them (flushDiskType=ASYNC_FLUSH), the store's files are small, and the broker is named
// "apogeetest". Topics and groups come into being when they are first used; the number of a topic's queues is
// the setting defaultTopicQueueNums.
package apogeetest

import (
	"context"
	"log/slog"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/config"
	"github.com/apogeemq/apogee/internal/server"
)

// stopWithin bounds a stop: a server that takes longer fails the test.
const stopWithin = 20 * time.Second

// Server is a server in this process. Its methods may be used by several goroutines, but those that can fail the
// test (Stop, Restart) belong on the test's own, as testing.TB.FailNow does.
type Server struct {
	t        testing.TB
	dir      string
	log      *slog.Logger
	settings []setting

	mu      sync.Mutex
	running *server.Server // nil between Stop and Restart
	held    []heldPort     // of the ports, between Stop and Restart

	names, broker, http string // addresses, the same for the whole test
}

type setting struct{ key, value string }

// Option sets something of a Server.
type Option func(*Server)

// WithSetting sets one of the server's settings; `apogee server --help` and the README name them. The last value of a
// key counts. A key without a meaning here or an illegal value fails the test.
//
// Ports are for whoever needs fixed ones: by default all are free ones.
func WithSetting(key, value string) Option {
	return func(s *Server) { s.settings = append(s.settings, setting{key, value}) }
}

// WithDir makes the server use a folder, which may hold a store already, instead of a temporary one. The folder is
// left as it is after the test. The sizes of the store's files must be those the store was made with: for one that
// was made by the binary or by Java set mappedFileSizeCommitLog=1073741824, maxHashSlotNum=5000000 and
// maxIndexNum=20000000.
func WithDir(dir string) Option {
	return func(s *Server) { s.dir = dir }
}

// WithLogger sets where the server logs. Default: its warnings and errors are in the test's output.
func WithLogger(l *slog.Logger) Option {
	return func(s *Server) { s.log = l }
}

// Start starts a server and returns when it serves. It is stopped by t.Cleanup. Whatever keeps it from starting
// fails the test.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s := &Server{t: t}
	for _, o := range opts {
		o(s)
	}
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	if s.log == nil {
		s.log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	s.settings = append([]setting{
		{"namesrvPort", "0"}, {"listenPort", "0"}, {"httpPort", "0"}, {"brokerName", "apogeetest"},
		{"flushDiskType", "ASYNC_FLUSH"}, {"mappedFileSizeCommitLog", strconv.Itoa(64 << 20)},
		{"maxHashSlotNum", "50000"}, {"maxIndexNum", "200000"},
	}, s.settings...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startLocked()
	s.names, s.broker, s.http = s.running.NamesrvAddr, s.running.BrokerAddr, s.running.HTTPAddr
	t.Cleanup(s.cleanup)
	return s
}

// NameServer returns the name server's address as host:port. It is what clients need.
func (s *Server) NameServer() string { return s.names }

// Broker returns the broker's address as host:port. Clients learn it from the name server.
func (s *Server) Broker() string { return s.broker }

// HTTP returns the address of /healthz, /readyz and /metrics as host:port.
func (s *Server) HTTP() string { return s.http }

// Dir returns the folder of the store.
func (s *Server) Dir() string { return s.dir }

// Stop stops the server as a signal does: parked pulls are answered, connections end, everything is written. Nobody
// else gets its ports until the test ends: whoever connects is refused. A second Stop does nothing.
func (s *Server) Stop() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopLocked()
}

// Restart stops the server if it runs, and starts it on the same folder and the same ports.
func (s *Server) Restart() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopLocked()
	s.startLocked()
}

// DropConnections closes the connections of all clients without a word, as a network that fails does, and the server
// goes on: what was being answered is lost, and clients connect anew.
func (s *Server) DropConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		s.running.DropConnections()
	}
}

func (s *Server) startLocked() {
	s.t.Helper()
	c := config.New()
	set := func(key, value string) {
		s.t.Helper()
		if err := c.Set(key, value, "apogeetest"); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, kv := range s.settings {
		set(kv.key, kv.value)
	}
	set("storePathRootDir", s.dir)
	if s.names != "" { // again: the ports that clients know
		for key, addr := range map[string]string{"namesrvPort": s.names, "listenPort": s.broker, "httpPort": s.http} {
			set(key, portOf(addr))
		}
	}
	for _, n := range c.Notes { // a test is no place for settings that do nothing
		s.t.Fatal(n)
	}
	started, err := server.Start(c, server.Roles{NameServer: true, Broker: true}, s.log, time.Now())
	release(s.held)
	s.held = nil
	if err != nil {
		s.t.Fatalf("apogeetest: start the server: %v", err)
	}
	s.running = started
}

func (s *Server) stopLocked() {
	s.t.Helper()
	if s.running == nil {
		return
	}
	if err := s.closeLocked(); err != nil {
		s.t.Fatalf("apogeetest: stop the server: %v", err)
	}
	for _, addr := range []string{s.names, s.broker, vip(s.broker), s.http} {
		h, err := holdPort(addr)
		if err != nil {
			s.t.Fatalf("apogeetest: keep the port of %s while the server is stopped: %v", addr, err)
		}
		s.held = append(s.held, h)
	}
}

func (s *Server) closeLocked() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	running := s.running
	s.running = nil
	return running.Close(ctx)
}

func (s *Server) cleanup() {
	s.mu.Lock()
	defer s.mu.Unlock()
	release(s.held)
	s.held = nil
	if s.running == nil {
		return
	}
	if err := s.closeLocked(); err != nil {
		s.t.Errorf("apogeetest: stop the server: %v", err)
	}
}

func portOf(addr string) string {
	return strconv.Itoa(int(netip.MustParseAddrPort(addr).Port()))
}

// vip returns the address of the broker's second listener.
func vip(broker string) string {
	a := netip.MustParseAddrPort(broker)
	return netip.AddrPortFrom(a.Addr(), a.Port()-2).String()
}
