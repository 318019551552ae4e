// Package delay delivers messages after a delay: it puts them on SCHEDULE_TOPIC_XXXX, one queue a level, and moves
// them to their own topics when they are due. Progress is kept in config/delayOffset.json.
package delay

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apogeemq/apogee/internal/message"
)

// DefaultLevels is the default of messageDelayLevel.
const DefaultLevels = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

// Levels are the delays of the levels, from level 1 on.
type Levels []time.Duration

// ParseLevels reads messageDelayLevel: numbers with a unit s, m, h or d, separated by spaces.
func ParseLevels(text string) (Levels, error) {
	var out Levels
	for _, f := range strings.Fields(text) {
		unit, ok := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[f[len(f)-1]]
		n, err := strconv.ParseInt(f[:len(f)-1], 10, 32)
		if !ok || err != nil || n < 0 {
			return nil, fmt.Errorf("messageDelayLevel: %q is no delay, want a number and s, m, h or d", f)
		}
		out = append(out, time.Duration(n)*unit)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("messageDelayLevel: no level in %q", text)
	}
	return out, nil
}

// Max returns the highest level.
func (l Levels) Max() int { return len(l) }

// Delay returns the delay of a level; one above the highest counts as the highest.
func (l Levels) Delay(level int) time.Duration { return l[min(max(level, 1), len(l))-1] }

// Schedule turns m into the message that waits in its place: on the schedule topic, in the level's queue, with its
// own topic and queue in properties. It appends the new properties to dst, which m then holds. A level above the
// highest counts as the highest.
func (l Levels) Schedule(dst []byte, m *message.Message, level int) {
	level = min(level, len(l))
	dst = message.RemoveProperty(dst, m.Properties, message.PropertyDelayLevel, message.PropertyRealTopic, message.PropertyRealQueueID,
		message.PropertyTimerDelaySec, message.PropertyTimerDelayMs, message.PropertyTimerDeliverMs)
	dst = message.AppendProperty(dst, message.PropertyDelayLevel, strconv.Itoa(level))
	dst = message.AppendProperty(dst, message.PropertyRealTopic, m.Topic)
	dst = message.AppendProperty(dst, message.PropertyRealQueueID, strconv.Itoa(int(m.QueueID)))
	m.Properties, m.Topic, m.QueueID = dst, message.ScheduleTopic, int32(level-1)
}

// Delivered turns a message of the schedule topic into the one that its consumers get: its own topic and queue
// again, the rest as it was, so that the properties still tell of the delay, as Java's do.
func Delivered(m *message.Message) error {
	real, ok := message.Property(m.Properties, message.PropertyRealTopic)
	if !ok {
		return fmt.Errorf("scheduled message at %d has no %s", m.PhysicalOffset, message.PropertyRealTopic)
	}
	v, _ := message.Property(m.Properties, message.PropertyRealQueueID)
	id, err := strconv.ParseInt(string(v), 10, 32)
	if err != nil {
		return fmt.Errorf("scheduled message at %d: %s is %q", m.PhysicalOffset, message.PropertyRealQueueID, v)
	}
	m.Topic, m.QueueID = string(real), int32(id)
	props := message.RemoveProperty(nil, m.Properties, message.PropertyWaitStoreMsgOK)
	m.Properties = message.AppendProperty(props, message.PropertyWaitStoreMsgOK, "false")
	return nil
}
