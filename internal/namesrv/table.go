// Package namesrv is the name server: which brokers there are, and which topics they hold.
//
// Table is the whole state, with the time as an argument and no network in sight; Server answers requests on top
// of it; KV is the part that lies on disk.
package namesrv

import (
	"encoding/json"
	"errors"
	"net/netip"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
)

// Permission bits of a queue.
const (
	permWrite int32 = 2
	permRead  int32 = 4
)

const (
	memberPrefix   = "rmq_sys_SYNC_BROKER_MEMBER_"
	defaultTimeout = 120 * time.Second
)

// Report is one registration of a broker.
type Report struct {
	Cluster, Name, Addr, HAAddr, Zone string
	ID                                int64
	Timeout                           time.Duration // 0: 120 s
	ActingMaster                      *bool         // nil: an old broker
	Conn                              uint64        // the connection it came through; 0: in process
	// ByClient says that Addr has no host of its own: whoever asks is told the address through which it came.
	ByClient    bool
	RetryQueues int32 // > 0: the broker makes %RETRY% topics with so many queues by itself
	Filters     []string
	Topics      protocol.TopicConfigWrapper
}

// Table is the route table. It is safe for concurrent use.
type Table struct {
	DeleteUnreported bool // deleteTopicWithBrokerRegistration
	ActingMaster     bool // supportActingMaster

	mu       sync.RWMutex
	topics   map[string]map[string]protocol.QueueData // topic → broker name
	brokers  map[string]*broker                       // by broker name
	mappings map[string]map[string]json.RawMessage    // topic → broker name → static topic mapping
}

type broker struct {
	data  protocol.BrokerData
	lives map[int64]*live
}

// live is one address of a broker.
type live struct {
	addr     string
	haAddr   string
	seen     time.Time
	timeout  time.Duration
	version  protocol.DataVersion
	conn     uint64
	byClient bool
	retry    int32
	filters  []string
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{topics: map[string]map[string]protocol.QueueData{}, brokers: map[string]*broker{}, mappings: map[string]map[string]json.RawMessage{}}
}

// ErrRefused: a broker's first report must hold more than one topic; a single one is an increment that came
// before its first whole report.
var ErrRefused = errors.New("register broker failed")

// Outcome is what a broker is told.
type Outcome struct{ MasterAddr, HAAddr string }

// Register takes a report. The rules, step by step, are those of a Java name server.
func (t *Table) Register(r Report, now time.Time) (out Outcome, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.brokers[r.Name]
	first := b == nil || b.lives[r.ID] == nil
	if b != nil {
		if old := b.lives[r.ID]; old != nil && old.addr != r.Addr && old.version.StateVersion > r.Topics.DataVersion.StateVersion {
			return Outcome{}, nil // a stale master: its report is dropped
		}
	}
	if first && len(r.Topics.TopicConfigTable) == 1 {
		return Outcome{}, ErrRefused
	}
	if b == nil {
		b = &broker{data: protocol.BrokerData{BrokerName: r.Name, BrokerAddrs: protocol.BrokerAddrs{}}, lives: map[int64]*live{}}
		t.brokers[r.Name] = b
	}
	b.data.Cluster, b.data.ZoneName = r.Cluster, r.Zone
	b.data.EnableActingMaster = r.ActingMaster != nil && *r.ActingMaster
	for id, l := range b.lives {
		if l.addr == r.Addr && id != r.ID {
			delete(b.lives, id)
			delete(b.data.BrokerAddrs, id)
		}
	}
	old := b.lives[r.ID]
	timeout := r.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	l := &live{addr: r.Addr, haAddr: r.HAAddr, seen: now, timeout: timeout, version: r.Topics.DataVersion, conn: r.Conn, byClient: r.ByClient, retry: r.RetryQueues, filters: r.Filters}
	b.lives[r.ID] = l
	b.data.BrokerAddrs[r.ID] = r.Addr

	prime := r.ActingMaster != nil && r.ID == b.data.BrokerAddrs.IDs()[0] && r.ID != 0
	if r.ID == 0 || prime {
		if t.DeleteUnreported && len(r.Topics.TopicQueueMappingInfo) == 0 {
			for topic, queues := range t.topics {
				if _, ok := r.Topics.TopicConfigTable[topic]; !ok {
					t.dropQueues(topic, queues, r.Name)
				}
			}
		}
		changed := first || old == nil || old.version != r.Topics.DataVersion
		for topic, c := range r.Topics.TopicConfigTable {
			_, known := t.topics[topic][r.Name]
			if !changed && known {
				continue
			}
			q := protocol.QueueData{BrokerName: r.Name, ReadQueueNums: c.ReadQueueNums, WriteQueueNums: c.WriteQueueNums, Perm: c.Perm, TopicSysFlag: c.TopicSysFlag}
			if prime && b.data.EnableActingMaster {
				q.Perm &^= permWrite
			}
			t.setQueue(topic, q)
		}
		for topic, m := range r.Topics.TopicQueueMappingInfo {
			if t.mappings[topic] == nil {
				t.mappings[topic] = map[string]json.RawMessage{}
			}
			t.mappings[topic][r.Name] = m
		}
	}
	if r.ID != 0 {
		if m := b.lives[0]; m != nil {
			out = Outcome{MasterAddr: m.addr, HAAddr: m.haAddr}
		}
	}
	return out, nil
}

