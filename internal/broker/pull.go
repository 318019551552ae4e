package broker

import (
	"errors"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/broker/longpoll"
	"github.com/apogeemq/apogee/internal/broker/subgroup"
	"github.com/apogeemq/apogee/internal/broker/topic"
	"github.com/apogeemq/apogee/internal/filter"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/store"
)

// Values of the header forbiddenType that goes with NO_PERMISSION.
const (
	forbiddenBroker int32 = 1 + iota
	forbiddenGroup
	forbiddenTopic
	forbiddenBroadcast
	forbiddenSubscription
)

// pull is one PULL_MESSAGE while it is read for, and what a parked one keeps: a few hundred bytes, no goroutine.
type pull struct {
	ticket remoting.Ticket
	topic  string
	group  string
	queue  int32
	offset int64
	max    int
	filter store.Filter // nil: everything

	topicSysFlag, groupSysFlag int32
}

// errStopping answers the pulls of a broker that stops. On "nothing there" clients would pull again at once, and have a
// pull on its way when their connection is closed; the Apache Go client waits 30 s for such a one. On an error they
// come back after 1 to 3 s.
var errStopping = refuse(protocol.ServiceNotAvailable, "the broker is stopping")

// refuseParked answers all pulls that wait. It comes after closed is set, so that none is parked later (pullOrPark).
func (b *Broker) refuseParked() {
	for _, p := range b.parked.Drain() {
		_ = p.(*pull).ticket.Reply(response(errStopping))
	}
	for _, p := range b.early.takeAll() {
		_ = p.c.Reply(p.req, response(errStopping))
	}
}

// servePull handles PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361).
func (b *Broker) servePull(c *remoting.Conn, req *remoting.Command) {
	if b.closed.Load() {
		_ = c.Reply(req, response(errStopping))
		return
	}
	b.servePullOnce(c, req, false)
}

// servePullOnce is servePull; again says that the pull waited for its heartbeat already.
func (b *Broker) servePullOnce(c *remoting.Conn, req *remoting.Command, again bool) {
	p, hold, err := b.preparePull(c, req)
	if err == errNotLatest && !again { //nolint:errorlint // the very value
		if group, ok := req.Fields.Get("consumerGroup"); ok && b.early.hold(string(group), c, req) {
			return
		}
	}
	if err != nil {
		b.counters.pullsRefused.Add(1)
		_ = c.Reply(req, response(err))
		return
	}
	if hold > 0 {
		b.pullOrPark(c, &p, hold)
		return
	}
	b.pullNow(&p)
}

