package load

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// Consume pulls a backlog, from the beginning of each queue to where it ended when the run began, and reports how that
// went. With Loop it begins again until the time is over.
func Consume(ctx context.Context, o Options) (*Report, error) {
	o = o.withDefaults()
	o.Rate = 0
	if !o.Loop {
		o.Warmup = 0 // a backlog ends: none of it is given away
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	ts, err := topics(ctx, o, 4)
	if err != nil {
		return nil, err
	}
	m := newMeter(o, false)
	rs, err := dialReceivers(ctx, m, ts)
	if err != nil {
		return nil, err
	}
	defer rs.close()
	backlog := int64(0)
	for _, c := range rs.conns {
		for i := range c.queues {
			backlog += c.queues[i].max - c.queues[i].min
		}
	}
	if backlog == 0 {
		return nil, fmt.Errorf("no message in the %d queues of %s: send some first, with `apogee bench produce`", len(ts), o.Topic)
	}
	if o.Warmup == 0 {
		m.start()
	}
	failed := make(chan struct{})
	var once sync.Once
	var first error
	var wg sync.WaitGroup
	left := len(rs.conns)
	var mu sync.Mutex
	for _, c := range rs.conns {
		wg.Go(func() {
			err := c.loop(o.Loop)
			mu.Lock()
			defer mu.Unlock()
			if left--; err != nil || left == 0 {
				once.Do(func() { first = err; close(failed) })
			}
		})
	}
	err = m.run(ctx, failed)
	giveUp := time.AfterFunc(drainWithin, rs.close)
	cut := context.AfterFunc(ctx, rs.close)
	wg.Wait()
	giveUp.Stop()
	cut()
	if err = errors.Join(err, first); err != nil {
		return nil, err
	}
	r := &Report{Run: "consume", Queues: len(ts), Batch: o.Batch}
	m.report(r)
	r.Connections, r.Size, r.Outstanding = len(rs.conns), 0, 1
	return r, r.succeeded()
}

// receivers are the connections that pull.
type receivers struct{ conns []*receiver }

// receiver is one connection that pulls its queues: one pull of each is on its way. A pull's opaque is the place of
// its queue.
type receiver struct {
	m      *meter
	rec    *recorder
	nc     net.Conn
	in     *remoting.Stream
	group  string
	queues []position
	batch  int
	h      protocol.PullMessageRequest
	out    []byte
	beat   time.Duration // of the last heartbeat

	// arrived is told of each answer's records; nil: they are only counted.
	arrived func(c *receiver, records []byte, now time.Duration) error
}

// position is how far a queue is read.
type position struct {
	target
	next, min, max int64
	left           time.Duration // of the pull on its way
	done           bool
}

// heartbeatOpaque is the opaque of heartbeats, and of the requests before the pulls begin.
const heartbeatOpaque = 1 << 30

// heartbeatEvery is Java's clients' interval.
const heartbeatEvery = 30 * time.Second

func dialReceivers(ctx context.Context, m *meter, ts []target) (*receivers, error) {
	n := m.o.ConsumeConns
	if n == 0 {
		n = min(len(ts), 64)
	}
	rs := &receivers{}
	for i, mine := range spread(ts, min(n, len(ts))) {
		if len(mine) == 0 {
			continue
		}
		nc, err := new(net.Dialer).DialContext(ctx, "tcp", mine[0].addr)
		if err != nil {
			rs.close()
			return nil, fmt.Errorf("consumer's connection %d: %w", i+1, err)
		}
		buffer := 64 << 10
		if n > 256 {
			buffer = 4 << 10 // it grows with what comes
		}
		c := &receiver{m: m, rec: m.recorders[i%recorders], nc: nc, in: remoting.NewStream(nc, buffer), batch: m.o.Batch,
			group: fmt.Sprintf("bench_consumer_%d", i%m.o.Groups)}
		for _, t := range mine {
			c.queues = append(c.queues, position{target: t})
		}
		c.h = protocol.PullMessageRequest{ConsumerGroup: []byte(c.group), MaxMsgNums: int32(c.batch), SysFlag: protocol.PullSuspend | protocol.PullSubscription,
			SuspendTimeoutMillis: pollFor.Milliseconds(), Subscription: []byte("*"), ExpressionType: []byte("TAG")}
		rs.conns = append(rs.conns, c)
		if err := c.begin(i); err != nil {
			rs.close()
			return nil, err
		}
	}
	return rs, nil
}

func (rs *receivers) close() {
	for _, c := range rs.conns {
		_ = c.nc.Close()
	}
}

// begin says hello as a consumer and asks for the bounds of the queues.
func (c *receiver) begin(i int) error {
	if err := c.heartbeat(i); err != nil {
		return err
	}
	var cmd remoting.Command
	ask := func() error {
		_ = c.nc.SetDeadline(time.Now().Add(answerWithin))
		defer func() { _ = c.nc.SetDeadline(time.Time{}) }()
		if _, err := c.nc.Write(c.out); err != nil {
			return err
		}
		c.out = c.out[:0]
		for {
			if err := c.in.Next(&cmd); err != nil {
				return fmt.Errorf("broker %s: %w", c.nc.RemoteAddr(), err)
			}
			if cmd.IsResponse() {
				break
			}
		}
		if cmd.Code != 0 {
			return fmt.Errorf("broker %s answered code %d: %s", c.nc.RemoteAddr(), cmd.Code, cmd.Remark)
		}
		return nil
	}
	if err := ask(); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	for j := range c.queues {
		q := &c.queues[j]
		for code, dst := range map[protocol.RequestCode]*int64{protocol.GetMinOffset: &q.min, protocol.GetMaxOffset: &q.max} {
			h := &protocol.QueueRequest{Topic: q.topic, QueueID: q.queue}
			c.out = remoting.AppendRequest(c.out, &remoting.Request{Code: code, Header: h, Language: protocol.Go}, heartbeatOpaque)
			if err := ask(); err != nil {
				return fmt.Errorf("bounds of %s queue %d: %w", q.topic, q.queue, err)
			}
			var a protocol.OffsetResponse
			if err := protocol.Decode(cmd.Fields, &a); err != nil {
				return fmt.Errorf("bounds of %s queue %d: %w", q.topic, q.queue, err)
			}
			*dst = a.Offset
		}
		q.next = q.min
	}
	return nil
}

// heartbeat appends a heartbeat: brokers close a consumer's connection that sends none for two minutes.
func (c *receiver) heartbeat(i int) error {
	c.beat = c.m.now()
	d := protocol.ConsumerData{ConsumeFromWhere: "CONSUME_FROM_FIRST_OFFSET", ConsumeType: "CONSUME_ACTIVELY", GroupName: c.group, MessageModel: "CLUSTERING"}
	seen := map[string]bool{}
	for _, q := range c.queues {
		if !seen[q.topic] {
			seen[q.topic] = true
			d.SubscriptionDataSet = append(d.SubscriptionDataSet, protocol.SubscriptionData{Topic: q.topic, SubString: "*", ExpressionType: "TAG", TagsSet: []string{}, CodeSet: protocol.Codes{}})
		}
	}
	b, err := json.Marshal(protocol.HeartbeatData{ClientID: fmt.Sprintf("127.0.0.1@bench-%d-%p", os.Getpid(), c), ConsumerDataSet: []protocol.ConsumerData{d}, ProducerDataSet: []protocol.ProducerData{}})
	if err != nil {
		return err
	}
	c.out = remoting.AppendRequest(c.out, &remoting.Request{Code: protocol.HeartBeat, Body: b, Language: protocol.Go}, heartbeatOpaque)
	return nil
}

func (c *receiver) pull(i int) {
	q := &c.queues[i]
	c.h.Topic = append(c.h.Topic[:0], q.topic...)
	c.h.BrokerName = append(c.h.BrokerName[:0], q.broker...)
	c.h.QueueID, c.h.QueueOffset = q.queue, q.next
	c.out = remoting.AppendRequest(c.out, &remoting.Request{Code: protocol.PullMessage, Header: &c.h, Language: protocol.Go}, int32(i))
}

// flush writes what waits; pulls are timed from here.
func (c *receiver) flush(pulls []int) error {
	now := c.m.now()
	for _, i := range pulls {
		c.queues[i].left = now
	}
	_, err := c.nc.Write(c.out)
	c.out = c.out[:0]
	return err
}

// loop pulls until all queues are read to their ends, again and again with again set, or until the run is over; end to end,
// until the connection is closed.
func (c *receiver) loop(again bool) error {
	var pulls []int
	for i := range c.queues {
		if c.queues[i].next >= c.queues[i].max && c.arrived == nil {
			c.queues[i].done = true
			continue
		}
		c.pull(i)
		pulls = append(pulls, i)
	}
	open := len(pulls)
	if open == 0 {
		return nil
	}
	if err := c.flush(pulls); err != nil {
		return c.ended(err)
	}
	pulls = pulls[:0]
	var cmd remoting.Command
	for open > 0 {
		if !c.in.Ready() {
			_ = c.nc.SetReadDeadline(time.Now().Add(answerWithin))
		}
		if err := c.in.Next(&cmd); err != nil {
			return c.ended(fmt.Errorf("broker %s: %w", c.nc.RemoteAddr(), err))
		}
		if !cmd.IsResponse() || cmd.Opaque == heartbeatOpaque {
			continue
		}
		i := int(cmd.Opaque)
		if i < 0 || i >= len(c.queues) || c.queues[i].done {
			return fmt.Errorf("broker %s answers a pull that was not sent: opaque %d", c.nc.RemoteAddr(), cmd.Opaque)
		}
		more, err := c.answered(&c.queues[i], &cmd, again)
		if err != nil {
			return err
		}
		if more && (c.arrived != nil || c.m.is() != over) { // end to end, until the connection is closed
			c.pull(i)
			pulls = append(pulls, i)
		} else {
			c.queues[i].done = true
			open--
		}
		if c.m.now()-c.beat > heartbeatEvery {
			if err := c.heartbeat(0); err != nil {
				return err
			}
		}
		if !c.in.Ready() && len(c.out) > 0 {
			if err := c.flush(pulls); err != nil {
				return c.ended(err)
			}
			pulls = pulls[:0]
		}
	}
	return nil
}

func (c *receiver) ended(err error) error {
	if c.m.is() == over && (errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF)) {
		return nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("broker %s: %w in %v to a pull that asked to be held %v", c.nc.RemoteAddr(), errSilent, answerWithin, pollFor)
	}
	return err
}

