package main

import (
	"errors"
	"fmt"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// restored asks for every committed offset after a start: none may be below what was on the disk, or above what was ever
// committed.
func (w *world) restored() error {
	c, err := w.dial()
	if err != nil {
		return err
	}
	defer closeConn(c)
	for _, q := range w.qs {
		at, err := committed(c, q)
		if err != nil {
			return err
		}
		if at < q.floor || at > q.top {
			w.r.offsetsBack++
			w.r.example("topic %s queue %d: the offset is %d, at least %d was on the disk and %d the highest", q.topic, q.id, at, q.floor, q.top)
		}
		w.r.worstBack = max(w.r.worstBack, q.top-at)
		q.floor = at
	}
	return nil
}

func committed(c *remoting.Conn, q *queue) (int64, error) {
	a, err := call(c, protocol.QueryConsumerOffset, &protocol.QueryConsumerOffsetRequest{ConsumerGroup: group, Topic: q.topic, QueueID: q.id}, nil)
	var no *refused
	if errors.As(err, &no) && protocol.ResponseCode(no.code) == protocol.QueryNotFound {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("offset of topic %s queue %d: %w", q.topic, q.id, err)
	}
	var r protocol.QueryConsumerOffsetResponse
	if err := protocol.Decode(a.Fields, &r); err != nil {
		return 0, err
	}
	return r.Offset, nil
}

// verify reads every queue from its beginning to its end and compares it with what was sent and acknowledged.
func (w *world) verify() error {
	c, err := w.dial()
	if err != nil {
		return err
	}
	defer closeConn(c)
	for _, q := range w.qs {
		for at := int64(0); ; {
			next, moved, err := w.pull(c, q, at)
			if err != nil {
				return err
			}
			if !moved {
				break
			}
			at = next
		}
		w.compare(q)
	}
	return nil
}

// compare looks at one queue that was read as a whole.
func (w *world) compare(q *queue) {
	r := &w.r
	where := map[int64]int64{}
	last := int64(-1)
	for at, k := range q.seen {
		offset := int64(at)
		_, sent := q.acked[k]
		if was, twice := where[k]; twice {
			r.duplicates++
			r.example("topic %s queue %d: message %d is at offset %d and %d", q.topic, q.id, k, was, offset)
		} else if k <= last {
			r.disorder++
			r.example("topic %s queue %d offset %d: message %d follows %d", q.topic, q.id, offset, k, last)
		}
		if !sent && !q.unsure[k] {
			r.unknown++
			r.example("topic %s queue %d offset %d: message %d was never sent", q.topic, q.id, offset, k)
		}
		where[k], last = offset, k
	}
	r.there += int64(len(where))
	for k, offset := range q.acked {
		at, ok := where[k]
		switch {
		case !ok:
			r.lost++
			r.example("topic %s queue %d: message %d was acknowledged at offset %d and is gone", q.topic, q.id, k, offset)
		case at != offset:
			r.moved++
			r.example("topic %s queue %d: message %d was acknowledged at offset %d and is at %d", q.topic, q.id, k, offset, at)
		}
	}
}
