package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// Status says how safe a stored message is.
type Status int

// The statuses. In all of them the broker has the message; in all but StatusOK it may lose it when it crashes.
const (
	StatusOK                Status = iota // as safe as the broker's flush and replication settings promise
	StatusFlushDiskTimeout                // not flushed to disk in time
	StatusFlushSlaveTimeout               // not replicated in time
	StatusSlaveNotAvailable               // no replica there
)

func (s Status) String() string {
	switch s {
	case StatusOK:
		return "ok"
	case StatusFlushDiskTimeout:
		return "flush disk timeout"
	case StatusFlushSlaveTimeout:
		return "flush slave timeout"
	case StatusSlaveNotAvailable:
		return "slave not available"
	}
	return "status " + strconv.Itoa(int(s))
}

// SendResult says where a message went.
type SendResult struct {
	Status        Status
	ID            string // the message's unique id, which stays with it
	OffsetID      string // the broker's id, for look-ups
	Topic         string
	Broker        string // the broker's name
	Queue         int
	QueueOffset   int64
	TransactionID string
	RecallHandle  string // of a message with DeliverAt, for Producer.Recall

	addr   string // the broker's
	region string
	traced bool
}

// MessageQueue returns the queue that the message went to.
func (r *SendResult) MessageQueue() MessageQueue { return MessageQueue{r.Topic, r.Broker, r.Queue} }

// SendOption sets something of one send.
type SendOption func(*sendOptions)

type sendOptions struct {
	queue    *MessageQueue
	selector Selector
}

// ToQueue sends to this queue and to no other: attempts after a failed one go there, too. Its topic is the message's.
// It excludes SelectQueue.
func ToQueue(q MessageQueue) SendOption { return func(o *sendOptions) { o.queue = &q } }

// SelectQueue picks the queue, in place of the producer's own choice (WithQueueSelector, or the ShardingKey's hash).
// The selector is asked once; attempts after a failed one go to the same queue.
func SelectQueue(s Selector) SendOption { return func(o *sendOptions) { o.selector = s } }

// outgoing is a message, or a batch, ready for the wire.
type outgoing struct {
	m        *Message // of a batch the first
	code     protocol.RequestCode
	topic    string // wrapped
	ids      []string
	props    []byte
	body     []byte
	sysFlag  message.SysFlag
	queue    *MessageQueue // where it must go, wrapped; nil: anywhere
	selector Selector
	kind     traceKind
	oneWay   bool
}

// checkSendTopic refuses a topic that nobody may send to.
func checkSendTopic(topic string) error {
	if message.ForbidsSend(topic) {
		return invalid("topic %s belongs to the broker: nobody else may send to it", topic)
	}
	return checkTopic(topic)
}

// check refuses what brokers refuse, or store wrongly.
func (p *Producer) check(m *Message) error {
	if m == nil {
		return invalid("the message is nil")
	}
	if err := checkSendTopic(m.Topic); err != nil {
		return err
	}
	separators := string([]byte{message.NameSeparator, message.PropertySeparator})
	switch {
	case len(m.Body) == 0:
		return invalid("topic %s: the body is empty, brokers want at least one byte", m.Topic)
	case len(m.Body) > p.o.maxSize:
		return invalid("topic %s: the body has %d bytes, at most %d are allowed (WithMaxMessageSize, and the broker's maxMessageSize)", m.Topic, len(m.Body), p.o.maxSize)
	case strings.ContainsAny(m.Tags, separators):
		return invalid("topic %s: the tag %q has bytes 1 or 2 in it, which separate properties", m.Topic, m.Tags)
	case m.Tags != "" && strings.TrimSpace(m.Tags) == "":
		return invalid("topic %s: the tag is blank", m.Topic)
	case strings.Contains(m.Tags, "|"):
		return invalid("topic %s: tag %q: a message has one tag, and subscriptions separate theirs by ||", m.Topic, m.Tags)
	case strings.ContainsAny(m.ShardingKey, separators):
		return invalid("topic %s: the sharding key %q has bytes 1 or 2 in it, which separate properties", m.Topic, m.ShardingKey)
	case m.DelayLevel < 0:
		return invalid("topic %s: delay level %d, allowed are 0 (none) and 1 to 18", m.Topic, m.DelayLevel)
	case m.DelayLevel > 0 && !m.DeliverAt.IsZero():
		return invalid("topic %s: DelayLevel and DeliverAt exclude each other", m.Topic)
	}
	for _, k := range m.Keys {
		if k == "" || strings.ContainsAny(k, separators) || strings.ContainsAny(k, " \t\r\n") {
			return invalid("topic %s: key %q, a key is not empty and has no white space and no bytes 1 or 2 in it", m.Topic, k)
		}
	}
	for k, v := range m.Properties {
		switch {
		case strings.TrimSpace(k) == "" || strings.TrimSpace(v) == "":
			return invalid("topic %s: property %q=%q, neither name nor value may be blank", m.Topic, k, v)
		case strings.ContainsAny(k, separators) || strings.ContainsAny(v, separators):
			return invalid("topic %s: property %q has bytes 1 or 2 in it, which separate properties", m.Topic, k)
		case isSystemProperty(k):
			return invalid("topic %s: property %s belongs to RocketMQ: use the message's field, or another name", m.Topic, k)
		}
	}
	return nil
}

type pair struct{ key, value string }

