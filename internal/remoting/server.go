package remoting

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Stats counts what happened on connections. A server and its connections share one.
type Stats struct {
	Frames   atomic.Int64 // whole frames read
	Accepted atomic.Int64 // connections
	Refused  atomic.Int64 // connections over the limit
	Idle     atomic.Int64 // connections closed for idleness
	Slow     atomic.Int64 // connections cut off for not reading
	Panics   atomic.Int64 // handlers that panicked

	mu      sync.Mutex
	bad     map[string]int64 // frame errors by kind
	nextLog time.Time
}

func (s *Stats) badFrame(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad == nil {
		s.bad = make(map[string]int64)
	}
	s.bad[kind]++
}

// BadFrames returns the frame errors by kind.
func (s *Stats) BadFrames() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]int64, len(s.bad))
	for k, n := range s.bad {
		out[k] = n
	}
	return out
}

// mayLog lets one line a second through, so that garbage can't fill a disk.
func (s *Stats) mayLog() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(s.nextLog) {
		return false
	}
	s.nextLog = now.Add(time.Second)
	return true
}

// ServerOptions are the options of a Server.
type ServerOptions struct {
	Handler Handler
	Limits  Limits
	Stats   *Stats
	Logger  *slog.Logger
	Opened  func(*Conn)        // may be nil
	Closed  func(*Conn, error) // may be nil; called exactly once a connection
	NextID  func() uint64      // connection ids
}

// Server accepts connections on one or more listeners.
type Server struct {
	o ServerOptions

	mu     sync.Mutex
	conns  map[*Conn]struct{}
	lns    []net.Listener
	closed bool
	wg     sync.WaitGroup // accept loops
}

// NewServer returns a server that listens nowhere yet.
func NewServer(o ServerOptions) *Server {
	o.Limits = o.Limits.withDefaults()
	if o.Stats == nil {
		o.Stats = new(Stats)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.NextID == nil {
		var n atomic.Uint64
		o.NextID = func() uint64 { return n.Add(1) }
	}
	return &Server{o: o, conns: make(map[*Conn]struct{})}
}

// Listen opens a listener without accepting yet, so that ports can be known and refused before anything starts.
func Listen(addr netip.AddrPort) (net.Listener, error) {
	l, err := net.Listen("tcp", addr.String())
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return l, nil
}

// Serve accepts connections from l until Close, in a goroutine of its own.
func (s *Server) Serve(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = l.Close()
		return
	}
	s.lns = append(s.lns, l)
	s.wg.Go(func() { s.accept(l) })
}

func (s *Server) accept(l net.Listener) {
	pause := time.Millisecond
	for {
		nc, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: wait for some to come back
			if s.o.Stats.mayLog() {
				s.o.Logger.Error("accept failed", "listener", l.Addr(), "error", err)
			}
			t := time.NewTimer(pause)
			<-t.C
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		s.open(nc)
	}
}

func (s *Server) open(nc net.Conn) {
	s.mu.Lock()
	if s.closed || len(s.conns) >= s.o.Limits.MaxConns {
		full := !s.closed
		s.mu.Unlock()
		_ = nc.Close()
		if full {
			s.o.Stats.Refused.Add(1)
			if s.o.Stats.mayLog() {
				s.o.Logger.Warn("refused a connection: the limit is reached", "limit", s.o.Limits.MaxConns, "remote", nc.RemoteAddr())
			}
		}
		return
	}
	c := newConn(nc, s.o.NextID(), s.o.Handler, s.o.Limits, s.o.Stats, s.o.Logger, s.connClosed)
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	s.o.Stats.Accepted.Add(1)
	if s.o.Opened != nil {
		s.o.Opened(c)
	}
	c.start()
}

func (s *Server) connClosed(c *Conn, reason error) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	if !isReset(reason) && !errors.Is(reason, ErrIdle) && !errors.Is(reason, ErrClosed) && s.o.Stats.mayLog() {
		s.o.Logger.Info("connection closed", "remote", c.remote, "reason", reason)
	}
	if s.o.Closed != nil {
		s.o.Closed(c, reason)
	}
}

// Conns returns the number of open connections.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// StopAccepting closes the listeners; open connections go on.
func (s *Server) StopAccepting() {
	s.mu.Lock()
	lns := s.lns
	s.lns = nil
	s.mu.Unlock()
	for _, l := range lns {
		_ = l.Close()
	}
	s.wg.Wait()
}

// DropConns closes every open connection, as a network that fails does; what they would have answered is lost. The
// server goes on accepting.
func (s *Server) DropConns() {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.Close(ErrClosed)
	}
}

// Close closes the listeners and every connection, and waits for their goroutines or for ctx. Answers that were
// enqueued before are given a moment to leave.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.StopAccepting()
	s.mu.Lock()
	conns := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	flush, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	for _, c := range conns {
		c.flush(flush)
		c.Close(ErrClosed)
	}
	for _, c := range conns {
		select {
		case <-c.done:
		case <-ctx.Done():
			return fmt.Errorf("close server: %w", ctx.Err())
		}
	}
	return nil
}

// flush waits until everything enqueued was written.
func (c *Conn) flush(ctx context.Context) {
	for {
		c.mu.Lock()
		empty := c.outBytes == 0 || c.closed
		c.mu.Unlock()
		if empty {
			return
		}
		select {
		case <-c.drained:
		case <-c.gone:
			return
		case <-ctx.Done():
			return
		}
	}
}

// DialOptions are the options of Dial.
type DialOptions struct {
	Handler Handler // serves the peer's requests; nil refuses them
	Limits  Limits
	Stats   *Stats
	Logger  *slog.Logger
	Closed  func(*Conn, error) // may be nil
	ID      uint64
	TLS     *tls.Config // nil: plain text. An empty ServerName is taken from the address
}

// Dial connects to a server. ctx bounds the connecting only.
func Dial(ctx context.Context, addr string, o DialOptions) (*Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	if o.TLS != nil {
		if nc, err = secure(ctx, nc, addr, o.TLS); err != nil {
			return nil, err
		}
	}
	if o.Handler == nil {
		o.Handler = refuseAll{}
	}
	if o.Stats == nil {
		o.Stats = new(Stats)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := newConn(nc, o.ID, o.Handler, o.Limits.withDefaults(), o.Stats, o.Logger, o.Closed)
	c.start()
	return c, nil
}

// secure speaks TLS over nc, which it closes when that fails.
func secure(ctx context.Context, nc net.Conn, addr string, cfg *tls.Config) (net.Conn, error) {
	if t, ok := nc.(*net.TCPConn); ok {
		tune(t)
	}
	if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		cfg = cfg.Clone()
		cfg.ServerName, _, _ = net.SplitHostPort(addr)
	}
	tc := tls.Client(nc, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("TLS with %s: %w", addr, err)
	}
	return tc, nil
}

// Wait waits until the connection's goroutines ended; Close it first.
func (c *Conn) Wait() { <-c.done }

type refuseAll struct{}

func (refuseAll) Serve(c *Conn, req *Command) { _ = c.Reply(req, NotSupported(req.Code)) }
