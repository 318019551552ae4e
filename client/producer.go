package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// SendResult says where a message went.
type SendResult struct {
	ID, OffsetID, Broker string
	Queue                int
	QueueOffset          int64
}

// Producer sends messages. It is safe for concurrent use.
type Producer struct {
	c     *Client
	group string // wrapped
	turn  atomic.Uint32
}

// ProducerOption sets something of a Producer. An option that can't be right makes NewProducer fail.
type ProducerOption func(*producerOptions) error

type producerOptions struct{}

// NewProducer returns a producer of a group, of which a Client has at most one producer. It connects when it sends.
func (c *Client) NewProducer(group string, opts ...ProducerOption) (*Producer, error) {
	if group == "" {
		return nil, invalid("producer: the group is empty")
	}
	p := &Producer{c: c, group: c.wrap(group)}
	c.mu.Lock()
	_, there := c.producers[p.group]
	if !there {
		c.producers[p.group] = p
	}
	c.mu.Unlock()
	if there {
		return nil, invalid("producer: this client has a producer of group %s already", group)
	}
	return p, c.adopt(p)
}

// Close ends the producer.
func (p *Producer) Close(context.Context) error {
	p.c.mu.Lock()
	delete(p.c.producers, p.group)
	p.c.mu.Unlock()
	p.c.disown(p)
	return nil
}

// Topics and numbers that clients name when a topic doesn't exist yet.
const (
	templateTopic  = "TBW102"
	templateQueues = 4
	sendAttempts   = 3
)

func (p *Producer) writeQueues(ctx context.Context, topic string, age time.Duration) (*route, []MessageQueue, error) {
	r, err := p.c.routes.get(ctx, topic, age)
	limit := -1
	if errors.Is(err, ErrNoRoute) {
		// The broker makes the topic at the first send, where it may.
		if r, err = p.c.routes.get(ctx, templateTopic, age); errors.Is(err, ErrNoRoute) {
			return nil, nil, fmt.Errorf("topic %s: %w, and topics are not made by themselves", topic, ErrNoRoute)
		}
		limit = templateQueues
	}
	if err != nil {
		return nil, nil, err
	}
	var qs []MessageQueue
	for _, q := range r.write {
		if limit < 0 || q.ID < limit {
			qs = append(qs, MessageQueue{topic, q.Broker, q.ID})
		}
	}
	if len(qs) == 0 {
		return nil, nil, fmt.Errorf("topic %s: %w with a writable queue", topic, ErrNoRoute)
	}
	return r, qs, nil
}

// Send sends m and waits until the broker has it, as safe as its flush mode promises. A send that fails is tried
// again on other queues up to three times in all; m keeps its id. ctx bounds everything.
func (p *Producer) Send(ctx context.Context, m *Message) (*SendResult, error) {
	if m.Topic == "" || len(m.Body) == 0 {
		return nil, invalid("send: a message needs a topic and a body")
	}
	if m.ID == "" {
		m.ID = p.c.ids.Next(time.Now())
	}
	props := encodeProperties(m)
	var last error
	for attempt := range sendAttempts {
		age := routeFresh
		if attempt > 0 {
			age = 0
		}
		r, qs, err := p.writeQueues(ctx, p.c.wrap(m.Topic), age)
		if err != nil {
			return nil, fmt.Errorf("send: %w", err)
		}
		q := qs[int(p.turn.Add(1))%len(qs)]
		addr, _ := r.master(q.Broker)
		res, err := p.sendTo(ctx, addr, q, m, props)
		if err == nil {
			return res, nil
		}
		if ctx.Err() != nil || !Classify(err).Retriable {
			return nil, fmt.Errorf("send: %w", err)
		}
		last = err
	}
	return nil, fmt.Errorf("send: %d attempts failed: %w", sendAttempts, last)
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

func (p *Producer) sendTo(ctx context.Context, addr string, q MessageQueue, m *Message, props []byte) (*SendResult, error) {
	h := &protocol.SendMessageRequest{ProducerGroup: []byte(p.group), Topic: []byte(q.Topic), DefaultTopic: []byte(templateTopic), DefaultTopicQueueNums: templateQueues,
		QueueID: int32(q.ID), BornTimestamp: time.Now().UnixMilli(), Properties: props, BrokerName: []byte(q.Broker)}
	a, err := p.c.invoke(ctx, addr, &remoting.Request{Code: protocol.SendMessageV2, Header: h, Body: m.Body})
	if err != nil {
		return nil, err
	}
	switch protocol.ResponseCode(a.Code) {
	case protocol.Success, protocol.FlushDiskTimeout, protocol.FlushSlaveTimeout, protocol.SlaveNotAvailable: // all of them: stored
	default:
		return nil, refusal(addr, a)
	}
	var r protocol.SendMessageResponse
	if err := r.DecodeFields(a.Fields); err != nil {
		return nil, err
	}
	return &SendResult{ID: m.ID, OffsetID: r.MsgID, Broker: q.Broker, Queue: int(r.QueueID), QueueOffset: r.QueueOffset}, nil
}

// answerProducer serves what brokers ask producers: nothing yet.
func (c *Client) answerProducer(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Response, bool) {
	return nil, false
}
