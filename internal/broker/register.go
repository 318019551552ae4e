package broker

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/broker/topic"
	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// Registration is what a broker tells a name server of itself.
type Registration struct {
	Name, Cluster string
	ID            int64
	IP            netip.Addr // invalid: the address through which whoever asks came
	Port          uint16
	RetryQueues   int32 // the broker makes %RETRY% topics with so many queues by itself
	Topics        protocol.TopicConfigWrapper
}

// Names is one name server.
type Names interface {
	// Register reports the broker with some of its topics, or all. It returns the topics that are ordered by the
	// name server's configuration.
	Register(ctx context.Context, r Registration) (ordered []string, err error)
	Unregister(ctx context.Context, r Registration) error
	// Local reports whether it is in this process: then a changed topic is known before the change is answered.
	Local() bool
	Close()
}

// registrar keeps the broker known: whole at start and every RegisterEvery, the changed topics at once.
type registrar struct {
	b    *Broker
	wg   sync.WaitGroup
	done chan struct{}
	once sync.Once

	mu      sync.Mutex
	started bool
	feeds   []*feed
}

// feed is one remote name server and what it is yet to be told.
type feed struct {
	names   Names
	pending map[string]topic.Config
	kick    chan struct{}
}

func newRegistrar(b *Broker) *registrar {
	r := &registrar{b: b, done: make(chan struct{})}
	for _, n := range b.o.Names {
		r.feeds = append(r.feeds, &feed{names: n, pending: map[string]topic.Config{}, kick: make(chan struct{}, 1)})
	}
	return r
}

// firstRegistration bounds how long the start waits for name servers that are away.
const firstRegistration = 2 * time.Second

func (r *registrar) start() {
	r.mu.Lock()
	r.started = true
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.b.ctx, firstRegistration)
	defer cancel()
	var first sync.WaitGroup
	for _, f := range r.feeds {
		ok := make(chan bool, 1)
		first.Go(func() { ok <- r.whole(ctx, f) })
		r.wg.Go(func() { r.loop(f, ok) })
	}
	first.Wait()
}

// loop reports to one name server until the broker stops.
func (r *registrar) loop(f *feed, first <-chan bool) {
	const again = time.Second
	wait := r.b.o.RegisterEvery
	select {
	case ok := <-first:
		if !ok {
			wait = again
		}
	case <-r.done:
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	for {
		ctx, cancel := context.WithTimeout(r.b.ctx, 24*time.Second)
		ok := true
		select {
		case <-r.done:
			cancel()
			return
		case <-t.C:
			ok = r.whole(ctx, f)
			t.Reset(r.b.o.RegisterEvery)
		case <-f.kick:
			ok = r.changed(ctx, f)
		}
		cancel()
		if !ok {
			t.Reset(again)
		}
	}
}

func (r *registrar) registration() Registration {
	return Registration{Name: r.b.o.Name, Cluster: r.b.o.Cluster, ID: r.b.o.ID, IP: r.b.o.IP, Port: r.b.port, RetryQueues: 1}
}

// whole reports all topics.
func (r *registrar) whole(ctx context.Context, f *feed) bool {
	reg := r.registration()
	all, version := r.b.topics.All()
	for name, c := range all {
		c.Perm &= r.b.permission() | topic.Inherit
		all[name] = c
	}
	reg.Topics = protocol.TopicConfigWrapper{DataVersion: version, TopicConfigTable: all}
	ordered, err := f.names.Register(ctx, reg)
	if err != nil {
		r.b.log.Warn("registration with a name server failed, it is tried again", "error", err)
		return false
	}
	if len(ordered) > 0 {
		if err := r.b.topics.SetOrder(ordered, r.b.now()); err != nil {
			r.b.log.Error("ordered topics could not be noted", "error", err)
		}
	}
	return true
}

// changed reports what changed since the last report.
func (r *registrar) changed(ctx context.Context, f *feed) bool {
	r.mu.Lock()
	pending := f.pending
	f.pending = map[string]topic.Config{}
	r.mu.Unlock()
	if len(pending) == 0 {
		return true
	}
	_, version := r.b.topics.All()
	reg := r.registration()
	reg.Topics = protocol.TopicConfigWrapper{DataVersion: version, TopicConfigTable: pending}
	if _, err := f.names.Register(ctx, reg); err != nil {
		r.b.log.Warn("registration with a name server failed, it is tried again", "error", err)
		return false // the whole report that follows has them
	}
	return true
}

// topicsChanged is the topic table's listener.
func (b *Broker) topicsChanged(changed []topic.Config, version protocol.DataVersion) {
	r := b.registrar
	if r == nil {
		return
	}
	r.mu.Lock()
	started := r.started
	r.mu.Unlock()
	if !started {
		return
	}
	table := map[string]topic.Config{}
	for _, c := range changed {
		c.Perm &= b.permission() | topic.Inherit
		table[c.TopicName] = c
	}
	for _, f := range r.feeds {
		if f.names.Local() {
			reg := r.registration()
			reg.Topics = protocol.TopicConfigWrapper{DataVersion: version, TopicConfigTable: table}
			// While it stops, the broker has taken itself off the table, and a lone topic is no first report.
			if _, err := f.names.Register(b.ctx, reg); err != nil && !b.closed.Load() {
				b.log.Error("the name server refused changed topics", "error", err)
			}
			continue
		}
		r.mu.Lock()
		for k, c := range table {
			f.pending[k] = c
		}
		r.mu.Unlock()
		select {
		case f.kick <- struct{}{}:
		default:
		}
	}
}

func (b *Broker) permission() int32 { return b.o.Permission }

// stop makes the broker unknown, so that clients go elsewhere before it refuses them.
func (r *registrar) stop(ctx context.Context) {
	r.once.Do(func() { close(r.done) })
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	r.mu.Lock()
	started := r.started
	r.mu.Unlock()
	for _, f := range r.feeds {
		wg.Go(func() {
			if started {
				if err := f.names.Unregister(ctx, r.registration()); err != nil {
					r.b.log.Info("a name server could not be told that the broker stops", "error", err)
				}
			}
			f.names.Close()
		})
	}
	wg.Wait()
	r.wg.Wait()
}

// RemoteNames returns the name server at addr. listen is the address the broker listens on: where its own address
// isn't configured it tells the name server that one, or, listening everywhere, the one its connection comes from.
func RemoteNames(addr string, listen netip.Addr, log *slog.Logger) Names {
	return &remoteNames{addr: addr, listen: listen, log: log}
}

type remoteNames struct {
	addr   string
	listen netip.Addr
	log    *slog.Logger

	mu     sync.Mutex
	conn   *remoting.Conn
	closed bool
}

func (n *remoteNames) Local() bool { return false }

func (n *remoteNames) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.conn != nil {
		n.conn.Close(nil)
		n.conn.Wait()
		n.conn = nil
	}
}