func (t *Table) setQueue(topic string, q protocol.QueueData) {
	if t.topics[topic] == nil {
		t.topics[topic] = map[string]protocol.QueueData{}
	}
	t.topics[topic][q.BrokerName] = q
}

func (t *Table) dropQueues(topic string, queues map[string]protocol.QueueData, name string) {
	delete(queues, name)
	if len(queues) == 0 {
		delete(t.topics, topic)
		delete(t.mappings, topic)
	}
}

// Touch takes a sign of life (heartbeat or data version query). It returns the version that is known of the broker.
func (t *Table) Touch(name, addr string, now time.Time) (protocol.DataVersion, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.brokers[name]; b != nil {
		for _, l := range b.lives {
			if l.addr == addr {
				l.seen = now
				return l.version, true
			}
		}
	}
	return protocol.DataVersion{}, false
}

// Unregister removes one address of a broker.
func (t *Table) Unregister(name, addr string, id int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.brokers[name]; b != nil && b.lives[id] != nil && b.lives[id].addr == addr {
		t.removeLocked(b, id)
	}
}

// removeLocked drops an address; the last one takes the broker and its queues with it. Of a group with an acting
// master that lost its master the queues are read-only.
func (t *Table) removeLocked(b *broker, id int64) {
	delete(b.lives, id)
	delete(b.data.BrokerAddrs, id)
	name := b.data.BrokerName
	if len(b.lives) == 0 {
		delete(t.brokers, name)
		for topic, queues := range t.topics {
			t.dropQueues(topic, queues, name)
		}
		return
	}
	if id == 0 && b.data.EnableActingMaster {
		for topic, queues := range t.topics {
			if q, ok := queues[name]; ok {
				q.Perm &^= permWrite
				t.setQueue(topic, q)
			}
		}
	}
}

// ConnClosed removes what registered through the connection, and returns their names.
func (t *Table) ConnClosed(conn uint64) []string {
	return t.removeIf(func(l *live) bool { return l.conn == conn && conn != 0 })
}

// Expire removes who was silent for too long, and returns their names. What registered in process is never silent.
func (t *Table) Expire(now time.Time) []string {
	return t.removeIf(func(l *live) bool { return l.conn != 0 && now.Sub(l.seen) > l.timeout })
}

func (t *Table) removeIf(gone func(*live) bool) (names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, b := range t.brokers {
		for id, l := range b.lives {
			if gone(l) {
				names = append(names, name)
				t.removeLocked(b, id)
			}
		}
	}
	return names
}

// Asker is who asks: the address through which it came, for brokers that have none of their own.
type Asker struct{ Local netip.Addr }

func (b *broker) dataFor(a Asker) protocol.BrokerData {
	d := b.data
	d.BrokerAddrs = protocol.BrokerAddrs{}
	for id, l := range b.lives {
		d.BrokerAddrs[id] = l.addrFor(a)
	}
	return d
}

func (l *live) addrFor(a Asker) string {
	if !l.byClient {
		return l.addr
	}
	ap, err := netip.ParseAddrPort(l.addr)
	if err != nil {
		return l.addr
	}
	return netip.AddrPortFrom(a.Local, ap.Port()).String()
}

// Route returns the route of a topic.
func (t *Table) Route(topic string, a Asker) (protocol.TopicRouteData, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	queues := t.topics[topic]
	if len(queues) == 0 {
		queues = t.retryQueues(topic)
	}
	r := protocol.TopicRouteData{BrokerDatas: []protocol.BrokerData{}, QueueDatas: []protocol.QueueData{}, FilterServerTable: map[string][]string{}}
	for name, q := range queues {
		b := t.brokers[name]
		if b == nil {
			continue
		}
		d := b.dataFor(a)
		if t.ActingMaster && !strings.HasPrefix(topic, memberPrefix) && d.EnableActingMaster && d.BrokerAddrs[0] == "" && q.Perm&permWrite == 0 {
			if ids := d.BrokerAddrs.IDs(); len(ids) > 0 {
				d.BrokerAddrs[0] = d.BrokerAddrs[ids[0]]
				delete(d.BrokerAddrs, ids[0])
			}
		}
		r.QueueDatas = append(r.QueueDatas, q)
		r.BrokerDatas = append(r.BrokerDatas, d)
		for _, l := range b.lives {
			if len(l.filters) > 0 {
				r.FilterServerTable[l.addrFor(a)] = l.filters
			}
		}
	}
	if len(r.BrokerDatas) == 0 {
		return r, false
	}
	sort.Slice(r.QueueDatas, func(i, j int) bool { return r.QueueDatas[i].BrokerName < r.QueueDatas[j].BrokerName })
	sort.Slice(r.BrokerDatas, func(i, j int) bool { return r.BrokerDatas[i].BrokerName < r.BrokerDatas[j].BrokerName })
	if m := t.mappings[topic]; len(m) > 0 {
		r.TopicQueueMappingByBroker = m
	}
	return r, true
}