// preparePull checks a pull in Java's order and commits the offset that it carries. hold is how long it may be
// parked, 0 for not at all.
func (b *Broker) preparePull(c *remoting.Conn, req *remoting.Command) (p pull, hold time.Duration, err error) {
	var h protocol.PullMessageRequest
	if err := h.DecodeFields(req.Fields); err != nil {
		return p, 0, err
	}
	forbid := func(kind int32, format string, args ...any) error {
		return refuseWith(&protocol.PullMessageResponse{ForbiddenType: kind}, protocol.NoPermission, format, args...)
	}
	if !topic.Readable(b.permission()) {
		return p, 0, forbid(forbiddenBroker, "the broker[%s] pulling message is forbidden", b.o.Name)
	}
	g, ok, err := b.group(h.ConsumerGroup)
	if err != nil || !ok {
		return p, 0, refuse(protocol.SubscriptionGroupNotExist, "subscription group [%s] does not exist, See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.", h.ConsumerGroup)
	}
	if !g.ConsumeEnable {
		return p, 0, forbid(forbiddenGroup, "subscription group no permission, %s", h.ConsumerGroup)
	}
	cfg, ok := b.topics.GetBytes(h.Topic)
	if !ok {
		return p, 0, noSuchTopic(string(h.Topic))
	}
	if !topic.Readable(cfg.Perm) {
		return p, 0, forbid(forbiddenTopic, "the topic[%s] pulling message is forbidden", h.Topic)
	}
	if h.QueueID < 0 || h.QueueID >= cfg.ReadQueueNums {
		return p, 0, refuse(protocol.InvalidParameter, "queueId[%d] is illegal, topic:[%s] topicConfig.readQueueNums:[%d] consumer:[%s]", h.QueueID, h.Topic, cfg.ReadQueueNums, c.RemoteAddr())
	}
	f, err := b.pullFilter(&h, g, forbid)
	if err != nil {
		return p, 0, err
	}

	now := b.now()
	b.notify(b.clients.sawPull(c, g.GroupName, cfg.TopicName, h.QueueID, now))
	if to, ok := b.offsets.TakeReset(cfg.TopicName, g.GroupName, h.QueueID); ok {
		return p, 0, refuseWith(&protocol.PullMessageResponse{NextBeginOffset: to,
			MinOffset: b.store.MinOffset(cfg.TopicName, h.QueueID), MaxOffset: b.store.MaxOffset(cfg.TopicName, h.QueueID)},
			protocol.PullOffsetMoved, "OFFSET_RESET")
	}
	b.offsets.SetPulled(cfg.TopicName, g.GroupName, h.QueueID, h.QueueOffset)
	if h.SysFlag&protocol.PullCommitOffset != 0 {
		b.commit(c, cfg.TopicName, g.GroupName, h.QueueID, h.CommitOffset, now)
	}

	p = pull{
		ticket: req.Ticket(c), topic: cfg.TopicName, group: g.GroupName, queue: h.QueueID, offset: h.QueueOffset,
		max: int(h.MaxMsgNums), filter: f, topicSysFlag: cfg.TopicSysFlag, groupSysFlag: g.GroupSysFlag,
	}
	if h.SysFlag&protocol.PullSuspend != 0 {
		hold = time.Duration(h.SuspendTimeoutMillis) * time.Millisecond
		if !b.o.LongPolling {
			hold = b.o.ShortPollingTime
		}
		hold = min(hold, b.o.MaxHold)
	}
	return p, hold, nil
}

// pullFilter is the filter of a pull: from its header, or from the group's heartbeat.
func (b *Broker) pullFilter(h *protocol.PullMessageRequest, g subgroup.Config, forbid func(int32, string, ...any) error) (store.Filter, error) {
	if h.SysFlag&protocol.PullSubscription != 0 {
		f, err := filter.Compile(string(h.ExpressionType), string(h.Subscription))
		return asFilter(f, err)
	}
	b.clients.mu.RLock()
	s, broadcasting, online := b.clients.reg.Subscription(h.ConsumerGroup, h.Topic)
	b.clients.mu.RUnlock()
	switch {
	case !online:
		return nil, refuse(protocol.SubscriptionNotExist, "the consumer's group info not exist")
	case broadcasting && !g.ConsumeBroadcastEnable:
		return nil, forbid(forbiddenBroadcast, "the consumer group[%s] can not consume by broadcast way", h.ConsumerGroup)
	case b.groups.Forbidden(g.GroupName, string(h.Topic)):
		return nil, forbid(forbiddenSubscription, "the consumer group[%s] is forbidden for topic[%s]", h.ConsumerGroup, h.Topic)
	case s == nil:
		return nil, refuse(protocol.SubscriptionNotExist, "the consumer's subscription not exist")
	case s.Data.SubVersion < h.SubVersion:
		return nil, errNotLatest
	}
	return asFilter(s.Filter, s.FilterErr)
}

// asFilter turns a compiled expression into the store's filter: none for one that lets everything through.
func asFilter(f *filter.Tags, err error) (store.Filter, error) {
	var unsupported *filter.UnsupportedError
	switch {
	case errors.As(err, &unsupported):
		return nil, refuse(protocol.SystemError, "The broker does not support consumer to filter message by %s", unsupported.Type)
	case err != nil:
		return nil, refuse(protocol.SubscriptionParseFailed, "parse the consumer's subscription failed: %s", err)
	case f == nil:
		return nil, nil
	}
	return f, nil
}

// Wants implements longpoll.Pull.
func (p *pull) Wants(tagsCode int64) bool { return p.filter == nil || p.filter.MatchTagsCode(tagsCode) }

