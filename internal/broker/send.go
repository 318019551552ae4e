package broker

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"

	"github.com/apogeemq/apogee/internal/broker/topic"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/store"
)

// serveSend handles SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320). It answers at once
// only when it refuses; otherwise the store's committer answers, when the message is as safe as the flush
// mode promises.
func (b *Broker) serveSend(c *remoting.Conn, req *remoting.Command) {
	w := b.sends.get(b, c, req)
	if err := b.send(c, req, w); err != nil {
		b.counters.sendsRefused.Add(1)
		w.refuse(err)
	}
}

// send hands the message to the store with w as the one who waits, or returns why not. Once it returned nil,
// w answers.
func (b *Broker) send(c *remoting.Conn, req *remoting.Command, w *sendWait) error {
	h := &w.header
	if err := h.DecodeFields(req.Fields); err != nil {
		return err
	}
	if len(req.Body) == 0 {
		return refuse(protocol.MessageIllegal, "the message is illegal: its body is empty; send at least one byte")
	}
	cfg, err := b.sendTopic(c, h)
	if err != nil {
		return err
	}
	if h.QueueID >= max(cfg.WriteQueueNums, cfg.ReadQueueNums) {
		return refuse(protocol.InvalidParameter, "request queueId[%d] is illegal, topic %s has %d write and %d read queues Producer: %s",
			h.QueueID, cfg.TopicName, cfg.WriteQueueNums, cfg.ReadQueueNums, c.RemoteAddr())
	}
	if !topic.Writable(cfg.Perm & b.permission()) {
		return refuse(protocol.NoPermission, "the topic[%s] sending message is forbidden: topic permission %d, broker permission %d", cfg.TopicName, cfg.Perm, b.permission())
	}
	queueID := h.QueueID
	if queueID < 0 {
		queueID = rand.Int32N(max(cfg.WriteQueueNums, 1))
	}
	w.queueID = queueID

	m := &w.message
	m.Topic, m.QueueID = cfg.TopicName, queueID
	m.Flag, m.SysFlag = h.Flag, message.SysFlag(h.SysFlag)
	m.BornTimestamp, m.BornHost = h.BornTimestamp, c.RemoteAddr()
	m.StoreHost = b.storeHost(c)
	m.ReconsumeTimes = h.ReconsumeTimes
	m.Body = req.Body
	if req.Code == int32(protocol.SendBatchMessage) || h.Batch {
		return b.sendBatch(cfg, h, w)
	}

	if group, ok := strings.CutPrefix(cfg.TopicName, message.RetryPrefix); ok {
		if err := b.retrySend(group, h, req.Version, m); err != nil {
			return err
		}
	}
	b.stampProperties(h.Properties, w, true)
	if err := b.redirect(m, w); err != nil {
		return err
	}
	b.store.Append(m, w)
	return nil
}

// sendTopic finds the topic to send to, creating it from the request's template where that is allowed.
func (b *Broker) sendTopic(c *remoting.Conn, h *protocol.SendMessageRequest) (topic.Config, error) {
	if cfg, ok := b.topics.GetBytes(h.Topic); ok {
		if message.ForbidsSend(cfg.TopicName) {
			return cfg, refuse(protocol.NoPermission, "Sending message to topic[%s] is forbidden.", h.Topic)
		}
		return cfg, nil
	}
	name := string(h.Topic)
	if err := topic.ValidateName(name); err != nil {
		return topic.Config{}, refuse(protocol.InvalidParameter, "%s", err)
	}
	if message.ForbidsSend(name) {
		return topic.Config{}, refuse(protocol.NoPermission, "Sending message to topic[%s] is forbidden.", name)
	}
	cfg, err := b.topics.CreateOnSend(name, string(h.DefaultTopic), h.DefaultTopicQueueNums, b.now())
	switch {
	case errors.Is(err, topic.ErrNoTemplate):
		return cfg, refuse(protocol.TopicNotExist, "topic[%s] not exist, apply first please!\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.", name)
	case err != nil:
		return cfg, err
	}
	b.log.Info("made a topic that a producer sends to", "topic", name, "queues", cfg.WriteQueueNums, "client", c.RemoteAddr())
	return cfg, nil
}