// retryQueues are the queues that a group's %RETRY% topic will have once its first consumer has said hello to the
// brokers that make it by themselves. Consumers ask for the route before that, and again only 30 s later.
func (t *Table) retryQueues(topic string) map[string]protocol.QueueData {
	if len(topic) <= len(message.RetryPrefix) || !strings.HasPrefix(topic, message.RetryPrefix) {
		return nil
	}
	out := map[string]protocol.QueueData{}
	for name, b := range t.brokers {
		if l := b.lives[0]; l != nil && l.retry > 0 {
			out[name] = protocol.QueueData{BrokerName: name, ReadQueueNums: l.retry, WriteQueueNums: l.retry, Perm: permRead | permWrite}
		}
	}
	return out
}

// Cluster returns all brokers.
func (t *Table) Cluster(a Asker) protocol.ClusterInfo {
	t.mu.RLock()
	defer t.mu.RUnlock()
	c := protocol.ClusterInfo{BrokerAddrTable: map[string]protocol.BrokerData{}, ClusterAddrTable: map[string][]string{}}
	for name, b := range t.brokers {
		c.BrokerAddrTable[name] = b.dataFor(a)
		c.ClusterAddrTable[b.data.Cluster] = append(c.ClusterAddrTable[b.data.Cluster], name)
	}
	for _, names := range c.ClusterAddrTable {
		sort.Strings(names)
	}
	return c
}

// MemberGroup returns the addresses of one broker name.
func (t *Table) MemberGroup(cluster, name string, a Asker) protocol.MemberGroup {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var g protocol.MemberGroup
	g.BrokerMemberGroup.Cluster, g.BrokerMemberGroup.BrokerName, g.BrokerMemberGroup.BrokerAddrs = cluster, name, protocol.BrokerAddrs{}
	if b := t.brokers[name]; b != nil && b.data.Cluster == cluster {
		g.BrokerMemberGroup.BrokerAddrs = b.dataFor(a).BrokerAddrs
	}
	return g
}

// Topics returns the names of the topics with a queue for which keep says yes, sorted.
func (t *Table) Topics(keep func(q protocol.QueueData, cluster string) bool) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := []string{}
	for topic, queues := range t.topics {
		for name, q := range queues {
			cluster := ""
			if b := t.brokers[name]; b != nil {
				cluster = b.data.Cluster
			}
			if keep(q, cluster) {
				out = append(out, topic)
				break
			}
		}
	}
	sort.Strings(out)
	return out
}

// SystemTopics returns cluster and broker names, and the address of one broker.
func (t *Table) SystemTopics(a Asker) protocol.TopicList {
	c := t.Cluster(a)
	l := protocol.TopicList{TopicList: []string{}}
	for cluster, names := range c.ClusterAddrTable {
		l.TopicList = append(append(l.TopicList, cluster), names...)
	}
	for _, d := range c.BrokerAddrTable {
		if ids := d.BrokerAddrs.IDs(); len(ids) > 0 {
			l.BrokerAddr = d.BrokerAddrs[ids[0]]
			break
		}
	}
	return l
}

// SetPerm changes the permission of every queue of a broker and returns how many there are.
func (t *Table) SetPerm(name string, perm func(int32) int32) int32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := int32(0)
	for topic, queues := range t.topics {
		if q, ok := queues[name]; ok {
			q.Perm = perm(q.Perm)
			t.setQueue(topic, q)
			n++
		}
	}
	return n
}

// AddQueues adds a topic's queues of brokers that are known; others are passed over.
func (t *Table) AddQueues(topic string, queues []protocol.QueueData) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, q := range queues {
		if t.brokers[q.BrokerName] != nil {
			t.setQueue(topic, q)
		}
	}
}

// DeleteTopic removes a topic, of one cluster only when it is named.
func (t *Table) DeleteTopic(topic, cluster string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	queues := t.topics[topic]
	for name := range queues {
		if b := t.brokers[name]; cluster == "" || b != nil && b.data.Cluster == cluster {
			t.dropQueues(topic, queues, name)
		}
	}
}
