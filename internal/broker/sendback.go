package broker

import (
	"math/rand/v2"

	"github.com/apogeemq/apogee/internal/broker/topic"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/store"
)

// serveSendBack handles CONSUMER_SEND_MSG_BACK (36): a consumer gives a message back to be had again later.
// The message is copied to the group's %RETRY% topic through the delay ladder (level 3 + its count: 10 s, 30 s,
// 1 m, …), or past the limit to the group's dead-letter queue.
func (b *Broker) serveSendBack(c *remoting.Conn, req *remoting.Command) {
	w := &sendBackWait{ticket: req.Ticket(c)}
	if err := b.sendBack(c, req, w); err != nil {
		_ = w.ticket.Reply(response(err))
	}
}

func (b *Broker) sendBack(c *remoting.Conn, req *remoting.Command, w *sendBackWait) error {
	var h protocol.ConsumerSendMsgBackRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return err
	}
	g, ok, err := b.group([]byte(h.Group))
	if err != nil || !ok {
		return refuse(protocol.SubscriptionGroupNotExist, "subscription group not exist, %s", h.Group)
	}
	if !topic.Writable(b.permission()) {
		return refuse(protocol.NoPermission, "the broker[%s] sending message is forbidden", b.o.Name)
	}
	if g.RetryQueueNums <= 0 {
		return w.ticket.Reply(&remoting.Response{})
	}
	retry, err := b.topics.EnsureRetry(h.Group, g.RetryQueueNums, b.now())
	if err != nil {
		return err
	}
	if !topic.Writable(retry.Perm) {
		return refuse(protocol.NoPermission, "the topic[%s] sending message is forbidden", retry.TopicName)
	}
	rec, release, err := b.store.Record(h.Offset)
	if err != nil {
		return refuse(protocol.SystemError, "look message by offset failed, %d", h.Offset)
	}
	defer release()
	var m message.Message
	if _, err := message.DecodeRecord(rec, &m, false); err != nil {
		return refuse(protocol.SystemError, "look message by offset failed, %d: %s", h.Offset, err)
	}

	limit := g.RetryMaxTimes
	if req.Version >= protocol.VersionV3_4_9 && h.MaxReconsumeTimes != nil {
		limit = *h.MaxReconsumeTimes
	}
	originID := message.OffsetID(m.StoreHost, m.PhysicalOffset)
	if v, ok := message.Property(m.Properties, message.PropertyOriginMessageID); ok {
		originID = string(v)
	}
	// First what goes: it leaves a copy that ends in a separator, which the record's own properties need not.
	props := message.RemoveProperty(nil, m.Properties, message.PropertyOriginMessageID, message.PropertyDelayLevel,
		message.PropertyRealTopic, message.PropertyRealQueueID, message.PropertyWaitStoreMsgOK)
	if _, ok := message.Property(props, message.PropertyRetryTopic); !ok {
		props = message.AppendProperty(props, message.PropertyRetryTopic, m.Topic)
	}
	props = message.AppendProperty(props, message.PropertyOriginMessageID, originID)
	props = message.AppendProperty(props, message.PropertyWaitStoreMsgOK, "false")

	m.StoreHost = b.storeHost(c)
	if m.ReconsumeTimes >= limit || h.DelayLevel < 0 {
		dlq, err := b.topics.EnsureDLQ(h.Group, b.now())
		if err != nil {
			return err
		}
		m.Topic, m.QueueID, m.Properties = dlq.TopicName, 0, props
		m.ReconsumeTimes++
		b.counters.deadLetters.Add(1)
		b.store.Append(&m, w)
		return nil
	}
	level := int(h.DelayLevel)
	if level == 0 {
		level = 3 + int(m.ReconsumeTimes)
	}
	m.Topic, m.QueueID, m.Properties = retry.TopicName, rand.Int32N(max(retry.WriteQueueNums, 1)), props
	m.ReconsumeTimes++
	b.o.Levels.Schedule(nil, &m, level)
	b.store.Append(&m, w)
	return nil
}

// sendBackWait answers a send-back when the copy is stored. A client that is told it failed keeps the message.
type sendBackWait struct {
	ticket remoting.Ticket
}

// Appended implements store.Waiter.
func (w *sendBackWait) Appended(r store.Result) {
	if r.Err != nil {
		_ = w.ticket.Reply(response(refuse(protocol.SystemError, "%s", r.Err)))
		return
	}
	_ = w.ticket.Reply(&remoting.Response{})
}

// storeTimeOf returns the store time (ms) of a whole record.
func storeTimeOf(rec []byte) int64 {
	h, err := message.DecodeHeader(rec)
	if err != nil {
		return -1
	}
	return h.StoreTimestamp
}
