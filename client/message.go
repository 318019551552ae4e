package client

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apogeemq/apogee/internal/filter"
	"github.com/apogeemq/apogee/internal/message"
)

// Message is one message. The first fields are what a producer sets; the others are set on messages that were
// received.
type Message struct {
	Topic string
	Tags  string   // one tag, by which consumers can choose
	Keys  []string // for look-ups; no spaces in them
	// Properties are the user's; system properties are not among them.
	Properties map[string]string
	Body       []byte

	// ShardingKey: messages with equal keys go to the same queue, the one a Java producer's hash selector takes.
	ShardingKey string
	// DelayLevel delays delivery: 1 to 18 for 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h.
	DelayLevel int
	// DeliverAt delays delivery until this time, on brokers with timer messages (Java 5.x). It excludes DelayLevel.
	DeliverAt time.Time

	ID          string // unique id, made by the producer
	OffsetID    string // the broker's id
	Broker      string // name of the broker it came from
	Queue       int
	QueueOffset int64
	Born        time.Time
	Stored      time.Time
	Retries     int // how often a consumer gave it back

	system   map[string]string // system properties as received
	physical int64             // offset in the broker's log
	size     int               // bytes that count against flow limits
}

// MessageQueue returns the queue that m came from.
func (m *Message) MessageQueue() MessageQueue { return MessageQueue{m.Topic, m.Broker, m.Queue} }

// maxBody bounds a decompressed body, against ones made to explode.
const maxBody = 64 << 20

// propertyInstance is the namespace, set by Java producers.
const propertyInstance = "INSTANCE_ID"

// decode reads the messages of a pull's body; those whose tag only shares a hash with the expression's are dropped.
func (c *Client) decode(broker string, body []byte, tags *filter.Tags) ([]*Message, error) {
	var out []*Message
	for len(body) > 0 {
		var m message.Message
		n, err := message.DecodeRecord(body, &m, true)
		if err != nil {
			return out, fmt.Errorf("pull answer: %w", err)
		}
		body = body[n:]
		x := c.fromRecord(broker, &m)
		if !tags.MatchTag(x.Tags) {
			continue
		}
		if x.Body, err = message.Decompress(m.SysFlag, m.Body, maxBody); err != nil {
			return out, errors.Join(fmt.Errorf("message %s", x.ID), err)
		}
		out = append(out, x)
	}
	return out, nil
}

// fromRecord returns m as users see it. Its body stays a view.
func (c *Client) fromRecord(broker string, m *message.Message) *Message {
	x := &Message{Topic: m.Topic, Broker: broker, Queue: int(m.QueueID), QueueOffset: m.QueueOffset, OffsetID: message.OffsetID(m.StoreHost, m.PhysicalOffset),
		Born: time.UnixMilli(m.BornTimestamp), Stored: time.UnixMilli(m.StoreTimestamp), Retries: int(m.ReconsumeTimes),
		Properties: map[string]string{}, system: map[string]string{}, physical: m.PhysicalOffset, size: int(m.StoreSize), Body: m.Body}
	for k, v := range message.PropertyMap(m.Properties) {
		if !isSystemProperty(k) {
			x.Properties[k] = v
			continue
		}
		x.system[k] = v
		switch k {
		case message.PropertyTags:
			x.Tags = v
		case message.PropertyKeys:
			x.Keys = strings.Fields(v)
		case message.PropertyUniqueKey:
			x.ID = v
		case message.PropertyShardingKey:
			x.ShardingKey = v
		case message.PropertyDelayLevel:
			x.DelayLevel, _ = strconv.Atoi(v)
		}
	}
	if x.ID == "" {
		x.ID = x.OffsetID
	}
	x.Topic = c.unwrap(x.Topic)
	return x
}

// isSystemProperty reports whether a property belongs to RocketMQ (Java's MessageConst.STRING_HASH_SET, and those
// that brokers add).
func isSystemProperty(k string) bool {
	switch k {
	case message.PropertyKeys, message.PropertyTags, message.PropertyWaitStoreMsgOK, message.PropertyDelayLevel, message.PropertyRetryTopic,
		message.PropertyRealTopic, message.PropertyRealQueueID, message.PropertyTransactionPrepared, message.PropertyProducerGroup,
		message.PropertyUniqueKey, message.PropertyCluster, message.PropertyMsgRegion, message.PropertyTraceOn, message.PropertyMinOffset,
		message.PropertyMaxOffset, message.PropertyOriginMessageID, message.PropertyReconsumeTime, message.PropertyMaxReconsumeTimes,
		message.PropertyConsumeStartTime, message.PropertyInnerNum, message.PropertyInnerBase, message.PropertyPopCheckpoint,
		message.PropertyShardingKey, message.PropertyTimerDelaySec, message.PropertyTimerDelayMs, message.PropertyTimerDeliverMs, message.PropertyCRC32,
		propertyInstance, "BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "UNIQ_KEY_QUERY", "EXTEND_UNIQ_INFO", "TRAN_PREPARED_QUEUE_OFFSET",
		"PREPARED_QUEUE_OFFSET", "__transactionId__", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "CORRELATION_ID", "REPLY_TO_CLIENT",
		"TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "MSG_TYPE", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY",
		"TIMER_DELAY_LEVEL", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "1ST_POP_TIME", "POP_CK_OFFSET", "REDIRECT", "BROKER_NAME":
		return true
	}
	return false
}