// connect returns the connection, opening one when there is none. The broker registers on one connection: the
// name server drops it when that connection ends.
func (n *remoteNames) connect(ctx context.Context) (*remoting.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, remoting.ErrClosed
	}
	if n.conn != nil && n.conn.Err() == nil {
		return n.conn, nil
	}
	c, err := remoting.Dial(ctx, n.addr, remoting.DialOptions{Logger: n.log})
	if err != nil {
		return nil, err
	}
	n.conn = c
	return c, nil
}

func (n *remoteNames) brokerAddr(c *remoting.Conn, r Registration) string {
	ip := r.IP
	if !ip.IsValid() {
		ip = n.listen
	}
	if !ip.IsValid() || ip.IsUnspecified() {
		ip = c.LocalAddr().Addr()
	}
	return netip.AddrPortFrom(ip, r.Port).String()
}

func (n *remoteNames) invoke(ctx context.Context, make func(*remoting.Conn) (*remoting.Request, error)) (*remoting.Command, error) {
	c, err := n.connect(ctx)
	if err != nil {
		return nil, err
	}
	req, err := make(c)
	if err != nil {
		return nil, err
	}
	a, err := c.Invoke(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("name server %s: %s: %w", n.addr, req.Code, err)
	}
	if a.Code != int32(protocol.Success) {
		return nil, fmt.Errorf("name server %s: %s: code %d: %s", n.addr, req.Code, a.Code, a.Remark)
	}
	return a, nil
}

// Register implements Names.
func (n *remoteNames) Register(ctx context.Context, r Registration) ([]string, error) {
	a, err := n.invoke(ctx, func(c *remoting.Conn) (*remoting.Request, error) {
		body, err := protocol.EncodeBody(protocol.RegisterBrokerBody{FilterServerList: []string{}, TopicConfig: r.Topics})
		if err != nil {
			return nil, err
		}
		addr := n.brokerAddr(c, r)
		host, _, _ := strings.Cut(addr, ":")
		h := &protocol.RegisterBrokerRequest{BrokerName: r.Name, BrokerAddr: addr, ClusterName: r.Cluster, BrokerID: r.ID,
			HAServerAddr: fmt.Sprintf("%s:%d", host, r.Port+1), BodyCRC32: int32(crc32.ChecksumIEEE(body) & 0x7FFFFFFF), RetryTopicQueues: &r.RetryQueues}
		return &remoting.Request{Code: protocol.RegisterBroker, Header: h, Body: body}, nil
	})
	if err != nil || len(a.Body) == 0 {
		return nil, err
	}
	var kv protocol.KVTable
	if err := fastjson.Unmarshal(a.Body, &kv); err != nil {
		return nil, err
	}
	var ordered []string
	for name := range kv.Table {
		ordered = append(ordered, name)
	}
	return ordered, nil
}

// Unregister implements Names.
func (n *remoteNames) Unregister(ctx context.Context, r Registration) error {
	n.mu.Lock()
	connected := n.conn != nil && n.conn.Err() == nil
	n.mu.Unlock()
	if !connected {
		return errors.New("not connected")
	}
	_, err := n.invoke(ctx, func(c *remoting.Conn) (*remoting.Request, error) {
		id := r.ID
		return &remoting.Request{Code: protocol.UnregisterBroker, Header: &protocol.BrokerIdentityRequest{BrokerName: r.Name, BrokerAddr: n.brokerAddr(c, r), ClusterName: r.Cluster, BrokerID: &id}}, nil
	})
	return err
}
