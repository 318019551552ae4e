package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// MessageQueue names one queue of a topic on one broker.
type MessageQueue struct {
	Topic  string
	Broker string // the broker's name
	ID     int
}

func (q MessageQueue) String() string { return fmt.Sprintf("%s/%s/%d", q.Topic, q.Broker, q.ID) }

// compareQueues is the order in which every client of a group sorts queues.
func compareQueues(a, b MessageQueue) int {
	return cmp.Or(strings.Compare(a.Topic, b.Topic), strings.Compare(a.Broker, b.Broker), cmp.Compare(a.ID, b.ID))
}

// route is what a client knows of a topic.
type route struct {
	topic   string
	brokers map[string]protocol.BrokerAddrs // by broker name
	cluster map[string]string               // by broker name
	read    []MessageQueue                  // sorted
	write   []MessageQueue                  // sorted by broker name, those with a master
	ordered bool                            // the name server fixes the write queues
	at      time.Time
}

// master returns the address of a broker's master.
func (r *route) master(broker string) (string, bool) {
	if r == nil {
		return "", false
	}
	addr, ok := r.brokers[broker][0]
	return addr, ok
}

// replica returns the address of the wanted replica, or of any.
func (r *route) replica(broker string, id int64) (addr string, got int64, ok bool) {
	if r == nil {
		return "", 0, false
	}
	addrs := r.brokers[broker]
	if addr, ok := addrs[id]; ok {
		return addr, id, true
	}
	for _, id := range addrs.IDs() {
		return addrs[id], id, true
	}
	return "", 0, false
}

const (
	permRead  = 4
	permWrite = 2
)

// makeRoute reads the answer of a name server (Java's topicRouteData2TopicPublishInfo and …SubscribeInfo).
func makeRoute(topic string, d protocol.TopicRouteData, now time.Time) *route {
	r := &route{topic: topic, brokers: map[string]protocol.BrokerAddrs{}, cluster: map[string]string{}, at: now}
	for _, b := range d.BrokerDatas {
		r.brokers[b.BrokerName] = b.BrokerAddrs
		r.cluster[b.BrokerName] = b.Cluster
	}
	qs := slices.Clone(d.QueueDatas)
	slices.SortFunc(qs, func(a, b protocol.QueueData) int { return strings.Compare(a.BrokerName, b.BrokerName) })
	for _, q := range qs {
		if q.Perm&permRead != 0 {
			for id := range q.ReadQueueNums {
				r.read = append(r.read, MessageQueue{topic, q.BrokerName, int(id)})
			}
		}
		if _, ok := r.master(q.BrokerName); ok && q.Perm&permWrite != 0 && d.OrderTopicConf == "" {
			for id := range q.WriteQueueNums {
				r.write = append(r.write, MessageQueue{topic, q.BrokerName, int(id)})
			}
		}
	}
	for part := range strings.SplitSeq(d.OrderTopicConf, ";") { // "broker-a:4;broker-b:4"
		broker, count, ok := strings.Cut(part, ":")
		n, err := strconv.Atoi(count)
		if !ok || err != nil {
			continue
		}
		r.ordered = true
		for id := range n {
			r.write = append(r.write, MessageQueue{topic, broker, id})
		}
	}
	slices.SortFunc(r.read, compareQueues)
	return r
}

// routes caches routes. Each topic is asked for once at a time, whoever waits.
type routes struct {
	c *Client

	mu    sync.Mutex
	known map[string]*route
	calls map[string]*routeCall
}

type routeCall struct {
	done chan struct{}
	r    *route
	err  error
}

// routeFresh is how long a route is used before it is asked for again (Java's pollNameServerInterval).
const routeFresh = 30 * time.Second

// cached returns what is known of a topic, or nil.
func (t *routes) cached(topic string) *route {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[topic]
}

