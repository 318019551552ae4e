package client

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// Properties of request and reply (Java's MessageConst).
const (
	propertyCorrelation = "CORRELATION_ID"
	propertyReplyTo     = "REPLY_TO_CLIENT"
	propertyTTL         = "TTL"
	propertyMessageType = "MSG_TYPE"
	replyTopicSuffix    = "_REPLY_TOPIC"
)

// requests are those that wait for their reply, by correlation id.
type requests struct {
	mu sync.Mutex
	m  map[string]chan *Message
}

func (r *requests) add(id string) <-chan *Message {
	ch := make(chan *Message, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = map[string]chan *Message{}
	}
	r.m[id] = ch
	return ch
}

// take removes a request and returns who waits for it, or nil.
func (r *requests) take(id string) chan *Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	ch := r.m[id]
	delete(r.m, id)
	return ch
}

// Request sends m and waits for the reply that a consumer of its topic gives with Producer.Reply (Java: send with
// MessageUtil.createReplyMessage). ctx bounds both; without a deadline WithSendTimeout does. Replies come to this client and
// no other: one that comes too late is lost. m is neither delayed nor part of a batch.
func (p *Producer) Request(ctx context.Context, m *Message, opts ...SendOption) (*Message, error) {
	ctx, done, err := p.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	defer done()
	reply, err := p.request(ctx, m, collect(opts))
	return reply, p.explain("request", err)
}

func (p *Producer) request(ctx context.Context, m *Message, so sendOptions) (*Message, error) {
	if err := p.check(m); err != nil {
		return nil, err
	}
	if m != nil && (m.DelayLevel > 0 || !m.DeliverAt.IsZero()) {
		return nil, invalid("topic %s: a request can't be delayed", m.Topic)
	}
	t := p.place(m)
	if err := t.wait(ctx); err != nil {
		return nil, err
	}
	id := correlationID()
	answer := p.c.requests.add(id)
	defer p.c.requests.take(id)
	res, err := p.hooked(ctx, m, func(ctx context.Context) (*SendResult, error) { return p.sendRequest(ctx, m, so, id) })
	t.done(laneError(err))
	if err != nil {
		return nil, err
	}
	select {
	case reply := <-answer:
		return reply, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("sent to %s, but no reply came: %w", res.MessageQueue(), ctx.Err())
	}
}

func (p *Producer) sendRequest(ctx context.Context, m *Message, so sendOptions, id string) (*SendResult, error) {
	deadline, _ := ctx.Deadline()
	out, err := p.encode(m, so, pair{propertyCorrelation, id}, pair{propertyReplyTo, p.c.id}, pair{propertyTTL, strconv.FormatInt(max(time.Until(deadline).Milliseconds(), 1), 10)})
	if err != nil {
		return nil, err
	}
	if err := p.meet(ctx, out.topic); err != nil {
		return nil, err
	}
	return p.deliver(ctx, out)
}

// meetTime bounds the wait for brokers that don't know the client yet, and meetAgain is for how long one that couldn't be
// met isn't waited for again.
const (
	meetTime  = 500 * time.Millisecond
	meetAgain = 30 * time.Second
)

// meet makes sure that all brokers of a topic know this client: the reply may go through any of them. A broker that
// can't be reached costs a moment, once in a while.
func (p *Producer) meet(ctx context.Context, topic string) error {
	r, _, err := p.writeQueues(ctx, topic, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, meetTime)
	defer cancel()
	var wg sync.WaitGroup
	for broker := range r.brokers {
		addr, ok := r.master(broker)
		if !ok {
			continue
		}
		if since, ok := p.unmet.Load(addr); ok && time.Since(since.(time.Time)) < meetAgain {
			continue
		}
		wg.Go(func() {
			k, err := p.c.conns.get(ctx, addr, true)
			if err == nil {
				err = p.c.greet(ctx, k)
			}
			if err != nil {
				p.unmet.Store(addr, time.Now())
				p.c.log.Debug("no reply can come through a broker", "addr", addr, "error", err)
				return
			}
			p.unmet.Delete(addr)
		})
	}
	wg.Wait() // they end with ctx
	return nil
}

// correlationID is a random UUID.
func correlationID() string {
	a, b := rand.Uint64(), rand.Uint64()
	a = a&^0xF000 | 0x4000
	b = b&^(3<<62) | 2<<62
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xFFFF, a&0xFFFF, b>>48, b&0xFFFFFFFFFFFF)
}

// Reply answers a request that a consumer got. The broker hands it to the client that asked; its error says when
// that one is gone. A message that isn't a request is refused with an error that wraps ErrInvalid.
func (p *Producer) Reply(ctx context.Context, request *Message, body []byte) error {
	ctx, done, err := p.begin(ctx)
	if err != nil {
		return fmt.Errorf("reply: %w", err)
	}
	defer done()
	return p.explain("reply", p.reply(ctx, request, body))
}

