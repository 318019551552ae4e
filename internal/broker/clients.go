package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/apogeemq/apogee/internal/broker/lock"
	"github.com/apogeemq/apogee/internal/broker/member"
	"github.com/apogeemq/apogee/internal/broker/topic"
	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/filter"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// clients puts a lock around the registry of members and knows the connections' handles.
type clients struct {
	mu    sync.RWMutex
	reg   *member.Registry
	conns map[uint64]*remoting.Conn

	locks atomic.Bool // there may be queue locks: pulls and commits must be looked at
}

func newClients(o member.Options) *clients {
	return &clients{reg: member.New(o), conns: map[uint64]*remoting.Conn{}}
}

func connOf(c *remoting.Conn) member.Conn {
	return member.Conn{ID: c.ID(), IP: c.RemoteAddr().Addr()}
}

func (k *clients) opened(c *remoting.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conns[c.ID()] = c
	k.reg.Opened(c.ID())
}

// flagsLocked keeps the hint true; the caller holds mu.
func (k *clients) flagsLocked() { k.locks.Store(k.reg.Urgent()) }

func (k *clients) connClosed(c *remoting.Conn, now time.Time) []member.Notice {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c.ID())
	n := k.reg.Closed(c.ID(), now)
	k.flagsLocked()
	return n
}

func (k *clients) tick(now time.Time) ([]member.Notice, time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.reg.Tick(now)
	k.flagsLocked()
	return n, k.reg.NextDeadline(now)
}

