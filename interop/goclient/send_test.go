package goclient

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// What the answer to a send says is what the consumer is given.
func TestSendSync(t *testing.T) {
	c := begin(t, "send-sync")
	s := c.server()
	topic, in := c.unique("topic"), &inbox{}
	p := c.producer(s)
	sent := map[string]*primitive.SendResult{}
	next := map[int]int64{}
	var bodies []string
	began := time.Now().Add(-time.Second).UnixMilli()
	for _, body := range numbered("body ", 20) {
		r := c.send(p, message(topic, body))
		q := r.MessageQueue
		if r.QueueOffset != next[q.QueueId] || q.Topic != topic || len(r.MsgID) != 32 || len(r.OffsetMsgID) != 32 {
			c.Fatalf("%q: %v, want offset %d", body, r, next[q.QueueId])
		}
		next[q.QueueId]++
		sent[body], bodies = r, append(bodies, body)
	}
	if len(next) != 4 {
		c.Errorf("round robin over %d queues, want 4", len(next))
	}
	c.push(s, push{topic: topic, handle: in.take("")})
	for _, m := range c.exactly(in, soon, bodies...) {
		r := sent[string(m.Body)]
		if m.MsgId != r.MsgID || m.OffsetMsgId != r.OffsetMsgID || m.QueueOffset != r.QueueOffset || m.Queue.QueueId != r.MessageQueue.QueueId ||
			m.Topic != topic || m.StoreHost != s.broker || !strings.HasPrefix(m.BornHost, "127.0.0.1:") || m.ReconsumeTimes != 0 {
			c.Errorf("got %v, sent %v", m.MessageExt, r)
		}
		if m.BornTimestamp < began || m.StoreTimestamp < m.BornTimestamp-1 || m.StoreTimestamp > time.Now().UnixMilli() {
			c.Errorf("born %d, stored %d", m.BornTimestamp, m.StoreTimestamp)
		}
	}
}

