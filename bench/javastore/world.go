package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/apogeemq/apogee/bench/drive"
	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

const (
	queues       = 4
	delayedTopic = "moved-delayed"
	group        = "moved-group"
	// delayLevel is the one that is sent with: 10 s, so that the next broker delivers it.
	delayLevel = "3"
	// delayedWithin is how soon after the next broker's start everything delayed must have come.
	delayedWithin = 60 * time.Second
	// persistWait is longer than the interval in which both brokers are told to write offsets.
	persistWait = 2500 * time.Millisecond
	// javaPersists is how long after its start a Java broker has written offsets for the first time: it begins with that
	// after 10 s, whatever the interval.
	javaPersists = 13 * time.Second
)

type queueKey struct {
	topic string
	id    int32
}

// world is the folder and what must be in it.
type world struct {
	bin, peer, dir string
	messages       int
	settings       []string // of either broker
	names          *drive.Process

	turns, sent, delayedSent int
	topics                   map[string]int32 // to the number of queues
	bodies                   map[queueKey][]string
	keys                     map[string]string // key to body, some of them
	keyTopic                 map[string]string
	offsets                  map[queueKey]int64
	groups                   map[string]int32 // to retryMaxTimes
	delayed                  map[string]int   // body to how often it must have come at least
	killed                   bool             // a broker was killed while delayed messages came: some may come again
}

func newWorld(bin, peer string, messages int, defaults bool) (*world, error) {
	dir, err := os.MkdirTemp("", "apogee-javastore-")
	if err != nil {
		return nil, err
	}
	w := &world{bin: bin, peer: peer, dir: dir, messages: messages, topics: map[string]int32{}, bodies: map[queueKey][]string{}, keys: map[string]string{},
		keyTopic: map[string]string{}, offsets: map[queueKey]int64{}, groups: map[string]int32{}, delayed: map[string]int{}}
	w.settings = []string{"flushConsumerOffsetInterval=1000", "flushDelayOffsetInterval=1000"}
	if !defaults {
		w.settings = append(w.settings, "mappedFileSizeCommitLog=262144", "mappedFileSizeConsumeQueue=4000", "maxHashSlotNum=500", "maxIndexNum=2000")
	}
	if w.names, err = drive.Ours(bin, "namesrv", "--namesrv-port", "0", "--http-port", "0", "--data", filepath.Join(dir, "names"), "--log-level", "error"); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *world) close(remove bool) {
	_ = w.names.Stop()
	if remove {
		_ = os.RemoveAll(w.dir)
	}
}

func (w *world) store() string { return filepath.Join(w.dir, "store") }

// java and ours start a broker on the store. Both have one name: topics are named for it.
func (w *world) java() (*drive.Process, error) {
	port, err := drive.FreePort()
	if err != nil {
		return nil, err
	}
	return drive.Java(w.peer, w.dir, port, w.names.Addr, w.settings...)
}

func (w *world) ours() (*drive.Process, error) {
	args := []string{"broker", "--data", w.store(), "--namesrv", w.names.Addr, "--broker-port", "0", "--http-port", "0", "--log-level", "warn"}
	for _, kv := range append([]string{"brokerName=java-broker", "brokerClusterName=DefaultCluster"}, w.settings...) {
		args = append(args, "--set", kv)
	}
	return drive.Ours(w.bin, args...)
}