// retrySend applies the rules for a client that sends to a %RETRY% topic itself (a consumer whose send-back
// failed, and ordered consumption): past the group's limit the message goes to the group's dead-letter queue.
//
// Java sends it there at once, whatever its count, while any member holds a queue lock. Here the lock only
// makes the limit inclusive: an ordered consumer sends its message with a count equal to the limit when it
// gives up on it, a concurrent one with a count already raised.
func (b *Broker) retrySend(group string, h *protocol.SendMessageRequest, version int32, m *message.Message) error {
	g, ok := b.groups.Get(group)
	if !ok {
		return refuse(protocol.SubscriptionGroupNotExist, "subscription group not exist, %s", group)
	}
	limit := g.RetryMaxTimes
	if version >= protocol.VersionV3_4_9 && h.HasMaxReconsumeTimes {
		limit = h.MaxReconsumeTimes
	}
	over := h.ReconsumeTimes > limit || h.ReconsumeTimes == limit && b.clients.groupHoldsLock(group, b.now())
	if !over {
		return nil
	}
	dlq, err := b.topics.EnsureDLQ(group, b.now())
	if err != nil {
		return err
	}
	m.Topic, m.QueueID = dlq.TopicName, 0
	b.counters.deadLetters.Add(1)
	return nil
}

// known are the properties of a send that mean something to the broker, views found in one pass; nil: not there.
type known struct {
	uniqueKey, popCheckpoint, prepared, delayLevel []byte
	timer                                          [len(timerKeys)][]byte
}

// timerKeys ask for delivery at a time of one's own.
var timerKeys = [...]string{message.PropertyTimerDelaySec, message.PropertyTimerDelayMs, message.PropertyTimerDeliverMs}

// knownOf looks at each pair once: a send has a handful of pairs and asks for eight keys. Of equal keys the last counts.
func knownOf(props []byte) (k known) {
	for key, value := range message.Pairs(props) {
		switch string(key) {
		case message.PropertyUniqueKey:
			k.uniqueKey = value
		case message.PropertyPopCheckpoint:
			k.popCheckpoint = value
		case message.PropertyTransactionPrepared:
			k.prepared = value
		case message.PropertyDelayLevel:
			k.delayLevel = value
		case timerKeys[0]:
			k.timer[0] = value
		case timerKeys[1]:
			k.timer[1] = value
		case timerKeys[2]:
			k.timer[2] = value
		}
	}
	return k
}

// stampProperties builds the stored properties of a single send in the waiter's scratch: the client's own,
// without those that only a broker may set, then region, tracing, cluster and, where identify says so, a unique id
// when there is none.
func (b *Broker) stampProperties(props []byte, w *sendWait, identify bool) {
	p := append(w.props[:0], props...)
	if len(p) > 0 && p[len(p)-1] != message.PropertySeparator {
		p = append(p, message.PropertySeparator)
	}
	w.known = knownOf(props) // views of the frame
	if w.known.popCheckpoint != nil {
		w.scratch = message.RemoveProperty(w.scratch[:0], p, message.PropertyPopCheckpoint)
		p = append(p[:0], w.scratch...)
	}
	if w.known.uniqueKey != nil {
		w.uniqueKey = string(w.known.uniqueKey)
	} else if identify {
		w.uniqueKey = b.uniqueIDs.Next(b.now())
		p = message.AppendProperty(p, message.PropertyUniqueKey, w.uniqueKey)
	}
	p = message.AppendProperty(p, message.PropertyMsgRegion, b.o.Region)
	p = message.AppendProperty(p, message.PropertyTraceOn, b.traceOn)
	p = message.AppendProperty(p, message.PropertyCluster, b.o.Cluster)
	w.props, w.message.Properties = p, p
}

// redirect moves a delayed message to the schedule topic, and refuses what this broker does not serve. It comes after
// stampProperties.
func (b *Broker) redirect(m *message.Message, w *sendWait) error {
	if string(w.known.prepared) == "true" {
		return refuse(protocol.NoPermission, "the broker[%s] sending transaction message is forbidden: this version does not serve transactions", b.o.Name)
	}
	if level := w.known.delayLevel; level != nil {
		n, err := strconv.ParseInt(string(level), 10, 32)
		if err != nil {
			return refuse(protocol.SystemError, "java.lang.NumberFormatException: property DELAY is %q, a delay level is a whole number", level)
		}
		if n > 0 && m.Topic != message.ScheduleTopic {
			if strings.HasPrefix(m.Topic, message.DLQPrefix) {
				w.scratch = message.RemoveProperty(w.scratch[:0], m.Properties, message.PropertyDelayLevel)
				m.Properties = w.scratch
				return nil
			}
			b.o.Levels.Schedule(w.scratch[:0], m, int(n))
			w.scratch = m.Properties
			return nil
		}
	}
	for i, v := range w.known.timer {
		if v != nil {
			return refuse(protocol.SystemError, "accurate timer message is not enabled: property %s=%s asks for one; use a delay level (property DELAY, 1 to %d)", timerKeys[i], v, b.o.Levels.Max())
		}
	}
	return nil
}

