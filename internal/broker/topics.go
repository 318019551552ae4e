package broker

import (
	"errors"
	"strings"

	"github.com/apogeemq/apogee/internal/broker/topic"
	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// withBody is an answer with a JSON body.
func withBody(header any, body any) (*remoting.Response, error) {
	raw, err := protocol.EncodeBody(body)
	if err != nil {
		return nil, err
	}
	return &remoting.Response{Header: header, Body: raw}, nil
}

// nameRefusal gives an error of the topic or group table its response code.
func nameRefusal(err error) error {
	if errors.Is(err, topic.ErrIllegalName) {
		return refuse(protocol.InvalidParameter, "%s", err)
	}
	return err
}

// updateTopic handles UPDATE_AND_CREATE_TOPIC (17).
func (b *Broker) updateTopic(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.CreateTopicRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	c := topic.Config{TopicName: h.Topic, ReadQueueNums: h.ReadQueueNums, WriteQueueNums: h.WriteQueueNums, Perm: h.Perm,
		TopicFilterType: h.TopicFilterType, TopicSysFlag: h.TopicSysFlag, Order: h.Order}
	if err := checkQueues(c); err != nil {
		return nil, err
	}
	if strings.Contains(h.Attributes, "message.type=MIXED") {
		return nil, refuse(protocol.InvalidParameter, "MIXED message type is not supported.")
	}
	if err := b.topics.Update(c, h.Attributes, b.now()); err != nil {
		return nil, nameRefusal(err)
	}
	return &remoting.Response{}, nil
}

// maxQueues bounds the queues of a topic: a typing error must not make a million of them.
const maxQueues = 65536

func checkQueues(c topic.Config) error {
	for _, n := range []int32{c.ReadQueueNums, c.WriteQueueNums} {
		if n < 0 || n > maxQueues {
			return refuse(protocol.InvalidParameter, "topic[%s] with %d queues: 0 to %d are allowed", c.TopicName, n, maxQueues)
		}
	}
	if c.Perm < 0 || c.Perm > 15 {
		return refuse(protocol.InvalidParameter, "topic[%s] with permission %d: want the sum of 4 (read), 2 (write), 1 (inherit)", c.TopicName, c.Perm)
	}
	return nil
}

// updateTopicList handles UPDATE_AND_CREATE_TOPIC_LIST (18). Unlike Java's it goes on behind a topic that is
// unchanged.
func (b *Broker) updateTopicList(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var body struct {
		TopicConfigList []topic.Config `json:"topicConfigList"`
	}
	if err := fastjson.Unmarshal(req.Body, &body); err != nil {
		return nil, refuse(protocol.SystemError, "topic list body: %s", err)
	}
	for _, c := range body.TopicConfigList {
		if err := checkQueues(c); err != nil {
			return nil, err
		}
		var attributes []string
		for k, v := range c.Attributes {
			if !strings.HasPrefix(k, "+") && !strings.HasPrefix(k, "-") {
				k = "+" + k
			}
			attributes = append(attributes, k+"="+v)
		}
		if err := b.topics.Update(c, strings.Join(attributes, ","), b.now()); err != nil {
			return nil, nameRefusal(err)
		}
	}
	return &remoting.Response{}, nil
}

// deleteTopic handles DELETE_TOPIC_IN_BROKER (215): the topic, its queues and all groups' offsets in it. Its
// messages stay in the log until their files go.
func (b *Broker) deleteTopic(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.TopicRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	if err := b.topics.Delete(h.Topic, b.now()); err != nil {
		return nil, nameRefusal(err)
	}
	b.offsets.RemoveTopic(h.Topic)
	b.stats.forgetTopic(h.Topic)
	err := b.store.DeleteTopic(h.Topic)
	// Pulls that wait are told, or they would go on in a new topic of that name where they stood in the old one.
	for _, p := range b.parked.TakeTopic(h.Topic) {
		_ = p.(*pull).ticket.Reply(response(noSuchTopic(h.Topic)))
	}
	if err != nil {
		return nil, err
	}
	return &remoting.Response{}, nil
}

// allTopics handles GET_ALL_TOPIC_CONFIG (21).
func (b *Broker) allTopics(_ *remoting.Conn, _ *remoting.Command) (*remoting.Response, error) {
	all, version := b.topics.All()
	return withBody(nil, protocol.TopicConfigWrapper{DataVersion: version, TopicConfigTable: all})
}

// topicConfig handles GET_TOPIC_CONFIG (351).
func (b *Broker) topicConfig(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.TopicRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	c, ok := b.topics.Get(h.Topic)
	if !ok {
		return nil, refuse(protocol.TopicNotExist, "No topic in this broker. topic: %s", h.Topic)
	}
	return withBody(nil, c)
}

// topicStats handles GET_TOPIC_STATS_INFO (202).
func (b *Broker) topicStats(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.TopicRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	c, ok := b.topics.Get(h.Topic)
	if !ok {
		return nil, refuse(protocol.TopicNotExist, "topic[%s] not exist", h.Topic)
	}
	table := protocol.TopicStatsTable{OffsetTable: map[protocol.MessageQueue]protocol.TopicOffset{}}
	for q := range max(c.WriteQueueNums, c.ReadQueueNums) {
		o := protocol.TopicOffset{MinOffset: b.store.MinOffset(h.Topic, q), MaxOffset: b.store.MaxOffset(h.Topic, q)}
		if o.MaxOffset > 0 {
			o.LastUpdateTimestamp, _ = b.store.StoreTimeAt(h.Topic, q, o.MaxOffset-1)
		}
		table.OffsetTable[b.queueName(h.Topic, q)] = o
	}
	table.TopicPutTps = protocol.Double(b.stats.rate("TOPIC_PUT_NUMS", h.Topic))
	return withBody(nil, table)
}

func (b *Broker) queueName(topicName string, id int32) protocol.MessageQueue {
	return protocol.MessageQueue{Topic: topicName, BrokerName: b.o.Name, QueueID: id}
}

// systemTopics handles GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305).
func (b *Broker) systemTopics(_ *remoting.Conn, _ *remoting.Command) (*remoting.Response, error) {
	return withBody(nil, protocol.TopicList{TopicList: b.topics.SystemTopics()})
}

// topicConsumers handles QUERY_TOPIC_CONSUME_BY_WHO (300): groups that subscribe the topic, or have an offset in it.
func (b *Broker) topicConsumers(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.TopicRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	b.clients.mu.RLock()
	groups := b.clients.reg.Subscribers(h.Topic)
	b.clients.mu.RUnlock()
	seen := map[string]bool{}
	out := protocol.GroupList{GroupList: []string{}}
	for _, g := range append(groups, b.offsets.Groups(h.Topic)...) {
		if !seen[g] {
			seen[g] = true
			out.GroupList = append(out.GroupList, g)
		}
	}
	return withBody(nil, out)
}
