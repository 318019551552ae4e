package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// target is one queue and where it is.
type target struct {
	addr, broker, topic string
	queue               int32
}

// names asks the first name server that can be reached.
type names struct{ conn *remoting.Conn }

func dialNames(ctx context.Context, addrs []string) (*names, error) {
	var last error
	for _, a := range addrs {
		c, err := remoting.Dial(ctx, a, remoting.DialOptions{})
		if err == nil {
			return &names{c}, nil
		}
		last = errors.Join(last, err)
	}
	return nil, fmt.Errorf("no name server can be reached: %w", last)
}

func (n *names) close() {
	n.conn.Close(nil)
	n.conn.Wait()
}

var errNoRoute = errors.New("no route")

func (n *names) route(ctx context.Context, topic string) (d protocol.TopicRouteData, err error) {
	a, err := n.conn.Invoke(ctx, &remoting.Request{Code: protocol.GetRouteInfoByTopic, Header: &protocol.RouteRequest{Topic: topic, AcceptStandardJSONOnly: true}, Language: protocol.Go})
	switch {
	case err != nil:
		return d, fmt.Errorf("route of %s: %w", topic, err)
	case a.Code == int32(protocol.TopicNotExist):
		return d, fmt.Errorf("route of %s: %w", topic, errNoRoute)
	case a.Code != 0:
		return d, fmt.Errorf("route of %s: the name server answered code %d: %s", topic, a.Code, a.Remark)
	}
	if err := fastjson.Unmarshal(a.Body, &d); err != nil {
		return d, fmt.Errorf("route of %s: %w", topic, err)
	}
	return d, nil
}

// masters returns the addresses of all masters.
func (n *names) masters(ctx context.Context) ([]string, error) {
	a, err := n.conn.Invoke(ctx, &remoting.Request{Code: protocol.GetBrokerClusterInfo, Language: protocol.Go})
	if err != nil {
		return nil, fmt.Errorf("list of brokers: %w", err)
	}
	if a.Code != 0 {
		return nil, fmt.Errorf("list of brokers: the name server answered code %d: %s", a.Code, a.Remark)
	}
	var info protocol.ClusterInfo
	if err := fastjson.Unmarshal(a.Body, &info); err != nil {
		return nil, fmt.Errorf("list of brokers: %w", err)
	}
	var out []string
	for _, b := range info.BrokerAddrTable {
		if addr, ok := b.BrokerAddrs[0]; ok {
			out = append(out, addr)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the name server knows no broker: is one started and registered?")
	}
	return out, nil
}

// parallel is how many requests are on their way while topics are looked up and made.
const parallel = 16

// topics returns the queues of all topics of the run, topic after topic, making what doesn't exist. perm is the
// permission that a queue needs: 2 to send, 4 to receive.
func topics(ctx context.Context, o Options, perm int32) ([]target, error) {
	n, err := dialNames(ctx, o.Names)
	if err != nil {
		return nil, err
	}
	defer n.close()
	list := make([][]target, o.Topics)
	var mu sync.Mutex
	var failed error
	next := 0
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	maker := &maker{n: n, conns: map[string]*remoting.Conn{}}
	defer maker.close()
	var wg sync.WaitGroup
	for range min(parallel, o.Topics) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				stop := failed != nil
				mu.Unlock()
				if stop || i >= o.Topics {
					return
				}
				ts, err := maker.topic(ctx, o.topicName(i), o.Queues, perm)
				mu.Lock()
				list[i] = ts
				if err != nil && failed == nil {
					failed = err
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return nil, failed
	}
	var out []target
	for _, ts := range list {
		out = append(out, ts...)
	}
	return out, nil
}

func (o Options) topicName(i int) string {
	if o.Topics == 1 {
		return o.Topic
	}
	return fmt.Sprintf("%s-%d", o.Topic, i)
}

// maker makes topics.
type maker struct {
	n       *names
	mu      sync.Mutex
	masters []string
	conns   map[string]*remoting.Conn
}

func (m *maker) close() {
	for _, c := range m.conns {
		c.Close(nil)
		c.Wait()
	}
}

// brokers returns a connection to each master.
func (m *maker) brokers(ctx context.Context) ([]*remoting.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.masters == nil {
		addrs, err := m.n.masters(ctx)
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			c, err := remoting.Dial(ctx, a, remoting.DialOptions{})
			if err != nil {
				return nil, err
			}
			m.conns[a] = c
		}
		m.masters = addrs
	}
	var out []*remoting.Conn
	for _, a := range m.masters {
		out = append(out, m.conns[a])
	}
	return out, nil
}