// pullOrPark reads for p and, where nothing is beyond its offset, parks it. The table asks for the queue's end
// once more before it takes the pull, so a message stored in between isn't missed.
func (b *Broker) pullOrPark(c *remoting.Conn, p *pull, hold time.Duration) {
	r := b.results.get()
	b.store.Get(p.topic, p.queue, p.offset, p.max, 0, p.filter, r)
	if waits(r.Status, p.offset) {
		parked := *p
		seen, deadline := r.MaxOffset, b.now().Add(hold)
		r.Release()
		moved := func() bool { return b.store.MaxOffset(p.topic, p.queue) != seen }
		if b.parked.Park(longpoll.Key{Topic: p.topic, Queue: p.queue}, &parked, c.ID(), deadline, moved) {
			b.results.put(r)
			b.armHold(deadline)
			select {
			case <-c.Done(): // it ended before the pull was parked
				b.parked.DropConn(c.ID())
			default:
			}
			if b.closed.Load() { // since before the pull was parked
				b.refuseParked()
			}
			return
		}
		b.store.Get(p.topic, p.queue, p.offset, p.max, 0, p.filter, r)
	}
	b.answerPull(p, r)
}

// waits reports whether a pull that met this status is one for a message that isn't there yet (Java's code 19).
func waits(s store.GetStatus, offset int64) bool {
	switch s {
	case store.OffsetOverflowOne, store.OffsetFoundNull:
		return true
	case store.NoMatchedLogicQueue, store.NoMessageInQueue:
		return offset == 0
	}
	return false
}

// pullNow reads for p and answers, whatever it finds.
func (b *Broker) pullNow(p *pull) {
	r := b.results.get()
	b.store.Get(p.topic, p.queue, p.offset, p.max, 0, p.filter, r)
	b.answerPull(p, r)
}

// answerPull hands the result to the connection, which releases it after the bytes are written.
func (b *Broker) answerPull(p *pull, r *store.GetResult) {
	h := &protocol.PullMessageResponse{
		NextBeginOffset: r.NextOffset, MinOffset: r.MinOffset, MaxOffset: r.MaxOffset,
		TopicSysFlag: p.topicSysFlag, GroupSysFlag: p.groupSysFlag,
	}
	resp := &remoting.Response{Code: pullCode(r.Status, p.offset), Remark: r.Status.String(), Header: h}
	if r.Status == store.Found {
		resp.Parts = r.Records
		b.stats.get(p.topic, p.group, r.Count, r.Bytes)
		resp.Release = func() { r.Release(); b.results.put(r) }
	} else {
		b.stats.get(p.topic, p.group, 0, 0)
		if resp.Code == protocol.PullOffsetMoved {
			b.log.Info("offset out of range: told the consumer where to go on", "topic", p.topic, "group", p.group,
				"queueId", p.queue, "offset", p.offset, "next", r.NextOffset, "status", r.Status)
		}
		r.Release()
		b.results.put(r)
	}
	_ = p.ticket.Reply(resp)
}

// pullCode is Java's mapping of read status to response code.
func pullCode(s store.GetStatus, offset int64) protocol.ResponseCode {
	switch s {
	case store.Found:
		return protocol.Success
	case store.NoMatchedMessage, store.MessageWasRemoving:
		return protocol.PullRetryImmediately
	case store.OffsetFoundNull, store.OffsetOverflowOne:
		return protocol.PullNotFound
	case store.NoMatchedLogicQueue, store.NoMessageInQueue:
		if offset != 0 {
			return protocol.PullOffsetMoved
		}
		return protocol.PullNotFound
	default:
		return protocol.PullOffsetMoved
	}
}

type resultPool struct{ pool sync.Pool }

func (p *resultPool) get() *store.GetResult {
	if r, ok := p.pool.Get().(*store.GetResult); ok {
		return r
	}
	return new(store.GetResult)
}

func (p *resultPool) put(r *store.GetResult) { p.pool.Put(r) }

// noSuchTopic refuses a pull in Java's words.
func noSuchTopic(name string) error {
	return refuse(protocol.TopicNotExist, "topic[%s] not exist, apply first please! See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.", name)
}