func (p *Producer) reply(ctx context.Context, request *Message, body []byte) error {
	if request == nil {
		return invalid("the request is nil")
	}
	cluster, id, to := request.system[message.PropertyCluster], request.system[propertyCorrelation], request.system[propertyReplyTo]
	switch {
	case id == "" || to == "":
		return invalid("message %s is no request: it has no %s and %s", request.ID, propertyCorrelation, propertyReplyTo)
	case cluster == "":
		return invalid("message %s doesn't say to which cluster its reply goes (property %s)", request.ID, message.PropertyCluster)
	}
	m := &Message{Topic: cluster + replyTopicSuffix, Body: body}
	out, err := p.encode(m, sendOptions{}, pair{propertyCorrelation, id}, pair{propertyReplyTo, to}, pair{propertyTTL, orZero(request.system[propertyTTL])}, pair{propertyMessageType, "reply"})
	if err != nil {
		return err
	}
	out.code = protocol.SendReplyMessageV2
	_, qs, err := p.writeQueues(ctx, out.topic, false)
	if err != nil {
		return err
	}
	for i, q := range qs { // the broker of the request knows who asked
		if q.Broker == request.Broker {
			out.queue = &qs[i]
			break
		}
	}
	_, err = p.deliver(ctx, out)
	return err
}

func orZero(s string) string {
	if s == "" {
		return "0"
	}
	return s
}

// pushReplyRequest is the header of PUSH_REPLY_MESSAGE_TO_CLIENT (326).
type pushReplyRequest struct {
	Topic          string `f:"topic,required"`
	QueueID        int32  `f:"queueId"`
	SysFlag        int32  `f:"sysFlag"`
	BornTimestamp  int64  `f:"bornTimestamp"`
	StoreTimestamp int64  `f:"storeTimestamp"`
	Properties     string `f:"properties"`
}

// reply hands a reply to who waits for it.
func (c *Client) reply(req *remoting.Command) *remoting.Response {
	var h pushReplyRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return &remoting.Response{Code: protocol.SystemError, Remark: err.Error()}
	}
	m := c.fromRecord("", &message.Message{Topic: h.Topic, QueueID: h.QueueID, BornTimestamp: h.BornTimestamp, StoreTimestamp: h.StoreTimestamp, Properties: []byte(h.Properties)})
	var err error
	if m.Body, err = message.Decompress(message.SysFlag(h.SysFlag), req.Body, maxBody); err != nil {
		return &remoting.Response{Code: protocol.SystemError, Remark: err.Error()}
	}
	ch := c.requests.take(m.system[propertyCorrelation])
	if ch == nil { // too late: the caller's deadline has passed
		return &remoting.Response{Code: protocol.SystemError, Remark: "nobody waits for a reply with this correlation id any more"}
	}
	ch <- m
	return &remoting.Response{Code: protocol.Success}
}

// recallRequest is the header of RECALL_MESSAGE (370).
type recallRequest struct {
	ProducerGroup string `f:"producerGroup"`
	Topic         string `f:"topic,required"`
	RecallHandle  string `f:"recallHandle,required"`
	BrokerName    string `f:"bname"`
}

type recallResponse struct {
	MsgID  string `f:"msgId"`
	Region string `f:"MSG_REGION"`
}

// Recall takes back a message with DeliverAt that wasn't delivered yet, by the handle that its SendResult has, and
// returns its id. A broker that already delivered it, or that was never given it, may answer well all the same: it
// only notes that the message isn't to be delivered. A handle that can't be one wraps ErrInvalid.
func (p *Producer) Recall(ctx context.Context, topic, handle string) (id string, err error) {
	ctx, done, err := p.begin(ctx)
	if err != nil {
		return "", fmt.Errorf("recall: %w", err)
	}
	defer done()
	id, err = p.recall(ctx, topic, handle)
	return id, p.explain("recall", err)
}

func (p *Producer) recall(ctx context.Context, topic, handle string) (string, error) {
	if err := checkTopic(topic); err != nil {
		return "", err
	}
	broker, err := handleBroker(handle)
	if err != nil {
		return "", err
	}
	r, err := p.c.routes.use(ctx, p.c.wrap(topic), false)
	if err != nil {
		return "", err
	}
	addr, ok := r.master(broker)
	if !ok {
		p.c.routes.kick(p.c.wrap(topic))
		return "", fmt.Errorf("broker %s of the handle: %w", broker, ErrNoRoute)
	}
	a, err := p.c.invoke(ctx, addr, &remoting.Request{Code: protocol.RecallMessage, Header: &recallRequest{ProducerGroup: p.group, Topic: p.c.wrap(topic), RecallHandle: handle, BrokerName: broker}})
	if err != nil {
		return "", err
	}
	var h recallResponse
	if err := protocol.Decode(a.Fields, &h); err != nil {
		return "", err
	}
	ok = a.Code == int32(protocol.Success)
	p.c.tracer.recall(time.Now(), h.Region, p.c.unwrap(p.group), topic, orNull(h.MsgID), ok)
	if !ok {
		return "", refusal(addr, a)
	}
	return h.MsgID, nil
}

// handleBroker reads the broker's name out of a handle: base64url of "v1 topic broker time id".
func handleBroker(handle string) (string, error) {
	text, err := base64.URLEncoding.DecodeString(handle)
	if err != nil {
		if text, err = base64.RawURLEncoding.DecodeString(handle); err != nil {
			return "", invalid("recall handle %.40q: %v; use SendResult.RecallHandle", handle, err)
		}
	}
	f := strings.Fields(string(text))
	if len(f) != 5 || f[0] != "v1" {
		return "", invalid("recall handle %.40q isn't one of version v1; use SendResult.RecallHandle", handle)
	}
	return f[2], nil
}
