// Package client is a Go client for RocketMQ: producers, consumers that handle messages, and consumers that poll.
// It works with brokers and name servers of Apache RocketMQ 4.x and 5.x and with Apogee.
//
// A Client holds the connections, and producers and consumers are made from it:
//
//	c, err := client.New(client.WithNameServers("127.0.0.1:9876"))
//	p, err := c.NewProducer("orders")
//	_, err = p.Send(ctx, &client.Message{Topic: "Orders", Body: body})
//
// Every call takes a context and returns when it ends. Nothing is global: what a Client started is gone after Close.
package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/run"
)

// Client holds connections to name servers and brokers, and what it knows of topics. It is safe for concurrent use.
// Most programs need one.
type Client struct {
	o     options
	id    string
	log   *slog.Logger
	run   *run.Group
	names *names
	conns conns
	routes
	ids      *message.UniqueIDs
	requests requests // that wait for their reply
	tracer   *tracer  // nil: off

	mu        sync.Mutex
	producers map[string]*Producer // by wrapped group
	consumers map[string]member    // by wrapped group
	children  map[closer]struct{}
	closed    bool
	beats     atomic.Int64 // heartbeats sent, for tests
}

// member is a consumer in its group, as the client sees it.
type member interface {
	wake()                                                                // the group changed, or the network did
	disconnected(addr string, reason error)                               // a broker's connection closed
	heartbeatData() protocol.ConsumerData                                 // what brokers are to know
	stopsWhenDisconnected() bool                                          // what it promises
	answer(ctx context.Context, req *remoting.Command) *remoting.Response // the broker's request for this group
}

// closer is what Close closes first.
type closer interface {
	Close(ctx context.Context) error
}

// New returns a client. It connects when it needs to. Options that can't be right give an error that wraps
// ErrInvalid.
func New(opts ...Option) (*Client, error) {
	o := options{timeout: 3 * time.Second, heartbeat: 30 * time.Second}
	for _, f := range opts {
		if err := f(&o); err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
	}
	if o.names == nil && o.namesURL == "" {
		if o.names = splitAddrs(os.Getenv("NAMESRV_ADDR")); len(o.names) == 0 {
			return nil, fmt.Errorf("client: %w", invalid("no name server: use WithNameServers, or set NAMESRV_ADDR to host:port[;host:port]"))
		}
		if err := checkAddrs(o.names); err != nil {
			return nil, fmt.Errorf("client: NAMESRV_ADDR: %w", err)
		}
	}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	ip := localIP()
	c := &Client{o: o, id: o.id, log: o.log, run: run.NewGroup(context.Background()), names: newNames(o.names, o.namesURL),
		ids:       message.NewUniqueIDs(ip, os.Getpid(), rand.Uint32()),
		producers: map[string]*Producer{}, consumers: map[string]member{}, children: map[closer]struct{}{}}
	if c.id == "" {
		// Random, because address and process id can be the same in every container of a cluster.
		c.id = fmt.Sprintf("%s@%d#%016x", ip, os.Getpid(), rand.Uint64())
	}
	c.conns = conns{c: c, m: map[string]*conn{}}
	c.routes = routes{c: c, known: map[string]*route{}, calls: map[string]*routeCall{}}
	c.run.Go(c.beat)
	c.names.start(c)
	if o.traceTopic != "" {
		c.tracer = newTracer(c, o.traceTopic)
	}
	return c, nil
}

// ID returns the client's id, as brokers know it: unlike that of any other client, whatever host, address and process
// id they share.
func (c *Client) ID() string { return c.id }

// Close closes the client's producers and consumers (see Consumer.Close) and its connections; calls that wait fail
// with ErrClosed. It returns ctx's error when something didn't end in time, and nothing of the client goes on then
// but handlers that don't return. A second Close does nothing.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	children := make([]closer, 0, len(c.children))
	for k := range c.children {
		children = append(children, k)
	}
	c.mu.Unlock()
	errs := make(chan error, len(children))
	for _, k := range children {
		go func() { errs <- k.Close(ctx) }()
	}
	var all []error
	for range children {
		all = append(all, <-errs)
	}
	c.tracer.close(ctx)
	c.run.Stop()
	all = append(all, c.conns.close(ctx), c.run.Wait(ctx))
	return errors.Join(all...)
}

// disown forgets a producer or consumer that closed by itself.
func (c *Client) disown(k closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.children, k)
}

// bound gives a call without a deadline the client's timeout.
func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.o.timeout)
}