// answered takes a pull's answer; more: the queue is to be pulled again.
func (c *receiver) answered(q *position, cmd *remoting.Command, again bool) (more bool, err error) {
	now := c.m.now()
	var h protocol.PullMessageResponse
	if err := h.DecodeFields(cmd.Fields); err != nil {
		return false, err
	}
	n := 0
	switch protocol.ResponseCode(cmd.Code) {
	case protocol.Success:
		if n, err = countRecords(cmd.Body); err != nil {
			return false, fmt.Errorf("broker %s, %s queue %d at %d: %w", c.nc.RemoteAddr(), q.topic, q.queue, q.next, err)
		}
	case protocol.PullNotFound, protocol.PullRetryImmediately, protocol.PullOffsetMoved:
	default:
		return false, fmt.Errorf("broker %s answered a pull of %s queue %d with code %d: %s", c.nc.RemoteAddr(), q.topic, q.queue, cmd.Code, cmd.Remark)
	}
	if c.arrived != nil {
		if n > 0 {
			if err := c.arrived(c, cmd.Body, now); err != nil {
				return false, err
			}
		}
		q.next = h.NextBeginOffset
		return true, nil
	}
	c.rec.mu.Lock()
	c.rec.since += int64(n)
	_ = c.rec.interval.RecordValue(value(now - q.left))
	if c.m.counts(now) {
		c.rec.messages += int64(n)
		c.rec.bytes += int64(len(cmd.Body))
		c.rec.requests++
		_ = c.rec.latency.RecordValue(value(now - q.left))
	}
	c.rec.mu.Unlock()
	if c.m.is() == measuring {
		c.m.add(int64(n))
	}
	if q.next = h.NextBeginOffset; q.next < q.max {
		return true, nil
	}
	q.next = q.min
	return again, nil
}

// countRecords walks over the records of a pull's body.
func countRecords(b []byte) (int, error) {
	n := 0
	for len(b) > 0 {
		if len(b) < 4 {
			return n, fmt.Errorf("pull answer ends inside a record's size: %w", message.ErrTruncated)
		}
		size := int(int32(binary.BigEndian.Uint32(b)))
		if size < 4 || size > len(b) {
			return n, fmt.Errorf("pull answer: record of %d bytes with %d left: %w", size, len(b), message.ErrCorrupt)
		}
		b = b[size:]
		n++
	}
	return n, nil
}