// sendBatch stores the messages of one SEND_BATCH_MESSAGE body with consecutive offsets, all or none. As in
// Java each gets its own properties followed by the batch's, so that a unique id of the batch hides those of its
// messages: a batch without one, which is how its messages keep theirs, isn't given one.
func (b *Broker) sendBatch(cfg topic.Config, h *protocol.SendMessageRequest, w *sendWait) error {
	if strings.HasPrefix(cfg.TopicName, message.RetryPrefix) {
		return refuse(protocol.MessageIllegal, "batch request does not support retry group %s", cfg.TopicName)
	}
	b.stampProperties(h.Properties, w, false)
	if string(w.known.prepared) == "true" {
		return refuse(protocol.MessageIllegal, "the message is illegal: a batch can't be a transaction")
	}
	base := w.message
	w.batch = w.batch[:0]
	ends := make([]int, 0, 16)
	w.scratch = w.scratch[:0]
	for item, err := range message.SplitBatch(base.Body) {
		if err != nil {
			return refuse(protocol.MessageIllegal, "the message is illegal: batch body, message %d: %s", len(w.batch)+1, err)
		}
		if v, ok := message.Property(item.Properties, message.PropertyDelayLevel); ok && string(v) != "0" {
			return refuse(protocol.MessageIllegal, "the message is illegal: message %d of the batch has delay level %s; send delayed messages singly", len(w.batch)+1, v)
		}
		w.scratch = append(w.scratch, item.Properties...)
		if n := len(w.scratch); len(item.Properties) > 0 && w.scratch[n-1] != message.PropertySeparator {
			w.scratch = append(w.scratch, message.PropertySeparator)
		}
		w.scratch = append(w.scratch, w.props...)
		ends = append(ends, len(w.scratch))
		m := base
		m.Flag, m.Body = item.Flag, item.Body
		w.batch = append(w.batch, m)
	}
	if len(w.batch) == 0 {
		return refuse(protocol.MessageIllegal, "the message is illegal: the batch holds no message")
	}
	begin := 0
	for i := range w.batch { // views only after the scratch stopped growing
		w.batch[i].Properties = w.scratch[begin:ends[i]]
		begin = ends[i]
	}
	b.store.AppendBatch(w.batch, w)
	return nil
}

// sendWait is one send on its way through the store. The pool's buffers make a send free of allocations that
// grow with the message; it goes back to the pool after its answer was handed to the connection.
type sendWait struct {
	b      *Broker
	conn   *remoting.Conn
	ticket remoting.Ticket

	header    protocol.SendMessageRequest
	message   message.Message
	batch     []message.Message
	props     []byte // the stored properties
	scratch   []byte
	known     known // views of the request, valid while it is served
	queueID   int32
	uniqueKey string
	response  protocol.SendMessageResponse
}

type sendPool struct{ pool sync.Pool }

func (p *sendPool) get(b *Broker, c *remoting.Conn, req *remoting.Command) *sendWait {
	w, _ := p.pool.Get().(*sendWait)
	if w == nil {
		w = new(sendWait)
	}
	w.b, w.conn, w.ticket = b, c, req.Ticket(c)
	return w
}

func (p *sendPool) put(w *sendWait) {
	if cap(w.props)+cap(w.scratch) > 256<<10 {
		w.props, w.scratch = nil, nil // a rare giant must not stay for ever
	}
	clear(w.batch)
	w.message, w.conn, w.uniqueKey, w.known = message.Message{}, nil, "", known{}
	w.header = protocol.SendMessageRequest{}
	p.pool.Put(w)
}

// refuse answers with err. MSG_REGION and TRACE_ON are in every answer to a send: clients read them unasked.
func (w *sendWait) refuse(err error) {
	r := response(err)
	r.Header = &protocol.SendRefusal{Region: w.b.o.Region, TraceOn: w.b.traceOn}
	_ = w.ticket.Reply(r)
	w.b.sends.put(w)
}

// Appended answers the producer. The store's committer calls it when the message is on disk (or in the page
// cache, by flush mode), or when it was refused.
func (w *sendWait) Appended(r store.Result) {
	b := w.b
	if r.Err != nil {
		b.counters.sendsFailed.Add(1)
		w.refuse(b.storeRefusal(r.Err))
		return
	}
	host := b.storeHost(w.conn)
	h := &w.response
	*h = protocol.SendMessageResponse{QueueID: w.queueID, QueueOffset: r.QueueOffset, TransactionID: w.uniqueKey, Region: b.o.Region, TraceOn: b.traceOn}
	if len(r.Sizes) > 0 {
		var ids strings.Builder
		at := r.PhysicalOffset
		for i, size := range r.Sizes {
			if i > 0 {
				ids.WriteByte(',')
			}
			ids.WriteString(message.OffsetID(host, at))
			at += int64(size)
		}
		h.MsgID = ids.String()
	} else {
		h.MsgID = message.OffsetID(host, r.PhysicalOffset)
	}
	b.stats.put(w.message.Topic, r.Count, r.Bytes)
	_ = w.ticket.Reply(&remoting.Response{Header: h})
	b.sends.put(w)
}
