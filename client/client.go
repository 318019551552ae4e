// Package client sends messages to RocketMQ brokers, of whichever make, and reads them.
//
// This is its first version: synchronous sends with retries on other queues, and a reader of a topic's queues.
// Consumer groups with rebalancing are still to come; until then use an Apache client for them.
package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// Errors of the client.
var (
	// ErrClosed: the client is closed.
	ErrClosed = errors.New("the client is closed")
	// ErrNoRoute: no name server knows a broker with such a queue.
	ErrNoRoute = errors.New("no route")
)

// Error is a refusal by a server.
type Error struct {
	Code   int    // RocketMQ's response code
	Remark string // the server's words
	Addr   string // the server
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s answered %s (%d): %s", e.Addr, protocol.ResponseCode(e.Code), e.Code, e.Remark)
}

// Message is one message. Those that were read have the fields below Body set.
type Message struct {
	Topic string
	Tags  string
	Keys  []string
	// Properties are the user's; system properties are not among them.
	Properties map[string]string
	Body       []byte

	ID          string // unique id, made by the producer
	OffsetID    string // the broker's id
	Queue       int
	QueueOffset int64
	Born        time.Time
	Stored      time.Time
	Retries     int // how often a consumer gave it back
}

// SendResult says where a message went.
type SendResult struct {
	ID, OffsetID, Broker string
	Queue                int
	QueueOffset          int64
}

// Client holds connections to name servers and brokers. It is safe for concurrent use.
type Client struct {
	names []string
	ids   *message.UniqueIDs
	turn  atomic.Uint32

	mu     sync.Mutex
	conns  map[string]*remoting.Conn
	routes map[string]route
	closed bool
}

type route struct {
	data protocol.TopicRouteData
	at   time.Time
}

// routeFresh is how long a route is used before it is asked for again.
const routeFresh = 30 * time.Second

// New returns a client of the given name servers ("host:port"). It connects when it needs to.
func New(nameServers ...string) (*Client, error) {
	if len(nameServers) == 0 {
		return nil, errors.New("client: no name server: give at least one host:port")
	}
	return &Client{names: nameServers, conns: map[string]*remoting.Conn{}, routes: map[string]route{},
		ids: message.NewUniqueIDs(netip.AddrFrom4([4]byte{127, 0, 0, 1}), os.Getpid(), rand.Uint32())}, nil
}

// Close closes the connections; calls that wait fail.
func (c *Client) Close() {
	c.mu.Lock()
	conns := c.conns
	c.conns, c.closed = map[string]*remoting.Conn{}, true
	c.mu.Unlock()
	for _, conn := range conns {
		conn.Close(ErrClosed)
		conn.Wait()
	}
}

func (c *Client) conn(ctx context.Context, addr string) (*remoting.Conn, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	if conn := c.conns[addr]; conn != nil && conn.Err() == nil {
		c.mu.Unlock()
		return conn, nil
	}
	c.mu.Unlock()
	conn, err := remoting.Dial(ctx, addr, remoting.DialOptions{})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.conns[addr]; c.closed || other != nil && other.Err() == nil { // another call was faster
		conn.Close(nil)
		if c.closed {
			return nil, ErrClosed
		}
		return other, nil
	}
	c.conns[addr] = conn
	return conn, nil
}

func (c *Client) invoke(ctx context.Context, addr string, r *remoting.Request) (*remoting.Command, error) {
	conn, err := c.conn(ctx, addr)
	if err != nil {
		return nil, err
	}
	r.Language = protocol.Go
	return conn.Invoke(ctx, r)
}

func refusal(addr string, a *remoting.Command) error {
	return &Error{Code: int(a.Code), Remark: a.Remark, Addr: addr}
}

// route returns the route of a topic from the first name server that answers.
func (c *Client) route(ctx context.Context, topic string, fresh bool) (protocol.TopicRouteData, error) {
	c.mu.Lock()
	r, ok := c.routes[topic]
	c.mu.Unlock()
	if ok && !fresh && time.Since(r.at) < routeFresh {
		return r.data, nil
	}
	var last error
	for _, addr := range c.names {
		a, err := c.invoke(ctx, addr, &remoting.Request{Code: protocol.GetRouteInfoByTopic, Header: &protocol.RouteRequest{Topic: topic, AcceptStandardJSONOnly: true}})
		if err != nil {
			last = err
			continue
		}
		if a.Code == int32(protocol.TopicNotExist) {
			return protocol.TopicRouteData{}, fmt.Errorf("topic %s: %w", topic, ErrNoRoute)
		}
		if a.Code != int32(protocol.Success) {
			last = refusal(addr, a)
			continue
		}
		var d protocol.TopicRouteData
		if err := fastjson.Unmarshal(a.Body, &d); err != nil {
			return d, fmt.Errorf("route of %s: %w", topic, err)
		}
		c.mu.Lock()
		c.routes[topic] = route{d, time.Now()}
		c.mu.Unlock()
		return d, nil
	}
	return protocol.TopicRouteData{}, fmt.Errorf("route of %s: no name server answers: %w", topic, last)
}

// queue is one queue and where it is.
type queue struct {
	broker, addr string
	id           int32
}