// properties encodes what goes with a message, extra behind it.
func (p *Producer) properties(m *Message, extra ...pair) ([]byte, error) {
	var b []byte
	for _, k := range slices.Sorted(maps.Keys(m.Properties)) {
		b = message.AppendProperty(b, k, m.Properties[k])
	}
	if m.Tags != "" {
		b = message.AppendProperty(b, message.PropertyTags, m.Tags)
	}
	if len(m.Keys) > 0 {
		b = message.AppendProperty(b, message.PropertyKeys, strings.Join(m.Keys, " "))
	}
	if m.ShardingKey != "" {
		b = message.AppendProperty(b, message.PropertyShardingKey, m.ShardingKey)
	}
	if m.DelayLevel > 0 {
		b = message.AppendProperty(b, message.PropertyDelayLevel, strconv.Itoa(m.DelayLevel))
	}
	if !m.DeliverAt.IsZero() {
		b = message.AppendProperty(b, message.PropertyTimerDeliverMs, strconv.FormatInt(m.DeliverAt.UnixMilli(), 10))
	}
	if p.c.o.namespace != "" {
		b = message.AppendProperty(b, propertyInstance, p.c.o.namespace)
	}
	b = message.AppendProperty(b, message.PropertyUniqueKey, m.ID)
	b = message.AppendProperty(b, message.PropertyWaitStoreMsgOK, "true")
	for _, x := range extra {
		b = message.AppendProperty(b, x.key, x.value)
	}
	if len(b) > message.MaxProperties {
		return nil, invalid("topic %s: properties, tag and keys take %d bytes, at most %d are allowed", m.Topic, len(b), message.MaxProperties)
	}
	return b, nil
}

// identify gives m its unique id, once: a message that is sent again keeps it.
func (p *Producer) identify(m *Message) {
	if m.ID == "" {
		m.ID = p.c.ids.Next(time.Now())
	}
}

// encode makes a single message ready.
func (p *Producer) encode(m *Message, so sendOptions, extra ...pair) (*outgoing, error) {
	if err := p.check(m); err != nil {
		return nil, err
	}
	p.identify(m)
	props, err := p.properties(m, extra...)
	if err != nil {
		return nil, err
	}
	out := &outgoing{m: m, code: protocol.SendMessageV2, topic: p.c.wrap(m.Topic), ids: []string{m.ID}, props: props, body: m.Body, selector: so.selector}
	if err := p.direct(out, so); err != nil {
		return nil, err
	}
	if m.DelayLevel > 0 || !m.DeliverAt.IsZero() {
		out.kind = traceDelayed
	}
	if p.zip != nil && len(m.Body) >= p.o.compressOver {
		z, err := p.zip.Compress(m.Body)
		if err != nil {
			return nil, err
		}
		if len(z) < len(m.Body) {
			out.body, out.sysFlag = z, message.Compressed|p.o.compression.flag()
		}
	}
	return out, nil
}

// direct sets where out goes.
func (p *Producer) direct(out *outgoing, so sendOptions) error {
	switch {
	case so.queue != nil && so.selector != nil:
		return invalid("topic %s: ToQueue and SelectQueue exclude each other", out.m.Topic)
	case so.queue != nil:
		if so.queue.Topic != out.m.Topic {
			return invalid("queue %s is not one of the message's topic %s", so.queue, out.m.Topic)
		}
		if so.queue.ID < 0 || so.queue.Broker == "" {
			return invalid("queue %s: want a broker's name and a queue id of at least 0", so.queue)
		}
		out.queue = &MessageQueue{out.topic, so.queue.Broker, so.queue.ID}
	case so.selector != nil:
	case p.o.selector != nil:
		out.selector = p.o.selector
	case out.m.ShardingKey != "":
		out.selector = HashQueue
	}
	return nil
}

// sendTo makes one attempt.
func (p *Producer) sendTo(ctx context.Context, addr string, q MessageQueue, out *outgoing) (*SendResult, error) {
	h := &protocol.SendMessageRequest{ProducerGroup: []byte(p.group), Topic: []byte(q.Topic), DefaultTopic: []byte(message.TemplateTopic), DefaultTopicQueueNums: int32(p.o.newQueues),
		QueueID: int32(q.ID), SysFlag: int32(out.sysFlag), BornTimestamp: time.Now().UnixMilli(), Properties: out.props, BrokerName: []byte(q.Broker),
		Batch: out.code == protocol.SendBatchMessage}
	req := &remoting.Request{Code: out.code, Header: h, Body: out.body}
	res := &SendResult{ID: strings.Join(out.ids, ","), Topic: out.m.Topic, Broker: q.Broker, Queue: q.ID, addr: addr, traced: true}
	if out.oneWay {
		return res, p.c.oneWay(ctx, addr, req)
	}
	a, err := p.c.invoke(ctx, addr, req)
	if err != nil {
		return nil, err
	}
	switch protocol.ResponseCode(a.Code) {
	case protocol.Success:
	case protocol.FlushDiskTimeout:
		res.Status = StatusFlushDiskTimeout
	case protocol.FlushSlaveTimeout:
		res.Status = StatusFlushSlaveTimeout
	case protocol.SlaveNotAvailable:
		res.Status = StatusSlaveNotAvailable
	default:
		return nil, refusal(addr, a)
	}
	var r protocol.SendMessageResponse
	if err := r.DecodeFields(a.Fields); err != nil {
		return nil, fmt.Errorf("answer of %s: %w", addr, err)
	}
	res.OffsetID, res.Queue, res.QueueOffset, res.TransactionID = r.MsgID, int(r.QueueID), r.QueueOffset, r.TransactionID
	res.region, res.traced = r.Region, !strings.EqualFold(r.TraceOn, "false")
	if v, ok := a.Fields.Get("recallHandle"); ok {
		res.RecallHandle = string(v)
	}
	return res, nil
}
