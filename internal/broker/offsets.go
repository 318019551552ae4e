package broker

import (
	"time"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// queryConsumerOffset handles QUERY_CONSUMER_OFFSET (14).
//
// For a group that committed nothing yet Java answers "not found" when the queue is empty; the consumer then
// asks for the end and skips what arrives in between. Here a queue that never held a message answers 0 (unless
// the request forbids it), and so does a young one, whose first message is still in memory, as in Java.
func (b *Broker) queryConsumerOffset(c *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.QueryConsumerOffsetRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	b.notify(b.clients.sawPull(c, h.ConsumerGroup, h.Topic, h.QueueID, b.now()))
	empty := protocol.Empty{}
	offset, ok := b.offsets.Query(h.Topic, h.ConsumerGroup, h.QueueID)
	switch {
	case ok:
	case h.SetZeroIfNotFound != nil && !*h.SetZeroIfNotFound:
		return nil, refuseWith(empty, protocol.QueryNotFound, "Not found, do not set to zero, maybe this group boot first")
	case !b.startsAtZero(h.Topic, h.QueueID):
		return nil, refuseWith(empty, protocol.QueryNotFound, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
	}
	return &remoting.Response{Header: &protocol.QueryConsumerOffsetResponse{Offset: offset, Open: b.offsets.Open(h.Topic, h.ConsumerGroup, h.QueueID)}}, nil
}

// startsAtZero reports whether a group without an offset begins at 0 whatever it asked for: the topic exists
// and the queue never held a message, or its first message is still there and in memory.
func (b *Broker) startsAtZero(topic string, queue int32) bool {
	if _, ok := b.topics.Get(topic); !ok {
		return false
	}
	if b.store.MaxOffset(topic, queue) == 0 {
		return true
	}
	return b.store.MinOffset(topic, queue) <= 0 && b.store.InMemory(topic, queue, 0)
}

// updateConsumerOffset handles UPDATE_CONSUMER_OFFSET (15).
func (b *Broker) updateConsumerOffset(c *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.UpdateConsumerOffsetRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	empty := protocol.Empty{}
	if _, ok := b.groups.Get(h.ConsumerGroup); !ok {
		return nil, refuseWith(empty, protocol.SubscriptionGroupNotExist, "Group %s not exist!", h.ConsumerGroup)
	}
	if _, ok := b.topics.Get(h.Topic); !ok {
		return nil, refuseWith(empty, protocol.TopicNotExist, "Topic %s not exist!", h.Topic)
	}
	if h.QueueID < 0 || h.CommitOffset < 0 {
		return nil, refuseWith(empty, protocol.InvalidParameter, "queueId %d and commitOffset %d: neither may be negative", h.QueueID, h.CommitOffset)
	}
	if !legalOpen(h.Open) {
		return nil, refuseWith(empty, protocol.InvalidParameter, "apogeeOpen: want upTo:begin-end,begin-end in at most %d characters", maxOpen)
	}
	remark := b.commit(c, h.Topic, h.ConsumerGroup, h.QueueID, h.CommitOffset, b.now())
	if remark == "" && h.Open != "" {
		b.offsets.SetOpen(h.Topic, h.ConsumerGroup, h.QueueID, h.CommitOffset, h.Open)
	}
	return &remoting.Response{Header: empty, Remark: remark}, nil
}

// commit is the one way in which a consumer's offset moves. It returns the remark for a commit that was passed
// over: one from a member that no longer owns the queue, or one that lost against an admin's reset.
func (b *Broker) commit(c *remoting.Conn, topic, group string, queue int32, offset int64, now time.Time) (remark string) {
	if offset < 0 {
		return ""
	}
	if !b.clients.mayCommit(c, group, topic, queue, now) {
		b.counters.fencedCommits.Add(1)
		b.log.Info("commit of a former owner passed over: another member holds the queue's lock",
			"topic", topic, "group", group, "queueId", queue, "offset", offset, "client", c.RemoteAddr())
		return "offset not moved: another member of the group holds the lock of this queue"
	}
	if b.offsets.ResetPending(topic, group, queue) {
		return "Offset has been previously reset"
	}
	if b.offsets.Commit(topic, group, queue, offset) {
		b.counters.backwardCommits.Add(1)
	}
	b.notify(b.clients.committed(c, group, topic, queue, now))
	return ""
}

// maxOpen bounds what a client may say of its work beyond an offset.
const maxOpen = 4096

// legalOpen refuses what isn't made of numbers and the signs between them.
func legalOpen(s string) bool {
	if len(s) > maxOpen {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9', c == ':', c == '-', c == ',':
		default:
			return false
		}
	}
	return true
}