func queues(d protocol.TopicRouteData, perm int32, count func(protocol.QueueData) int32) []queue {
	masters := map[string]string{}
	for _, b := range d.BrokerDatas {
		if addr, ok := b.BrokerAddrs[0]; ok {
			masters[b.BrokerName] = addr
		}
	}
	var out []queue
	for _, q := range d.QueueDatas {
		if addr, ok := masters[q.BrokerName]; ok && q.Perm&perm != 0 {
			for i := range count(q) {
				out = append(out, queue{q.BrokerName, addr, i})
			}
		}
	}
	return out
}

// Topics and numbers that clients name when a topic doesn't exist yet.
const (
	templateTopic  = "TBW102"
	templateQueues = 4
	sendAttempts   = 3
)

func (c *Client) writeQueues(ctx context.Context, topic string, fresh bool) ([]queue, error) {
	d, err := c.route(ctx, topic, fresh)
	limit := int32(1 << 30)
	if errors.Is(err, ErrNoRoute) {
		// The broker makes the topic at the first send, where it may.
		if d, err = c.route(ctx, templateTopic, fresh); errors.Is(err, ErrNoRoute) {
			return nil, fmt.Errorf("topic %s: %w, and topics are not made by themselves", topic, ErrNoRoute)
		}
		limit = templateQueues
	}
	if err != nil {
		return nil, err
	}
	qs := queues(d, 2, func(q protocol.QueueData) int32 { return min(q.WriteQueueNums, limit) })
	if len(qs) == 0 {
		return nil, fmt.Errorf("topic %s: %w with a writable queue", topic, ErrNoRoute)
	}
	return qs, nil
}

// Send sends m and waits until the broker has it, as safe as its flush mode promises. A send that fails is tried
// again on other queues up to three times in all; m keeps its id. ctx bounds everything.
func (c *Client) Send(ctx context.Context, m *Message) (*SendResult, error) {
	if m.Topic == "" || len(m.Body) == 0 {
		return nil, errors.New("send: a message needs a topic and a body")
	}
	if m.ID == "" {
		m.ID = c.ids.Next(time.Now())
	}
	props := encodeProperties(m)
	var last error
	for attempt := range sendAttempts {
		qs, err := c.writeQueues(ctx, m.Topic, attempt > 0)
		if err != nil {
			return nil, fmt.Errorf("send: %w", err)
		}
		q := qs[int(c.turn.Add(1))%len(qs)]
		r, err := c.sendTo(ctx, q, m, props)
		if err == nil {
			return r, nil
		}
		var refused *Error
		if ctx.Err() != nil || errors.As(err, &refused) && !retriable(refused.Code) {
			return nil, fmt.Errorf("send: %w", err)
		}
		last = err
	}
	return nil, fmt.Errorf("send: %d attempts failed: %w", sendAttempts, last)
}

// retriable are the codes on which another broker may take the message (as the Java client has them).
func retriable(code int) bool {
	switch protocol.ResponseCode(code) {
	case protocol.TopicNotExist, protocol.ServiceNotAvailable, protocol.SystemError, protocol.SystemBusy, protocol.NoPermission, protocol.GoAway, 204, 205:
		return true
	}
	return false
}

func encodeProperties(m *Message) []byte {
	var p []byte
	for k, v := range m.Properties {
		p = message.AppendProperty(p, k, v)
	}
	if m.Tags != "" {
		p = message.AppendProperty(p, message.PropertyTags, m.Tags)
	}
	for i, k := range m.Keys {
		if i == 0 {
			p = append(append(p, message.PropertyKeys...), message.NameSeparator)
		} else {
			p = append(p, ' ')
		}
		if p = append(p, k...); i == len(m.Keys)-1 {
			p = append(p, message.PropertySeparator)
		}
	}
	p = message.AppendProperty(p, message.PropertyUniqueKey, m.ID)
	return message.AppendProperty(p, message.PropertyWaitStoreMsgOK, "true")
}

func (c *Client) sendTo(ctx context.Context, q queue, m *Message, props []byte) (*SendResult, error) {
	h := &protocol.SendMessageRequest{ProducerGroup: []byte("apogee"), Topic: []byte(m.Topic), DefaultTopic: []byte(templateTopic), DefaultTopicQueueNums: templateQueues,
		QueueID: q.id, BornTimestamp: time.Now().UnixMilli(), Properties: props, BrokerName: []byte(q.broker)}
	a, err := c.invoke(ctx, q.addr, &remoting.Request{Code: protocol.SendMessageV2, Header: h, Body: m.Body})
	if err != nil {
		return nil, err
	}
	switch protocol.ResponseCode(a.Code) {
	case protocol.Success, protocol.FlushDiskTimeout, protocol.FlushSlaveTimeout, protocol.SlaveNotAvailable: // all of them: stored
	default:
		return nil, refusal(q.addr, a)
	}
	var r protocol.SendMessageResponse
	if err := r.DecodeFields(a.Fields); err != nil {
		return nil, err
	}
	return &SendResult{ID: m.ID, OffsetID: r.MsgID, Broker: q.broker, Queue: int(r.QueueID), QueueOffset: r.QueueOffset}, nil
}