func TestSendAsync(t *testing.T) {
	c := begin(t, "send-async")
	s := c.server()
	topic, in := c.unique("topic"), &inbox{}
	p := c.producer(s)
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	bodies := numbered("async", 100)
	var answered sync.WaitGroup
	var mu sync.Mutex
	offsets := map[string]bool{}
	for _, body := range bodies {
		answered.Add(1)
		c.must(p.SendAsync(ctx, func(_ context.Context, r *primitive.SendResult, err error) {
			defer answered.Done()
			if err != nil || r.Status != primitive.SendOK {
				c.Errorf("%s: %v %v", body, r, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			at := fmt.Sprint(r.MessageQueue.QueueId, " ", r.QueueOffset)
			if offsets[at] {
				c.Errorf("two messages at queue and offset %s", at)
			}
			offsets[at] = true
		}, message(topic, body)))
	}
	answered.Wait()
	c.push(s, push{topic: topic, handle: in.take("")})
	c.exactly(in, soon, bodies...)
}

func TestSendOneWay(t *testing.T) {
	c := begin(t, "send-oneway")
	s := c.server()
	topic, in := c.unique("topic"), &inbox{}
	p := c.producer(s)
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	bodies := numbered("oneway", 50)
	for _, body := range bodies {
		c.must(p.SendOneWay(ctx, message(topic, body)))
	}
	// Nothing says when they are in: the topic doesn't even exist at once, and without it the client doesn't start.
	c.eventually(soon, "the topic", func() bool {
		queues, err := c.admin(s).FetchPublishMessageQueues(ctx, topic)
		return err == nil && len(queues) > 0
	})
	c.push(s, push{topic: topic, handle: in.take("")})
	c.exactly(in, soon, bodies...)
}

// A batch is stored as single messages, one after the other in one queue.
func TestSendBatch(t *testing.T) {
	c := begin(t, "send-batch")
	s := c.server()
	topic, in := c.unique("topic"), &inbox{}
	p := c.producer(s)
	var all []string
	ids := map[string]string{} // body → offset id
	for b := range 3 {
		var batch []*primitive.Message
		bodies := numbered(fmt.Sprint("batch", b, " Ünï ", "-"), 10*b+7)
		for i, body := range bodies {
			m := message(topic, body)
			m.WithTag("T" + itoa(i%2)).WithKeys([]string{body})
			batch = append(batch, m)
		}
		r := c.send(p, batch...)
		list := strings.Split(r.OffsetMsgID, ",")
		if len(list) != len(bodies) {
			c.Fatalf("batch of %d has the ids %s", len(bodies), r.OffsetMsgID)
		}
		for i, body := range bodies {
			ids[body] = list[i]
		}
		all = append(all, bodies...)
	}
	c.push(s, push{topic: topic, handle: in.take("")})
	at := map[string]string{}
	for _, m := range c.exactly(in, soon, all...) {
		body := string(m.Body)
		at[body] = fmt.Sprint(m.Queue.QueueId, " ", m.QueueOffset)
		if m.OffsetMsgId != ids[body] || m.GetKeys() != body || !strings.HasPrefix(m.GetTags(), "T") {
			c.Errorf("%v, want the id %s", m.MessageExt, ids[body])
		}
	}
	for _, body := range all {
		var batch string
		var i, q, off, q0, off0 int
		prefix, n, _ := strings.Cut(body, "-")
		batch = prefix + "-0"
		_, err := fmt.Sscan(n, &i)
		c.must(err)
		_, err = fmt.Sscan(at[body], &q, &off)
		c.must(err)
		_, err = fmt.Sscan(at[batch], &q0, &off0)
		c.must(err)
		if q != q0 || off != off0+i {
			c.Errorf("%s is at %s, the first of its batch at %s", body, at[body], at[batch])
		}
	}
	// A batch to a topic that's new is fine; one for two topics is the client's own error.
	if _, err := p.SendSync(context.Background(), message(topic, "x"), message(topic+"2", "y")); err == nil {
		c.Errorf("a batch for two topics was sent")
	}
}

func TestQueueSelector(t *testing.T) {
	c := begin(t, "queue-selector")
	s := c.server()
	topic, in := c.topic(s, 4), &inbox{}
	var all []string
	p := c.manual(s)
	for i := range 8 {
		m := message(topic, fmt.Sprint("manual", i))
		m.Queue = s.queue(c, topic, i%4)
		if r := c.send(p, m); r.MessageQueue.QueueId != i%4 {
			c.Errorf("chosen queue %d, sent to %d", i%4, r.MessageQueue.QueueId)
		}
		all = append(all, string(m.Body))
	}
	chosen := map[string]int{} // key → queue
	hash := c.producer(s, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for i := range 40 {
		key := fmt.Sprint("key", i%10)
		m := message(topic, fmt.Sprint("hash", i))
		m.WithShardingKey(key)
		q := c.send(hash, m).MessageQueue.QueueId
		if before, ok := chosen[key]; ok && before != q {
			c.Errorf("%s went to queue %d and %d", key, before, q)
		}
		chosen[key] = q
		all = append(all, string(m.Body))
	}
	for name, selector := range map[string]producer.QueueSelector{"random": producer.NewRandomQueueSelector(), "round": producer.NewRoundRobinQueueSelector()} {
		used := map[int]int{}
		p := c.producer(s, producer.WithQueueSelector(selector))
		for i := range 40 {
			m := message(topic, fmt.Sprint(name, i))
			used[c.send(p, m).MessageQueue.QueueId]++
			all = append(all, string(m.Body))
		}
		if name == "round" && (used[0] != 10 || used[1] != 10 || used[2] != 10 || used[3] != 10) || len(used) < 2 {
			c.Errorf("%s used the queues %v", name, used)
		}
	}
	c.push(s, push{topic: topic, handle: in.take("")})
	for _, m := range c.exactly(in, soon, all...) {
		if key := m.GetShardingKey(); key != "" && chosen[key] != m.Queue.QueueId {
			c.Errorf("%s came from queue %d, sent to %d", key, m.Queue.QueueId, chosen[key])
		}
	}
}

func TestKeysTagsProperties(t *testing.T) {
	c := begin(t, "keys-tags-properties")
	s := c.server()
	topic, in := c.unique("topic"), &inbox{}
	p := c.producer(s)
	properties := map[string]string{
		"plain": "value", "unicode": "é订单😀", "订单": "key is unicode", "spaces in key": "  spaces  ", "equals": "a=b&c;d,e",
		"quotes": `"\'{}[]`, "long": strings.Repeat("x", 5000), "digits": "0123", "newline": "a\nb\tc",
	}
	m := message(topic, "body ☃ 订单 😀 \x00\x7f")
	m.WithTag("TagÄ").WithKeys([]string{"k1", "schlüssel", "订单"})
	m.WithProperties(map[string]string{})
	for k, v := range properties {
		m.WithProperty(k, v)
	}
	m.WithTag("TagÄ").WithKeys([]string{"k1", "schlüssel", "订单"})
	m.Flag = 12345
	c.send(p, m)
	c.send(p, message(topic, "bare"))
	c.push(s, push{topic: topic, handle: in.take("")})
	for _, got := range c.exactly(in, soon, string(m.Body), "bare") {
		if string(got.Body) == "bare" {
			if got.GetTags() != "" || got.GetKeys() != "" || got.Flag != 0 {
				c.Errorf("a bare message came with %v", got.MessageExt)
			}
			continue
		}
		if got.GetTags() != "TagÄ" || got.GetKeys() != "k1 schlüssel 订单" || got.Flag != 12345 {
			c.Errorf("tags %q keys %q flag %d", got.GetTags(), got.GetKeys(), got.Flag)
		}
		for k, v := range properties {
			if got.GetProperty(k) != v {
				c.Errorf("property %q: %q, want %q", k, got.GetProperty(k), v)
			}
		}
	}
}

func random(n int) []byte {
	body := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	_, _ = r.Read(body)
	return body
}

func TestBodySizes(t *testing.T) {
	c := begin(t, "body-sizes")
	s := c.server()
	topic, in := c.unique("topic"), &inbox{}
	p := c.producer(s, producer.WithCompressMsgBodyOverHowmuch(8<<20))
	sizes := []int{1, 2, 100, 4095, 4096, 4097, 65535, 65536, 100_000, 1 << 20, 4<<20 - 1, 4 << 20}
	for _, n := range sizes {
		c.send(p, primitive.NewMessage(topic, random(n)))
	}
	c.push(s, push{topic: topic, handle: in.take("")})
	c.eventually(soon, "all sizes", func() bool { return in.count() >= len(sizes) })
	var got []int
	for _, m := range in.all() {
		got = append(got, len(m.Body))
		if !bytes.Equal(m.Body, random(len(m.Body))) {
			c.Errorf("the body of %d bytes differs", len(m.Body))
		}
	}
	if slices.Sort(got); !slices.Equal(got, sizes) {
		c.Errorf("got the sizes %v, want %v", got, sizes)
	}
}

// The client compresses with zlib from 4096 bytes on; the broker stores what it gets.
func TestCompressed(t *testing.T) {
	c := begin(t, "compressed")
	s := c.server()
	topic, in := c.unique("topic"), &inbox{}
	bodies := []string{strings.Repeat("compress me ", 340), strings.Repeat("压缩 ☃ ", 1000), strings.Repeat("x", 4<<20), string(random(5000))}
	for i, body := range bodies {
		c.sendBodies(c.producer(s, producer.WithCompressLevel([]int{1, 5, 9, 5}[i])), topic, body)
	}
	c.push(s, push{topic: topic, handle: in.take("")})
	for _, m := range c.exactly(in, soon, bodies...) {
		compressed := m.SysFlag&1 != 0
		if want := len(m.Body) >= 4096; compressed != want {
			c.Errorf("a body of %d bytes: compressed is %v", len(m.Body), compressed)
		}
		if int(m.StoreSize) > len(m.Body) && len(m.Body) > 5000 {
			c.Errorf("a body of %d bytes takes %d in the store", len(m.Body), m.StoreSize)
		}
	}
}

// What is too big is refused with MESSAGE_ILLEGAL, and the connection goes on.
func TestOversize(t *testing.T) {
	c := begin(t, "oversize")
	s := c.server()
	topic, in := c.unique("topic"), &inbox{}
	p := c.producer(s, producer.WithCompressMsgBodyOverHowmuch(64<<20), producer.WithRetry(0))
	c.sendBodies(p, topic, "before")
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	_, err := p.SendSync(ctx, primitive.NewMessage(topic, make([]byte, 5<<20)))
	if err == nil || !strings.Contains(err.Error(), "CODE: 13") {
		c.Errorf("5 MiB: %v, want code 13", err)
	}
	m := message(topic, "properties")
	m.WithProperty("big", strings.Repeat("x", 40_000))
	if _, err = p.SendSync(ctx, m); err == nil || !strings.Contains(err.Error(), "CODE: 13") {
		c.Errorf("40 KB of properties: %v, want code 13", err)
	}
	c.sendBodies(p, topic, "after")
	c.push(s, push{topic: topic, handle: in.take("")})
	c.exactly(in, soon, "before", "after")
}

func TestDelayLevel(t *testing.T) {
	c := begin(t, "delay-level")
	s := c.server()
	topic, in := c.topic(s, 4), &inbox{}
	c.push(s, push{topic: topic, handle: in.take("")})
	p := c.producer(s)
	levels := map[string]int{"now": 0, "1 s": 1, "5 s": 2}
	seconds := []float64{0, 1, 5}
	for body, level := range levels {
		m := message(topic, body)
		m.WithTag("T").WithKeys([]string{"k"})
		m.WithDelayTimeLevel(level)
		c.send(p, m)
	}
	var took []string
	for _, m := range c.exactly(in, soon, "now", "1 s", "5 s") {
		want := seconds[levels[string(m.Body)]]
		stored := float64(m.StoreTimestamp-m.BornTimestamp) / 1000
		arrived := float64(m.at.UnixMilli()-m.BornTimestamp) / 1000
		took = append(took, fmt.Sprintf("%.1f s", arrived))
		if stored < want-0.05 || arrived > want+2 {
			c.Errorf("%q: stored after %.3f s, here after %.3f s", m.Body, stored, arrived)
		}
		if m.GetTags() != "T" || m.GetKeys() != "k" || m.Topic != topic {
			c.Errorf("%v", m.MessageExt)
		}
	}
	c.say("levels 0, 1 (1 s), 2 (5 s) arrived after %s", strings.Join(took, ", "))
}
