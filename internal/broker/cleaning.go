package broker

import (
	"strings"
	"sync"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/remoting"
)

// unread counts, by group and topic, messages that cleaning deleted before the group had consumed them. A group without a
// committed offset in a queue is not counted for it: nothing says that it wants the queue's messages.
type unread struct {
	mu      sync.Mutex
	total   map[groupTopic]int64 // since the start
	pending map[groupTopic]int64 // not logged yet
}

type groupTopic struct{ group, topic string }

// Dropped is told by the store that a queue's messages from one offset up to another were deleted with their commit-log
// file.
func (b *Broker) Dropped(topicName string, queueID int32, from, to int64) {
	for _, group := range b.offsets.Groups(topicName) {
		at, ok := b.offsets.Peek(topicName, group, queueID)
		if n := to - max(at, from); ok && n > 0 {
			b.unread.add(groupTopic{group, topicName}, n)
		}
	}
}

func (u *unread) add(k groupTopic, n int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.total == nil {
		u.total, u.pending = map[groupTopic]int64{}, map[groupTopic]int64{}
	}
	u.total[k] += n
	u.pending[k] += n
}

// logUnread says what one cleaning deleted unread, a line for each group and topic.
func (b *Broker) logUnread() {
	b.unread.mu.Lock()
	pending := b.unread.pending
	b.unread.pending = map[groupTopic]int64{}
	b.unread.mu.Unlock()
	for k, n := range pending {
		b.log.Warn("messages were deleted with their commit-log files before the group consumed them: it is too slow for fileReservedTime, or the disk was too full",
			"group", k.group, "topic", k.topic, "messages", n)
	}
}

// figures are the counts for the metrics page.
func (u *unread) figures() []Figure {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []Figure
	for k, n := range u.total {
		out = append(out, Figure{Name: "apogee_messages_deleted_unread_total", Help: "messages that cleaning deleted before the group consumed them", Value: float64(n),
			Counter: true, Labels: map[string]string{"group": k.group, "topic": k.topic}})
	}
	return out
}

// lightPrefix begins the names of light queues, which are in no topic table.
const lightPrefix = "%LMQ%"

// cleanUnusedTopics handles CLEAN_UNUSED_TOPIC (316): consume queues of topics that are no more in the topic table go.
func (b *Broker) cleanUnusedTopics(_ *remoting.Conn, _ *remoting.Command) (*remoting.Response, error) {
	gone := map[string]bool{}
	b.store.Queues(func(name string, _ int32, _, _ int64) {
		if _, known := b.topics.Get(name); !known && name != message.ScheduleTopic && !b.topics.IsSystem(name) && !strings.HasPrefix(name, lightPrefix) {
			gone[name] = true
		}
	})
	for name := range gone {
		if err := b.store.DeleteTopic(name); err != nil {
			return nil, err
		}
		b.log.Info("deleted the consume queues of a topic that isn't in the topic table", "topic", name)
	}
	return &remoting.Response{}, nil
}