// invokeName asks a name server.
func (c *Client) invokeName(ctx context.Context, addr string, r *remoting.Request) (*remoting.Command, error) {
	return c.call(ctx, addr, false, r)
}

// invoke asks a broker. Its answer may be a refusal: see ok. ctx bounds it; without a deadline the client's timeout
// does.
func (c *Client) invoke(ctx context.Context, addr string, r *remoting.Request) (*remoting.Command, error) {
	return c.call(ctx, addr, true, r)
}

func (c *Client) call(ctx context.Context, addr string, broker bool, r *remoting.Request) (*remoting.Command, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	r.Language = protocol.Go
	r = c.sign(r)
	for attempt := 0; ; attempt++ {
		k, err := c.conns.get(ctx, addr, broker)
		if err != nil {
			return nil, err
		}
		if broker && r.Code != protocol.HeartBeat {
			if err := c.greet(ctx, k); err != nil {
				return nil, err
			}
		}
		a, err := k.rc.Invoke(ctx, r)
		if err != nil {
			return nil, transport(addr, err)
		}
		if a.Code == int32(protocol.GoAway) && attempt == 0 { // Java's client connects anew and sends once more
			k.rc.Close(remoting.ErrClosed)
			continue
		}
		return a, nil
	}
}

// oneWay sends a request without an answer. It waits for a connection, not for the bytes to leave.
func (c *Client) oneWay(ctx context.Context, addr string, r *remoting.Request) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	r.Language = protocol.Go
	k, err := c.conns.get(ctx, addr, true)
	if err != nil {
		return err
	}
	if err := c.greet(ctx, k); err != nil {
		return err
	}
	return transport(addr, k.rc.OneWay(c.sign(r)))
}

// disconnected is called once for each connection that closed.
func (c *Client) disconnected(k *conn, reason error) {
	if k.broker {
		c.log.Debug("connection to a broker closed", "addr", k.addr, "reason", reason)
	}
	for _, m := range c.members() {
		m.disconnected(k.addr, reason)
	}
}

func (c *Client) members() []member {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]member, 0, len(c.consumers))
	for _, m := range c.consumers {
		out = append(out, m)
	}
	return out
}

// Serve implements remoting.Handler: a broker's requests. It runs on the connection's reader, so it hands on what
// takes time.
func (c *Client) Serve(rc *remoting.Conn, req *remoting.Command) {
	switch protocol.RequestCode(req.Code) {
	case protocol.NotifyConsumerIdsChanged:
		var h protocol.ConsumerGroupRequest
		if protocol.Decode(req.Fields, &h) != nil {
			return
		}
		c.mu.Lock()
		m := c.consumers[h.ConsumerGroup]
		c.mu.Unlock()
		if m != nil {
			m.wake()
		}
	default:
		own, ticket := req.Clone(), req.Ticket(rc)
		started := c.run.Go(func(ctx context.Context) {
			resp := c.answer(ctx, rc, own)
			if resp != nil {
				_ = ticket.Reply(resp)
			}
		})
		if !started {
			_ = ticket.Reply(&remoting.Response{Code: protocol.SystemError, Remark: "the client is closing"})
		}
	}
}

// answer serves the broker's requests that take time; nil means that the code wants no answer.
func (c *Client) answer(ctx context.Context, rc *remoting.Conn, req *remoting.Command) *remoting.Response {
	if r, ok := c.answerProducer(ctx, rc, req); ok {
		return r
	}
	group, _ := req.Fields.Get("consumerGroup")
	if len(group) == 0 {
		group, _ = req.Fields.Get("group")
	}
	c.mu.Lock()
	m := c.consumers[string(group)]
	c.mu.Unlock()
	if m != nil {
		return m.answer(ctx, req)
	}
	return remoting.NotSupported(req.Code)
}

// localIP is the address in ids: the first of an interface that is up, public before private, IPv4 before IPv6 (as
// the Java client's), else the loopback.
func localIP() netip.Addr {
	best, rank := netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return best
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		r := 0
		switch {
		case ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast():
			continue
		case ip.Is4() && !ip.IsPrivate():
			r = 4
		case ip.Is4():
			r = 3
		case !ip.IsPrivate():
			r = 2
		default:
			r = 1
		}
		if r > rank {
			best, rank = ip, r
		}
	}
	return best
}

func splitAddrs(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ';' || r == ',' || r == ' ' })
}

func checkAddrs(addrs []string) error {
	for _, a := range addrs {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			return invalid("name server %q: want host:port", a)
		}
	}
	return nil
}