// get returns a topic's route, from the cache unless it is older than maxAge. A name server that doesn't answer is
// no reason to forget what is known: then the old route is returned.
func (t *routes) get(ctx context.Context, topic string, maxAge time.Duration) (*route, error) {
	t.mu.Lock()
	old := t.known[topic]
	if old != nil && time.Since(old.at) < maxAge {
		t.mu.Unlock()
		return old, nil
	}
	call := t.startLocked(topic)
	if call == nil {
		t.mu.Unlock()
		return nil, ErrClosed
	}
	t.mu.Unlock()
	select {
	case <-call.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("route of %s: %w", topic, ctx.Err())
	}
	if call.err != nil && old != nil && !errors.Is(call.err, ErrNoRoute) && !errors.Is(call.err, ErrClosed) {
		t.c.log.Debug("route kept: no name server answers", "topic", topic, "error", call.err)
		return old, nil
	}
	return call.r, call.err
}

// startLocked asks for a topic, or joins those who ask already. It returns nil when the client is closed.
func (t *routes) startLocked(topic string) *routeCall {
	if call := t.calls[topic]; call != nil {
		return call
	}
	call := &routeCall{done: make(chan struct{})}
	started := t.c.run.Go(func(run context.Context) {
		ctx, cancel := context.WithTimeout(run, t.c.o.timeout)
		defer cancel()
		call.r, call.err = t.ask(ctx, topic)
		t.mu.Lock()
		delete(t.calls, topic)
		if call.err == nil {
			t.known[topic] = call.r // an old one is kept: a name server knows no route, too, while a broker restarts
		}
		t.mu.Unlock()
		close(call.done)
	})
	if !started {
		return nil
	}
	t.calls[topic] = call
	return call
}

// routeRenew is how old a route must at least be to be asked for again because something failed.
const routeRenew = 50 * time.Millisecond

// use returns what is known of a topic, at once, and waits only when nothing is. A route that is old, or not so
// new when renew says that it proved wrong, is asked for again in the background.
func (t *routes) use(ctx context.Context, topic string, renew bool) (*route, error) {
	t.mu.Lock()
	if old := t.known[topic]; old != nil {
		if age := time.Since(old.at); age > routeFresh || renew && age > routeRenew {
			t.startLocked(topic)
		}
		t.mu.Unlock()
		return old, nil
	}
	t.mu.Unlock()
	return t.get(ctx, topic, 0)
}

// kick asks for a topic in the background.
func (t *routes) kick(topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.startLocked(topic)
}

// nameServerTry bounds one name server's answer, so that a dead one doesn't use up the others' time.
const nameServerTry = time.Second

// ask asks the name servers in turn.
func (t *routes) ask(ctx context.Context, topic string) (*route, error) {
	var last error
	names, err := t.c.names.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("route of %s: %w", topic, err)
	}
	for _, addr := range names {
		one, cancel := context.WithTimeout(ctx, nameServerTry)
		a, err := t.c.invokeName(one, addr, &remoting.Request{Code: protocol.GetRouteInfoByTopic, Header: &protocol.RouteRequest{Topic: topic, AcceptStandardJSONOnly: true}})
		cancel()
		if err != nil {
			t.c.names.failed(addr)
			last = err
			continue
		}
		switch protocol.ResponseCode(a.Code) {
		case protocol.Success:
		case protocol.TopicNotExist:
			return nil, fmt.Errorf("topic %s: %w", topic, ErrNoRoute)
		default:
			last = refusal(addr, a)
			continue
		}
		var d protocol.TopicRouteData
		if err := fastjson.Unmarshal(a.Body, &d); err != nil {
			return nil, fmt.Errorf("route of %s from %s: %w", topic, addr, err)
		}
		return makeRoute(topic, d, time.Now()), nil
	}
	if last == nil {
		last = fmt.Errorf("the list of name servers is empty: %w", ErrUnreachable)
	}
	return nil, fmt.Errorf("route of %s: no name server answers: %w", topic, last)
}

// brokers returns the masters and replicas of all known routes: address → broker name.
func (t *routes) brokers(mastersOnly bool) map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string]string{}
	for _, r := range t.known {
		for name, addrs := range r.brokers {
			for id, addr := range addrs {
				if id == 0 || !mastersOnly {
					out[addr] = name
				}
			}
		}
	}
	return out
}
