package broker

import (
	"strings"

	"github.com/apogeemq/apogee/internal/broker/member"
	"github.com/apogeemq/apogee/internal/broker/subgroup"
	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// updateGroup handles UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200).
func (b *Broker) updateGroup(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var c subgroup.Config
	if err := fastjson.Unmarshal(req.Body, &c); err != nil {
		return nil, refuse(protocol.SystemError, "group body: %s", err)
	}
	if err := b.groups.Update(b.now(), c); err != nil {
		return nil, nameRefusal(err)
	}
	return &remoting.Response{}, nil
}

// updateGroupList handles UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225).
func (b *Broker) updateGroupList(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var body struct {
		GroupConfigList []subgroup.Config `json:"groupConfigList"`
	}
	if err := fastjson.Unmarshal(req.Body, &body); err != nil {
		return nil, refuse(protocol.SystemError, "group list body: %s", err)
	}
	if err := b.groups.Update(b.now(), body.GroupConfigList...); err != nil {
		return nil, nameRefusal(err)
	}
	return &remoting.Response{}, nil
}

// deleteGroup handles DELETE_SUBSCRIPTIONGROUP (207). The group's %RETRY% and %DLQ% topics stay, as in Java.
func (b *Broker) deleteGroup(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.DeleteSubscriptionGroupRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	if err := b.groups.Delete(h.GroupName, b.now()); err != nil {
		return nil, err
	}
	if h.CleanOffset {
		b.offsets.RemoveGroup(h.GroupName)
	}
	return &remoting.Response{}, nil
}

// allGroups handles GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201).
func (b *Broker) allGroups(_ *remoting.Conn, _ *remoting.Command) (*remoting.Response, error) {
	raw, err := b.groups.Encode()
	return &remoting.Response{Body: raw}, err
}

// groupConfig handles GET_SUBSCRIPTIONGROUP_CONFIG (352). Unlike Java's it makes no group that doesn't exist.
func (b *Broker) groupConfig(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.GroupRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	c, ok := b.groups.Get(h.Group)
	if !ok {
		return nil, refuse(protocol.SubscriptionGroupNotExist, "No group in this broker. group: %s", h.Group)
	}
	return withBody(nil, c)
}

// groupForbidden handles UPDATE_AND_GET_GROUP_FORBIDDEN (353).
func (b *Broker) groupForbidden(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.ForbiddenRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	if h.Readable != nil {
		if err := b.groups.SetForbidden(h.Group, h.Topic, !*h.Readable, b.now()); err != nil {
			return nil, err
		}
	}
	return withBody(nil, protocol.GroupForbidden{Group: h.Group, Topic: h.Topic, Readable: !b.groups.Forbidden(h.Group, h.Topic)})
}

// consumeStats handles GET_CONSUME_STATS (208): how far a group has come in its topics.
func (b *Broker) consumeStats(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.ConsumeStatsRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	topics := []string{h.Topic}
	switch {
	case h.TopicList != "":
		topics = strings.Split(h.TopicList, ";")
	case h.Topic == "":
		topics = b.offsets.Topics(h.ConsumerGroup)
	}
	b.clients.mu.RLock()
	info, online := b.clients.reg.Group(h.ConsumerGroup)
	b.clients.mu.RUnlock()
	out := protocol.ConsumeStats{OffsetTable: map[protocol.MessageQueue]protocol.OffsetWrapper{}}
	for _, name := range topics {
		c, ok := b.topics.Get(name)
		if !ok {
			continue
		}
		if _, subscribed := info.Subscriptions[name]; online && !subscribed && h.TopicList == "" {
			continue // offsets of what the group doesn't subscribe any more
		}
		for q := range c.ReadQueueNums {
			committed, _ := b.offsets.Peek(name, h.ConsumerGroup, q)
			w := protocol.OffsetWrapper{BrokerOffset: b.store.MaxOffset(name, q), ConsumerOffset: max(committed, 0), PullOffset: b.offsets.Pulled(name, h.ConsumerGroup, q)}
			if committed > 0 {
				w.LastTimestamp, _ = b.store.StoreTimeAt(name, q, committed-1)
			}
			out.OffsetTable[b.queueName(name, q)] = w
		}
		out.ConsumeTps += protocol.Double(b.stats.rate("GROUP_GET_NUMS", name+"@"+h.ConsumerGroup))
	}
	return withBody(nil, out)
}

func connection(p member.Peer, c *remoting.Conn) protocol.Connection {
	addr := p.Conn.IP.String()
	if c != nil {
		addr = c.RemoteAddr().String()
	}
	return protocol.Connection{ClientID: p.Client, ClientAddr: addr, Language: p.Language.String(), Version: p.Version}
}

// consumerConnections handles GET_CONSUMER_CONNECTION_LIST (203).
func (b *Broker) consumerConnections(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.ConsumerGroupRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	b.clients.mu.RLock()
	defer b.clients.mu.RUnlock()
	info, online := b.clients.reg.Group(h.ConsumerGroup)
	if !online {
		return nil, refuse(protocol.ConsumerNotOnline, "the consumer group[%s] not online", h.ConsumerGroup)
	}
	out := protocol.ConsumerConnection{ConsumeType: info.ConsumeType, MessageModel: info.Model, ConsumeFromWhere: info.FromWhere, SubscriptionTable: info.Subscriptions}
	for _, m := range info.Members {
		out.ConnectionSet = append(out.ConnectionSet, connection(m, b.clients.conns[m.Conn.ID]))
	}
	return withBody(nil, out)
}

// producerConnections handles GET_PRODUCER_CONNECTION_LIST (204).
func (b *Broker) producerConnections(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.ProducerGroupRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	b.clients.mu.RLock()
	defer b.clients.mu.RUnlock()
	peers := b.clients.reg.Producers(h.ProducerGroup)[h.ProducerGroup]
	if len(peers) == 0 || h.ProducerGroup == "" {
		return nil, refuse(protocol.SystemError, "the producer group[%s] not exist", h.ProducerGroup)
	}
	var out protocol.ProducerConnection
	for _, p := range peers {
		out.ConnectionSet = append(out.ConnectionSet, connection(p, b.clients.conns[p.Conn.ID]))
	}
	return withBody(nil, out)
}

// allProducers handles GET_ALL_PRODUCER_INFO (328).
func (b *Broker) allProducers(_ *remoting.Conn, _ *remoting.Command) (*remoting.Response, error) {
	b.clients.mu.RLock()
	defer b.clients.mu.RUnlock()
	out := protocol.ProducerTableInfo{Data: map[string][]protocol.ProducerInfo{}}
	for group, peers := range b.clients.reg.Producers("") {
		for _, p := range peers {
			out.Data[group] = append(out.Data[group], protocol.ProducerInfo{ClientID: p.Client, RemoteIP: p.Conn.IP.String(),
				Language: p.Language.String(), Version: p.Version, LastUpdateTimestamp: p.Seen.UnixMilli()})
		}
	}
	return withBody(nil, out)
}

// topicsOfConsumer handles QUERY_TOPICS_BY_CONSUMER (343).
func (b *Broker) topicsOfConsumer(c *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.GroupRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	out := protocol.TopicList{TopicList: b.offsets.Topics(h.Group), BrokerAddr: b.storeHost(c).String()}
	if out.TopicList == nil {
		out.TopicList = []string{}
	}
	return withBody(nil, out)
}

// subscriptionOfConsumer handles QUERY_SUBSCRIPTION_BY_CONSUMER (345).
func (b *Broker) subscriptionOfConsumer(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.GroupRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	out := protocol.SubscriptionOfConsumer{Group: h.Group, Topic: h.Topic}
	b.clients.mu.RLock()
	if s, _, _ := b.clients.reg.Subscription([]byte(h.Group), []byte(h.Topic)); s != nil {
		out.SubscriptionData = &s.Data
	}
	b.clients.mu.RUnlock()
	return withBody(nil, out)
}

// consumeTimeSpan handles QUERY_CONSUME_TIME_SPAN (303): from when a topic's messages are, and how old is what the
// group consumes.
func (b *Broker) consumeTimeSpan(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.ConsumeTimeSpanRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	c, ok := b.topics.Get(h.Topic)
	if !ok {
		return nil, refuse(protocol.TopicNotExist, "topic[%s] not exist", h.Topic)
	}
	out := protocol.ConsumeTimeSpanBody{ConsumeTimeSpanSet: []protocol.ConsumeTimeSpan{}}
	for q := range max(c.WriteQueueNums, 0) {
		lo, hi := b.store.MinOffset(h.Topic, q), b.store.MaxOffset(h.Topic, q)
		s := protocol.ConsumeTimeSpan{MessageQueue: b.queueName(h.Topic, q)}
		s.MinTimeStamp, _ = b.store.StoreTimeAt(h.Topic, q, lo)
		s.MaxTimeStamp, _ = b.store.StoreTimeAt(h.Topic, q, hi-1)
		s.ConsumeTimeStamp = s.MinTimeStamp
		committed, _ := b.offsets.Peek(h.Topic, h.Group, q)
		if committed > 0 {
			s.ConsumeTimeStamp, _ = b.store.StoreTimeAt(h.Topic, q, committed-1)
		}
		if committed < hi {
			if t, ok := b.store.StoreTimeAt(h.Topic, q, committed); ok {
				s.DelayTime = b.now().UnixMilli() - t
			}
		}
		out.ConsumeTimeSpanSet = append(out.ConsumeTimeSpanSet, s)
	}
	return withBody(nil, out)
}

// resetOffset handles INVOKE_BROKER_TO_RESET_OFFSET (222): the group goes on from an offset or a time, online or
// not. The reset is told to the queue's next pull.
func (b *Broker) resetOffset(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.ResetOffsetRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	c, ok := b.topics.Get(h.Topic)
	if !ok {
		return nil, refuse(protocol.TopicNotExist, "Topic %s does not exist", h.Topic)
	}
	if _, ok := b.groups.Get(h.Group); !ok {
		return nil, refuse(protocol.SubscriptionGroupNotExist, "Group %s does not exist", h.Group)
	}
	out := protocol.ResetOffsetBody{OffsetTable: map[protocol.MessageQueue]int64{}}
	if h.QueueID != nil && *h.QueueID >= 0 && h.Offset != nil && *h.Offset >= 0 {
		lo, hi := b.store.MinOffset(h.Topic, *h.QueueID), b.store.MaxOffset(h.Topic, *h.QueueID)
		if *h.QueueID >= c.ReadQueueNums || *h.Offset < lo || *h.Offset > hi+1 {
			return nil, refuse(protocol.SystemError, "Target offset %d not in consume queue range [%d-%d]", *h.Offset, lo, hi+1)
		}
		out.OffsetTable[b.queueName(h.Topic, *h.QueueID)] = *h.Offset
	} else {
		for q := range c.ReadQueueNums {
			at := b.store.MaxOffset(h.Topic, q)
			if h.Timestamp >= 0 {
				at = b.store.OffsetByTime(h.Topic, q, h.Timestamp, false)
			}
			out.OffsetTable[b.queueName(h.Topic, q)] = at
		}
	}
	for q, at := range out.OffsetTable {
		b.offsets.Reset(h.Topic, h.Group, q.QueueID, at)
	}
	b.log.Info("consumer offsets reset", "group", h.Group, "topic", h.Topic, "queues", len(out.OffsetTable))
	return withBody(nil, out)
}

// allOffsets handles GET_ALL_CONSUMER_OFFSET (43); allDelayOffsets GET_ALL_DELAY_OFFSET (45).
func (b *Broker) allOffsets(_ *remoting.Conn, _ *remoting.Command) (*remoting.Response, error) {
	raw, err := b.offsets.Encode()
	return &remoting.Response{Body: raw}, err
}

func (b *Broker) allDelayOffsets(_ *remoting.Conn, _ *remoting.Command) (*remoting.Response, error) {
	raw, err := b.delayed.Encode()
	return &remoting.Response{Body: raw}, err
}
