package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// conns are the connections of a client, one an address. A dial that hangs delays only those who want that address.
type conns struct {
	c *Client

	mu     sync.Mutex
	m      map[string]*conn
	closed bool
}

// conn is one connection, or the attempt to get one.
type conn struct {
	addr  string
	ready chan struct{} // closed when rc or err is set
	rc    *remoting.Conn
	err   error

	broker  bool          // not a name server
	greeted chan struct{} // closed when a heartbeat was answered, or failed, after connecting
	hello   sync.Once
}

// dialTimeout bounds connecting, whoever waits for it (Java's connect timeout).
const dialTimeout = 3 * time.Second

// get returns an open connection, connecting when there is none. ctx bounds the wait, not the dial: another caller
// may want its result.
func (p *conns) get(ctx context.Context, addr string, broker bool) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	k := p.m[addr]
	if k == nil || k.dead() {
		k = &conn{addr: addr, ready: make(chan struct{}), broker: broker, greeted: make(chan struct{})}
		p.m[addr] = k
		if !p.c.run.Go(func(run context.Context) { p.dial(run, k) }) {
			p.mu.Unlock()
			return nil, ErrClosed
		}
	}
	p.mu.Unlock()
	select {
	case <-k.ready:
		if k.err != nil {
			return nil, transport(addr, k.err)
		}
		return k, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to %s: %w", addr, ctx.Err())
	}
}

// dead reports whether k is of no use any more.
func (k *conn) dead() bool {
	select {
	case <-k.ready:
		return k.err != nil || k.rc.Err() != nil
	default:
		return false
	}
}

func (p *conns) dial(run context.Context, k *conn) {
	ctx, cancel := context.WithTimeout(run, dialTimeout)
	defer cancel()
	stats := new(remoting.Stats)
	rc, err := remoting.Dial(ctx, k.addr, remoting.DialOptions{Handler: p.c, Stats: stats, Logger: p.c.log, TLS: p.c.o.tls,
		Closed: func(_ *remoting.Conn, reason error) { p.c.disconnected(k, reason) }})
	p.mu.Lock()
	if p.closed && rc != nil {
		rc.Close(ErrClosed)
		err = ErrClosed
	}
	k.rc, k.err = rc, err
	close(k.ready)
	p.mu.Unlock()
	if err != nil {
		p.c.log.Debug("can't connect", "addr", k.addr, "error", err)
		return
	}
	if k.broker {
		p.watch(run, k, stats)
	}
}

// How a server is found that stopped answering on an open connection: after quietTime without a frame it is asked
// something small, and has probeTimeout to answer. With up to a tick before
// each that is at most 4 s.
const (
	watchTick    = 250 * time.Millisecond
	quietTime    = 1500 * time.Millisecond
	probeTimeout = 2 * time.Second
)

// watch closes the connection when the broker stops answering on it. It ends with the connection.
func (p *conns) watch(run context.Context, k *conn, stats *remoting.Stats) {
	t := time.NewTicker(watchTick)
	defer t.Stop()
	seen, since := stats.Frames.Load(), time.Now()
	for {
		select {
		case <-run.Done():
			return
		case <-k.rc.Done():
			return
		case <-t.C:
		}
		if n := stats.Frames.Load(); n != seen {
			seen, since = n, time.Now()
			continue
		}
		if time.Since(since) < quietTime {
			continue
		}
		ctx, cancel := context.WithTimeout(run, probeTimeout)
		_, err := k.rc.Invoke(ctx, p.c.sign(&remoting.Request{Code: protocol.GetMaxOffset, Header: &protocol.QueueRequest{Topic: message.TemplateTopic}, Language: protocol.Go}))
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			k.rc.Close(ErrHalfDead)
			return
		}
	}
}

// open returns the connections to brokers that are open now.
func (p *conns) open() []*conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*conn
	for _, k := range p.m {
		select {
		case <-k.ready:
			if k.broker && k.err == nil && k.rc.Err() == nil {
				out = append(out, k)
			}
		default:
		}
	}
	return out
}

// close closes all connections and waits for their goroutines, or for ctx.
func (p *conns) close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	all := p.m
	p.m = map[string]*conn{}
	p.mu.Unlock()
	var open []*remoting.Conn
	for _, k := range all {
		select {
		case <-k.ready: // others are closed by dial
			if k.rc != nil {
				k.rc.Close(ErrClosed)
				open = append(open, k.rc)
			}
		default:
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, rc := range open {
			rc.Wait()
		}
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