// routeWithin bounds the time until a topic that was made is known to the name server.
const routeWithin = 30 * time.Second

func (m *maker) topic(ctx context.Context, topic string, queues int, perm int32) ([]target, error) {
	d, err := m.n.route(ctx, topic)
	if errors.Is(err, errNoRoute) {
		brokers, err := m.brokers(ctx)
		if err != nil {
			return nil, err
		}
		for _, b := range brokers {
			h := &protocol.CreateTopicRequest{Topic: topic, DefaultTopic: "TBW102", ReadQueueNums: int32(queues), WriteQueueNums: int32(queues), Perm: 6, TopicFilterType: "SINGLE_TAG"}
			a, err := b.Invoke(ctx, &remoting.Request{Code: protocol.UpdateAndCreateTopic, Header: h, Language: protocol.Go})
			if err != nil {
				return nil, fmt.Errorf("make topic %s: %w", topic, err)
			}
			if a.Code != 0 {
				return nil, fmt.Errorf("make topic %s: broker %s answered code %d: %s", topic, b.RemoteAddr(), a.Code, a.Remark)
			}
		}
		if d, err = m.await(ctx, topic); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	masters := map[string]string{}
	for _, b := range d.BrokerDatas {
		if a, ok := b.BrokerAddrs[0]; ok {
			masters[b.BrokerName] = a
		}
	}
	var out []target
	for _, q := range d.QueueDatas {
		a, ok := masters[q.BrokerName]
		if !ok || q.Perm&perm != perm {
			continue
		}
		n := q.WriteQueueNums
		if perm == 4 {
			n = q.ReadQueueNums
		}
		for i := range n {
			out = append(out, target{addr: a, broker: q.BrokerName, topic: topic, queue: i})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("topic %s has no queue with permission %d on a broker that is up", topic, perm)
	}
	return out, nil
}

// await waits until the name server knows a topic.
func (m *maker) await(ctx context.Context, topic string) (protocol.TopicRouteData, error) {
	ctx, cancel := context.WithTimeout(ctx, routeWithin)
	defer cancel()
	for {
		d, err := m.n.route(ctx, topic)
		if !errors.Is(err, errNoRoute) {
			return d, err
		}
		t := time.NewTimer(20 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return d, fmt.Errorf("topic %s was made, but the name server doesn't know it after %v", topic, routeWithin)
		}
	}
}

// spread deals targets to n connections so that each connection has queues of one broker only, and every queue has a
// connection; where there are fewer queues than connections, connections share them. It returns each connection's
// targets.
func spread(ts []target, n int) [][]target {
	byBroker := map[string][]target{}
	var order []string
	for _, t := range ts {
		if byBroker[t.addr] == nil {
			order = append(order, t.addr)
		}
		byBroker[t.addr] = append(byBroker[t.addr], t)
	}
	n = max(n, len(order))
	out := make([][]target, n)
	for i, addr := range order {
		mine := byBroker[addr]
		var conns []int // this broker's
		for c := i; c < n; c += len(order) {
			conns = append(conns, c)
		}
		for j := range max(len(mine), len(conns)) {
			c := conns[j%len(conns)]
			out[c] = append(out[c], mine[j%len(mine)])
		}
	}
	return out
}