// sawPull lets a member that lost its connection be recognised by what it asks for. Where nobody holds locks it
// costs an atomic load.
func (k *clients) sawPull(c *remoting.Conn, group, topicName string, queue int32, now time.Time) []member.Notice {
	if !k.locks.Load() {
		return nil
	}
	k.mu.RLock()
	unknown := k.reg.Unknown(connOf(c), group)
	k.mu.RUnlock()
	if !unknown {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.reg.Saw(connOf(c), group, topicName, queue, now)
	k.flagsLocked()
	return n
}

// mayCommit see member.Registry; where nobody holds locks it costs an atomic load.
func (k *clients) mayCommit(c *remoting.Conn, group, topicName string, queue int32, now time.Time) bool {
	if !k.locks.Load() {
		return true
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.reg.MayCommit(connOf(c), group, topicName, queue, now)
}

func (k *clients) committed(c *remoting.Conn, group, topicName string, queue int32, now time.Time) []member.Notice {
	if !k.locks.Load() {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.reg.Committed(connOf(c), group, topicName, queue, now)
	k.flagsLocked()
	return n
}

func (k *clients) groupHoldsLock(group string, now time.Time) bool {
	if !k.locks.Load() {
		return false
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.reg.HoldsLock(group, now)
}

// notify sends NOTIFY_CONSUMER_IDS_CHANGED (40) to those who are to look at their share again.
func (b *Broker) notify(notices []member.Notice) {
	for _, n := range notices {
		b.clients.mu.RLock()
		c := b.clients.conns[n.Conn]
		b.clients.mu.RUnlock()
		if c != nil {
			_ = c.OneWay(&remoting.Request{Code: protocol.NotifyConsumerIdsChanged, Header: &protocol.ConsumerGroupRequest{ConsumerGroup: n.Group}})
		}
	}
}

// heartbeat handles HEART_BEAT (34). A group that doesn't exist and may not be made is passed over, as in Java.
func (b *Broker) heartbeat(c *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var hb protocol.HeartbeatData
	if err := fastjson.Unmarshal(req.Body, &hb); err != nil {
		return nil, refuse(protocol.SystemError, "heartbeat body: %s", err)
	}
	if hb.ClientID == "" {
		return nil, refuse(protocol.InvalidParameter, "heartbeat body: clientID is missing")
	}
	now := b.now()
	who := member.Client{ID: hb.ClientID, Language: req.Language, Version: req.Version, Promised: hb.StopsWhenDisconnected}
	changed := hb.HeartbeatFingerprint == 0 // as Java says where there is no consumer
	var notices []member.Notice
	for _, d := range hb.ConsumerDataSet {
		g, ok, err := b.group([]byte(d.GroupName))
		if err != nil || !ok {
			b.log.Info("heartbeat of a group that doesn't exist and isn't made", "group", d.GroupName, "client", hb.ClientID, "error", err)
			continue
		}
		if d.MessageModel != "BROADCASTING" && g.RetryQueueNums > 0 {
			if _, err := b.topics.EnsureRetry(d.GroupName, g.RetryQueueNums, now); err != nil {
				return nil, err
			}
		}
		cons := member.Consumer{Data: d, Quiet: !g.NotifyConsumerIdsChangedEnable || !b.o.NotifyIdsChanged}
		b.clients.mu.Lock()
		n, ch := b.clients.reg.Heartbeat(connOf(c), who, cons, hb.HeartbeatFingerprint, hb.WithoutSub, now)
		b.clients.flagsLocked()
		if b.clients.reg.InGrace() { // it may have shown that a connection isn't whose it seemed to be
			b.wakeClock()
		}
		b.clients.mu.Unlock()
		notices = append(notices, n...)
		changed = ch
	}
	b.clients.mu.Lock()
	for _, p := range hb.ProducerDataSet {
		b.clients.reg.Producer(connOf(c), who, p.GroupName, now)
	}
	b.clients.mu.Unlock()
	b.notify(notices)
	for _, d := range hb.ConsumerDataSet {
		for _, p := range b.early.take(d.GroupName) {
			b.servePullOnce(p.c, p.req, true)
		}
	}
	return &remoting.Response{Header: &protocol.HeartbeatResponse{SupportV2: true, SubscriptionChange: changed}}, nil
}

// unregisterClient handles UNREGISTER_CLIENT (35).
func (b *Broker) unregisterClient(c *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.UnregisterClientRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	b.clients.mu.Lock()
	var notices []member.Notice
	if h.ConsumerGroup != "" {
		notices = b.clients.reg.Unregister(connOf(c), h.ClientID, h.ConsumerGroup, b.now())
	}
	if h.ProducerGroup != "" {
		b.clients.reg.UnregisterProducer(h.ClientID, h.ProducerGroup)
	}
	b.clients.flagsLocked()
	b.clients.mu.Unlock()
	b.notify(notices)
	b.wakeClock()
	return &remoting.Response{Header: protocol.Empty{}}, nil
}

// consumerList handles GET_CONSUMER_LIST_BY_GROUP (38).
func (b *Broker) consumerList(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.ConsumerGroupRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	b.clients.mu.RLock()
	ids := b.clients.reg.IDs(h.ConsumerGroup)
	b.clients.mu.RUnlock()
	if len(ids) == 0 {
		return nil, refuseWith(protocol.Empty{}, protocol.SystemError, "no consumer for this group, %s", h.ConsumerGroup)
	}
	return withBody(protocol.Empty{}, protocol.ConsumerIDList{ConsumerIDList: ids})
}

// checkClient handles CHECK_CLIENT_CONFIG (46): whether the broker can filter as the consumer wants.
func (b *Broker) checkClient(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var body protocol.CheckClientRequest
	if err := fastjson.Unmarshal(req.Body, &body); err != nil {
		return nil, refuse(protocol.SystemError, "check client body: %s", err)
	}
	d := body.SubscriptionData
	if body.Group == "" || d.Topic == "" {
		return nil, refuse(protocol.InvalidParameter, "check client body: group or subscriptionData.topic is missing")
	}
	if d.ExpressionType == "" || d.ExpressionType == filter.TypeTag {
		return &remoting.Response{}, nil
	}
	return nil, refuse(protocol.SystemError, "The broker does not support consumer to filter message by %s", d.ExpressionType)
}

// lockQueues handles LOCK_BATCH_MQ (41).
func (b *Broker) lockQueues(c *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var body protocol.LockBatchRequest
	if err := fastjson.Unmarshal(req.Body, &body); err != nil {
		return nil, refuse(protocol.SystemError, "lock body: %s", err)
	}
	if err := namesLocker(body); err != nil {
		return nil, err
	}
	b.clients.mu.Lock()
	held, notices := b.clients.reg.Lock(connOf(c), body.ConsumerGroup, body.ClientID, lockQueuesOf(body.MQSet), b.now())
	b.clients.flagsLocked()
	out := protocol.LockBatchResponse{LockOKMQSet: make([]protocol.MessageQueue, 0, len(held))}
	got := make(map[protocol.MessageQueue]bool, len(held))
	for _, q := range held {
		mq := protocol.MessageQueue{Topic: q.Topic, BrokerName: q.Broker, QueueID: q.ID}
		got[mq] = true
		out.LockOKMQSet = append(out.LockOKMQSet, mq)
	}
	if body.WantHolders {
		for _, mq := range body.MQSet {
			if owner, ok := b.clients.reg.Owner(body.ConsumerGroup, mq.Topic, mq.QueueID, b.now()); ok && !got[mq] {
				out.Holders = append(out.Holders, protocol.LockHolder{Queue: mq, ClientID: owner})
			}
		}
	}
	b.clients.mu.Unlock()
	b.notify(notices)
	return withBody(nil, out)
}

// unlockQueues handles UNLOCK_BATCH_MQ (42).
func (b *Broker) unlockQueues(c *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var body protocol.LockBatchRequest
	if err := fastjson.Unmarshal(req.Body, &body); err != nil {
		return nil, refuse(protocol.SystemError, "unlock body: %s", err)
	}
	if err := namesLocker(body); err != nil {
		return nil, err
	}
	b.clients.mu.Lock()
	notices := b.clients.reg.Unlock(connOf(c), body.ConsumerGroup, body.ClientID, lockQueuesOf(body.MQSet), b.now())
	b.clients.flagsLocked()
	b.clients.mu.Unlock()
	b.notify(notices)
	if body.Committed { // the client committed first: others needn't wait for its offsets
		for _, q := range body.MQSet {
			b.notify(b.clients.committed(c, body.ConsumerGroup, q.Topic, q.QueueID, b.now()))
		}
	}
	b.wakeClock()
	return &remoting.Response{}, nil
}

// namesLocker refuses a lock or unlock that doesn't say who asks.
func namesLocker(body protocol.LockBatchRequest) error {
	switch {
	case body.ConsumerGroup == "":
		return refuse(protocol.InvalidParameter, "lock body: consumerGroup is missing")
	case body.ClientID == "":
		return refuse(protocol.InvalidParameter, "lock body: clientId is missing")
	}
	return nil
}

func lockQueuesOf(list []protocol.MessageQueue) []lock.Queue {
	out := make([]lock.Queue, 0, len(list))
	for _, q := range list {
		out = append(out, lock.Queue{Topic: q.Topic, Broker: q.BrokerName, ID: q.QueueID})
	}
	return out
}

// EnsureRetryTopic makes a group's %RETRY% topic before its first consumer says hello: a client looks its route up
// before that, and a missing one only every 30 s. It reports whether the topic is there.
func (b *Broker) EnsureRetryTopic(group string) bool {
	if topic.ValidateGroup(group) != nil || b.closed.Load() {
		return false
	}
	g, ok, err := b.group([]byte(group))
	if err != nil || !ok || g.RetryQueueNums <= 0 {
		return false
	}
	_, err = b.topics.EnsureRetry(group, g.RetryQueueNums, b.now())
	return err == nil
}