// run moves the store about. Each turn is a broker that starts on it, is looked at, works, and ends.
func (w *world) run(rounds int) error {
	for i := range rounds {
		for _, t := range []struct {
			java, kill bool
		}{{true, false}, {false, false}, {true, true}, {false, false}} {
			// Apogee is killed, too, and started again, before it hands the store back.
			if !t.java && i%2 == 1 {
				if err := w.turn(false, true); err != nil {
					return err
				}
			}
			if err := w.turn(t.java, t.kill); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *world) turn(java, kill bool) error {
	w.turns++
	name, start := "Apogee", w.ours
	if java {
		name, start = "Java", w.java
	}
	p, err := start()
	if err != nil {
		return fmt.Errorf("turn %d: %w", w.turns, err)
	}
	took := time.Since(p.Began)
	served := time.Now()
	if !java {
		served = time.Time{}
	}
	err = w.work(p, served)
	how := "kill -9"
	if kill || err != nil {
		p.Kill()
		w.killed = true
	} else {
		how = "a clean stop"
		err = p.Stop()
	}
	if err != nil {
		return fmt.Errorf("turn %d, %s: %w\n%s", w.turns, name, err, p.Log())
	}
	said, err := drive.CheckStore(w.bin, w.store())
	if err != nil {
		return fmt.Errorf("turn %d, after %s of %s: %w", w.turns, how, name, err)
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	fmt.Printf("turn %d: %s started in %d ms, had everything, took %d messages, ended by %s; %s\n", w.turns, name, took.Milliseconds(), w.messages, how, lines[len(lines)-1])
	return nil
}

// work looks at everything that was there before, adds to it, and looks again.
func (w *world) work(p *drive.Process, served time.Time) error {
	c, err := drive.Dial(p.Addr)
	if err != nil {
		return err
	}
	defer drive.CloseConn(c)
	if err := w.verify(c); err != nil {
		return fmt.Errorf("after the start: %w", err)
	}
	if err := w.add(c); err != nil {
		return err
	}
	if err := w.verify(c); err != nil {
		return fmt.Errorf("before the end: %w", err)
	}
	if err := w.sendDelayed(c); err != nil {
		return err
	}
	time.Sleep(max(persistWait, time.Until(served.Add(javaPersists))))
	return nil
}

// add makes a topic and a group, sends and commits.
func (w *world) add(c *remoting.Conn) error {
	topic := fmt.Sprintf("moved-%d", w.turns)
	for t, n := range map[string]int32{topic: queues, delayedTopic: 1} {
		h := &protocol.CreateTopicRequest{Topic: t, DefaultTopic: "TBW102", ReadQueueNums: n, WriteQueueNums: n, Perm: 6, TopicFilterType: "SINGLE_TAG"}
		if _, err := drive.Call(c, protocol.UpdateAndCreateTopic, h, nil); err != nil {
			return fmt.Errorf("make topic %s: %w", t, err)
		}
		w.topics[t] = n
	}
	for g, n := range map[string]int32{group: 16, fmt.Sprintf("%s-%d", group, w.turns): int32(20 + w.turns)} {
		raw, err := json.Marshal(protocol.SubscriptionGroupConfig{GroupName: g, ConsumeEnable: true, ConsumeBroadcastEnable: true, RetryQueueNums: 1, RetryMaxTimes: n,
			ConsumeTimeoutMinute: 15, NotifyConsumerIdsChangedEnable: true, GroupRetryPolicy: protocol.RetryPolicy{Type: "CUSTOMIZED"}, Attributes: map[string]string{}})
		if err != nil {
			return err
		}
		if _, err := drive.Call(c, protocol.UpdateAndCreateSubscriptionGroup, nil, raw); err != nil {
			return fmt.Errorf("make group %s: %w", g, err)
		}
		w.groups[g] = n
	}
	list := make([]string, 0, len(w.topics))
	for t := range w.topics {
		if t != delayedTopic {
			list = append(list, t)
		}
	}
	for n := 0; n < w.messages; {
		key := queueKey{list[n%len(list)], int32(n / 7 % queues)}
		size := 1
		if n%5 == 0 {
			size = 4
		}
		var ms []message.Message
		for i := range size {
			body := fmt.Sprintf("turn %d message %d %s", w.turns, n+i, strings.Repeat("é", n%90))
			k := fmt.Sprintf("t%dk%d", w.turns, n+i)
			props := message.AppendProperty(message.AppendProperty(nil, message.PropertyKeys, k), message.PropertyTags, fmt.Sprint("tag", n%3))
			ms = append(ms, message.Message{Body: []byte(body), Properties: props})
			if (n+i)%9 == 0 {
				w.keys[k], w.keyTopic[k] = body, key.topic
			}
		}
		at, err := drive.Send(c, key.topic, key.id, ms...)
		if err != nil {
			return err
		}
		if want := int64(len(w.bodies[key])); at != want {
			return fmt.Errorf("topic %s queue %d: sent to offset %d, want %d", key.topic, key.id, at, want)
		}
		for _, m := range ms {
			w.bodies[key] = append(w.bodies[key], string(m.Body))
		}
		n += size
		w.sent += size
	}
	for key, list := range w.bodies {
		at := int64(len(list) * 2 / 3)
		h := &protocol.UpdateConsumerOffsetRequest{ConsumerGroup: group, Topic: key.topic, QueueID: key.id, CommitOffset: at}
		if _, err := drive.Call(c, protocol.UpdateConsumerOffset, h, nil); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		w.offsets[key] = at
	}
	return nil
}

// sendDelayed sends messages that come due when the next broker runs.
func (w *world) sendDelayed(c *remoting.Conn) error {
	for i := range 5 {
		body := fmt.Sprintf("delayed %d of turn %d", i, w.turns)
		m := message.Message{Body: []byte(body), Properties: message.AppendProperty(nil, message.PropertyDelayLevel, delayLevel)}
		if _, err := drive.Send(c, delayedTopic, 0, m); err != nil {
			return err
		}
		w.delayed[body] = 1
		w.delayedSent++
	}
	return nil
}

// verify compares everything with what must be there.
func (w *world) verify(c *remoting.Conn) error {
	if err := w.verifyTables(c); err != nil {
		return err
	}
	for key, want := range w.bodies {
		at := int64(0)
		for {
			next, moved, err := drive.Pull(c, group, key.topic, key.id, at, func(m *message.Message) error {
				if m.QueueOffset >= int64(len(want)) || string(m.Body) != want[m.QueueOffset] {
					return fmt.Errorf("topic %s queue %d offset %d: %.60q is there", key.topic, key.id, m.QueueOffset, m.Body)
				}
				return nil
			})
			if err != nil {
				return err
			}
			if !moved {
				break
			}
			at = next
		}
		if at != int64(len(want)) {
			return fmt.Errorf("topic %s queue %d: %d messages are there, want %d", key.topic, key.id, at, len(want))
		}
	}
	for k, body := range w.keys {
		if err := w.verifyKey(c, k, body); err != nil {
			return err
		}
	}
	for key, want := range w.offsets {
		a, err := drive.Call(c, protocol.QueryConsumerOffset, &protocol.QueryConsumerOffsetRequest{ConsumerGroup: group, Topic: key.topic, QueueID: key.id}, nil)
		if err != nil {
			return fmt.Errorf("offset of topic %s queue %d: %w", key.topic, key.id, err)
		}
		var r protocol.QueryConsumerOffsetResponse
		if err := protocol.Decode(a.Fields, &r); err != nil {
			return err
		}
		if r.Offset != want {
			return fmt.Errorf("topic %s queue %d: the committed offset is %d, want %d", key.topic, key.id, r.Offset, want)
		}
	}
	return w.verifyDelayed(c)
}

func (w *world) verifyTables(c *remoting.Conn) error {
	a, err := drive.Call(c, protocol.GetAllTopicConfig, nil, nil)
	if err != nil {
		return fmt.Errorf("topics: %w", err)
	}
	var topics protocol.TopicConfigWrapper
	if err := fastjson.Unmarshal(a.Body, &topics); err != nil {
		return fmt.Errorf("topics: %w", err)
	}
	for t, n := range w.topics {
		if got, ok := topics.TopicConfigTable[t]; !ok || got.ReadQueueNums != n || got.WriteQueueNums != n || got.Perm != 6 {
			return fmt.Errorf("topic %s is %+v, want %d queues", t, got, n)
		}
	}
	if a, err = drive.Call(c, protocol.GetAllSubscriptionGroupConfig, nil, nil); err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	var groups protocol.SubscriptionGroupWrapper
	if err := fastjson.Unmarshal(a.Body, &groups); err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	for g, n := range w.groups {
		if got, ok := groups.SubscriptionGroupTable[g]; !ok || got.RetryMaxTimes != n || !got.ConsumeEnable {
			return fmt.Errorf("group %s is %+v, want %d retries", g, got, n)
		}
	}
	return nil
}

func (w *world) verifyKey(c *remoting.Conn, key, body string) error {
	h := &protocol.QueryMessageRequest{Topic: w.keyTopic[key], Key: key, MaxNum: 32, EndTimestamp: time.Now().Add(time.Hour).UnixMilli()}
	a, err := drive.Call(c, protocol.QueryMessage, h, nil)
	if err != nil {
		return fmt.Errorf("key %s: %w", key, err)
	}
	for records := a.Body; len(records) > 0; {
		var m message.Message
		n, err := message.DecodeRecord(records, &m, true)
		if err != nil {
			return fmt.Errorf("key %s: %w", key, err)
		}
		if string(m.Body) == body {
			return nil
		}
		records = records[n:]
	}
	return fmt.Errorf("topic %s: nothing is found by key %s", w.keyTopic[key], key)
}

var errMissing = errors.New("a delayed message hasn't come")

// verifyDelayed waits until everything that was delayed came, once; after a kill it may come again.
func (w *world) verifyDelayed(c *remoting.Conn) error {
	if len(w.delayed) == 0 {
		return nil
	}
	deadline := time.Now().Add(delayedWithin)
	for {
		came := map[string]int{}
		for at := int64(0); ; {
			next, moved, err := drive.Pull(c, group, delayedTopic, 0, at, func(m *message.Message) error {
				came[string(m.Body)]++
				return nil
			})
			if err != nil {
				return err
			}
			if !moved {
				break
			}
			at = next
		}
		var err error
		for body := range w.delayed {
			switch n := came[body]; {
			case n == 0:
				err = fmt.Errorf("%w: %s", errMissing, body)
			case n > 1 && !w.killed:
				return fmt.Errorf("%s came %d times", body, n)
			}
		}
		for body := range came {
			if w.delayed[body] == 0 {
				return fmt.Errorf("%q was never sent", body)
			}
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}
