package main

import (
	"context"
	"errors"
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

// queue is one queue and what is known of it. One sender sends to it, so that its numbers ascend.
type queue struct {
	topic string
	id    int32

	mu     sync.Mutex
	next   int64           // number of the next message
	acked  map[int64]int64 // number to acknowledged offset
	unsure map[int64]bool  // numbers without an answer
	seen   []int64         // by offset: the number that a consumer saw; -1: none yet
	open   []commit        // of this life, ascending
	floor  int64           // the committed offset that must survive: it was on the disk
	top    int64           // the highest offset that was ever committed
}

// commit is an acknowledged commit.
type commit struct {
	at     time.Time
	offset int64
}

const maxBatch = 12

func (w *world) mine(s int) []*queue {
	var out []*queue
	for i, q := range w.qs {
		if i%w.o.senders == s {
			out = append(out, q)
		}
	}
	return out
}

// send sends to the queues of one sender until the server is gone.
func (w *world) send(ctx context.Context, s int) {
	c, err := w.dial()
	if err != nil {
		return
	}
	defer closeConn(c)
	rng := rand.New(rand.NewPCG(w.o.seed, uint64(s)<<32|uint64(w.r.rounds)))
	queues := w.mine(s)
	for ctx.Err() == nil {
		n := 1
		if rng.IntN(4) == 0 {
			n += rng.IntN(maxBatch)
		}
		w.mu.Lock()
		enough := w.r.sent >= int64(w.o.messages)
		if !enough {
			w.r.sent += int64(n)
		}
		if n > 1 {
			w.r.batches++
		}
		w.mu.Unlock()
		if enough {
			return
		}
		if !w.sendTo(c, queues[rng.IntN(len(queues))], n, rng) {
			return
		}
	}
}

// body is what a message holds: its number, then padding.
func body(n int64, size int) []byte { return fmt.Appendf(nil, "%d %s", n, strings.Repeat("x", size)) }

func numberOf(body []byte) (int64, bool) {
	text, _, ok := strings.Cut(string(body), " ")
	n, err := strconv.ParseInt(text, 10, 64)
	return n, ok && err == nil
}

func (w *world) sendTo(c *remoting.Conn, q *queue, n int, rng *rand.Rand) (ok bool) {
	q.mu.Lock()
	first := q.next
	q.next += int64(n)
	q.mu.Unlock()
	props := func(i int64) []byte {
		return message.AppendProperty(message.AppendProperty(nil, message.PropertyKeys, fmt.Sprintf("k%d", i)), message.PropertyTags, "t")
	}
	h := &protocol.SendMessageRequest{ProducerGroup: []byte("crash"), Topic: []byte(q.topic), DefaultTopic: []byte("TBW102"), DefaultTopicQueueNums: queuesPerTopic, QueueID: q.id, BornTimestamp: time.Now().UnixMilli()}
	code, payload := protocol.SendMessageV2, body(first, rng.IntN(600))
	if n == 1 {
		h.Properties = props(first)
	} else {
		code, h.Batch, payload = protocol.SendBatchMessage, true, nil
		for i := range int64(n) {
			payload = message.AppendBatchItem(payload, 0, body(first+i, rng.IntN(300)), props(first+i))
		}
	}
	a, err := call(c, code, h, payload)
	var r protocol.SendMessageResponse
	if err == nil {
		err = r.DecodeFields(a.Fields)
	}
	q.mu.Lock()
	for i := range int64(n) {
		if err != nil {
			set(&q.unsure, first+i, true)
		} else {
			set(&q.acked, first+i, r.QueueOffset+i)
		}
	}
	q.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.r.acked += int64(n)
		return true
	}
	w.r.unsure += int64(n)
	return errors.As(err, new(*refused)) // a server that lives may refuse; one that is gone ends the round
}

func set[V any](m *map[int64]V, k int64, v V) {
	if *m == nil {
		*m = map[int64]V{}
	}
	(*m)[k] = v
}

// consume pulls the queues of one consumer in turn, and commits, until the server is gone.
func (w *world) consume(ctx context.Context, s int) {
	c, err := w.dial()
	if err != nil {
		return
	}
	defer closeConn(c)
	queues := w.mine(s)
	at := map[*queue]int64{}
	for _, q := range queues {
		at[q] = q.floor
	}
	for i := 0; ctx.Err() == nil; i++ {
		q := queues[i%len(queues)]
		next, moved, err := w.pull(c, q, at[q])
		if err != nil {
			return
		}
		if !moved {
			continue
		}
		at[q] = next
		if _, err := call(c, protocol.UpdateConsumerOffset, &protocol.UpdateConsumerOffsetRequest{ConsumerGroup: group, Topic: q.topic, QueueID: q.id, CommitOffset: next}, nil); err != nil {
			return
		}
		now := time.Now()
		q.mu.Lock()
		q.open = append(q.open, commit{now, next})
		q.top = max(q.top, next)
		q.mu.Unlock()
		w.mu.Lock()
		w.r.commits++
		w.mu.Unlock()
	}
}

// pull pulls once and notes what it saw. moved is false when there was nothing.
func (w *world) pull(c *remoting.Conn, q *queue, from int64) (next int64, moved bool, err error) {
	h := &protocol.PullMessageRequest{ConsumerGroup: []byte(group), Topic: []byte(q.topic), QueueID: q.id, QueueOffset: from, MaxMsgNums: 32, SysFlag: protocol.PullSubscription, Subscription: []byte("*")}
	a, err := call(c, protocol.PullMessage, h, nil)
	var no *refused
	if errors.As(err, &no) {
		switch protocol.ResponseCode(no.code) {
		case protocol.PullNotFound, protocol.PullRetryImmediately:
			return from, false, nil
		}
		return from, false, err
	}
	if err != nil {
		return from, false, err
	}
	return w.note(q, from, a.Body)
}

// note compares pulled records with what is known of the queue.
func (w *world) note(q *queue, from int64, records []byte) (next int64, moved bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(records) > 0 {
		var m message.Message
		n, err := message.DecodeRecord(records, &m, true)
		if err != nil {
			return from, false, fmt.Errorf("topic %s queue %d: what was pulled at %d: %w", q.topic, q.id, from, err)
		}
		records = records[n:]
		k, ok := numberOf(m.Body)
		if !ok || m.QueueOffset != from {
			return from, false, fmt.Errorf("topic %s queue %d: pulled offset %d instead of %d, %.20q", q.topic, q.id, m.QueueOffset, from, m.Body)
		}
		for int64(len(q.seen)) <= m.QueueOffset {
			q.seen = append(q.seen, -1)
		}
		if was := q.seen[m.QueueOffset]; was >= 0 && was != k {
			w.mu.Lock()
			w.r.takenBack++
			w.r.example("topic %s queue %d offset %d: a consumer saw message %d, later %d is there", q.topic, q.id, m.QueueOffset, was, k)
			w.mu.Unlock()
		}
		q.seen[m.QueueOffset] = k
		from = m.QueueOffset + 1
	}
	return from, true, nil
}

// killedAt moves floor to what must have been on the disk when the server was killed.
func (q *queue) killedAt(t time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range q.open {
		if t.Sub(c.at) > persistEvery+persistSlack {
			q.floor = max(q.floor, c.offset)
		}
	}
	q.open = nil
}
