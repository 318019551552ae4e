package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// Produce sends messages and reports how that went.
func Produce(ctx context.Context, o Options) (*Report, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	ts, err := topics(ctx, o, 2)
	if err != nil {
		return nil, err
	}
	m := newMeter(o, o.Rate > 0)
	r := &Report{Run: "produce", Queues: len(ts)}
	s, err := dialSenders(ctx, m, ts)
	if err != nil {
		return nil, err
	}
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	m.report(r)
	r.Unanswered, r.Unsent = s.unanswered, s.unsent
	return r, r.succeeded()
}

// succeeded is an error when nothing was done.
func (r *Report) succeeded() error {
	if r.Messages > 0 {
		return nil
	}
	if len(r.Refused) > 0 {
		return fmt.Errorf("no message went through: %d answers with code %d: %s", r.Refused[0].Count, r.Refused[0].Code, r.Refused[0].Remark)
	}
	return errors.New("no message went through in the measured time")
}

// senders are the connections of a producing run.
type senders struct {
	m     *meter
	conns []*sender
	freed chan struct{} // capacity 1: a place became free (open loop)
	ended chan struct{} // closed with the connections
	once  sync.Once

	unanswered int64 // sent, but not answered until the end
	unsent     int64 // due, but not sent until the end (open loop)
}

// sender is one connection that sends. Its slots are the requests that may be on their way; a request's opaque is the
// number of its slot.
type sender struct {
	m       *meter
	rec     *recorder
	nc      net.Conn
	in      *remoting.Stream
	targets []target
	turn    int
	h       protocol.SendMessageRequest
	body    []byte
	props   []byte
	serial  uint64 // of this connection's messages, in the low half of their unique ids

	out  []byte  // frames that wait to be written
	mine []int32 // their slots

	mu    sync.Mutex // guards the rest in an open loop, where two goroutines use it
	slots []slot
	free  []int32 // open loop
}

type slot struct {
	due, left time.Duration
	busy      bool
}

func dialSenders(ctx context.Context, m *meter, ts []target) (*senders, error) {
	s := &senders{m: m, freed: make(chan struct{}, 1), ended: make(chan struct{})}
	for i, mine := range spread(ts, m.o.Conns) {
		if len(mine) == 0 {
			continue
		}
		nc, err := new(net.Dialer).DialContext(ctx, "tcp", mine[0].addr)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("connection %d: %w", i+1, err)
		}
		c := &sender{m: m, rec: m.recorders[i%recorders], nc: nc, in: remoting.NewStream(nc, 64<<10), targets: mine,
			body: make([]byte, m.o.Size), slots: make([]slot, m.o.Outstanding), serial: uint64(i) << 40}
		for j := range c.body {
			c.body[j] = 'x'
		}
		c.props = fmt.Appendf(nil, "UNIQ_KEY\x01%08X%016X00000000\x02WAIT\x01true\x02TAGS\x01TagA\x02", uint32(os.Getpid()), m.base.UnixNano())
		c.h = protocol.SendMessageRequest{ProducerGroup: []byte("bench_producer"), DefaultTopic: []byte("TBW102"), DefaultTopicQueueNums: 4, Properties: c.props}
		for j := range c.slots {
			c.free = append(c.free, int32(j))
		}
		s.conns = append(s.conns, c)
	}
	return s, nil
}

func (s *senders) close() {
	s.once.Do(func() { close(s.ended) })
	for _, c := range s.conns {
		_ = c.nc.Close()
	}
}

// run drives the loops until the meter says it is over and what is on its way is answered.
func (s *senders) run(ctx context.Context) error {
	defer s.close()
	failed := make(chan struct{})
	var once sync.Once
	var first error
	fail := func(err error) {
		if err != nil {
			once.Do(func() { first = err; close(failed); s.close() })
		}
	}
	var wg sync.WaitGroup
	if s.m.o.Rate > 0 {
		for _, c := range s.conns {
			wg.Go(func() { fail(c.receive(s.freed)) })
		}
		wg.Go(func() { fail(s.pace()) })
	} else {
		for _, c := range s.conns {
			wg.Go(func() { fail(c.closedLoop()) })
		}
	}
	err := s.m.run(ctx, failed)
	// What is on its way is answered, or the connections are closed on it.
	giveUp := time.AfterFunc(drainWithin, s.close)
	cut := context.AfterFunc(ctx, s.close)
	wg.Wait()
	giveUp.Stop()
	cut()
	for _, c := range s.conns {
		for i := range c.slots {
			if c.slots[i].busy {
				s.unanswered++
			}
		}
	}
	if err == nil && first != nil {
		err = first
	}
	return err
}

// stampSize is the size of what tells an end-to-end message's due time and run, at the beginning of its body.
const stampSize = 16

// request appends the frame of the next message in the given slot.
func (c *sender) request(n int32, due time.Duration) {
	t := &c.targets[c.turn]
	if c.turn++; c.turn == len(c.targets) {
		c.turn = 0
	}
	c.h.Topic = append(c.h.Topic[:0], t.topic...)
	c.h.BrokerName = append(c.h.BrokerName[:0], t.broker...)
	c.h.QueueID = t.queue
	c.h.BornTimestamp = c.m.base.Add(due).UnixMilli()
	c.serial++
	const digits = "0123456789ABCDEF"
	id := c.props[len("UNIQ_KEY\x01")+8:][:24]
	for i, v := 23, c.serial; i >= 8; i-- {
		id[i] = digits[v&15]
		v >>= 4
	}
	if len(c.body) >= stampSize {
		binary.BigEndian.PutUint64(c.body, uint64(due))
		binary.BigEndian.PutUint64(c.body[8:], c.m.mark())
	}
	c.out = remoting.AppendRequest(c.out, &remoting.Request{Code: protocol.SendMessageV2, Header: &c.h, Body: c.body, Language: protocol.Go}, n)
	c.slots[n] = slot{due: due, busy: true}
	c.mine = append(c.mine, n)
}

// mark tells this run's messages from others'.
func (m *meter) mark() uint64 { return uint64(m.base.UnixNano()) ^ uint64(os.Getpid())<<48 }

// flush writes the frames that wait.
func (c *sender) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	now := c.m.now()
	c.mu.Lock()
	for _, n := range c.mine {
		c.slots[n].left = now
	}
	c.mu.Unlock()
	out := c.out
	c.out, c.mine = c.out[:0], c.mine[:0]
	if _, err := c.nc.Write(out); err != nil {
		return fmt.Errorf("broker %s: %w", c.nc.RemoteAddr(), err)
	}
	return nil
}

var errSilent = errors.New("no answer")

// answer takes the next answer and returns its slot.
func (c *sender) answer(cmd *remoting.Command) (n int32, err error) {
	for {
		if !c.in.Ready() {
			_ = c.nc.SetReadDeadline(time.Now().Add(answerWithin))
		}
		if err := c.in.Next(cmd); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return 0, fmt.Errorf("broker %s: %w in %v", c.nc.RemoteAddr(), errSilent, answerWithin)
			}
			return 0, fmt.Errorf("broker %s: %w", c.nc.RemoteAddr(), err)
		}
		if !cmd.IsResponse() {
			continue // what a broker tells its clients unasked
		}
		if n = cmd.Opaque; n < 0 || int(n) >= len(c.slots) {
			return 0, fmt.Errorf("broker %s answers a request that was not sent: opaque %d", c.nc.RemoteAddr(), n)
		}
		return n, nil
	}
}

// closedLoop keeps all slots on their way. Answers that came together are followed by requests that leave together.
func (c *sender) closedLoop() error {
	for n := range c.slots {
		c.request(int32(n), c.m.now())
	}
	inFlight := len(c.slots)
	if err := c.flush(); err != nil {
		return err
	}
	var cmd remoting.Command
	var now time.Duration
	ok := int64(0) // answered since the last flush, measured
	fresh := true
	for inFlight > 0 {
		n, err := c.answer(&cmd)
		if err != nil {
			if !fresh {
				c.rec.mu.Unlock()
			}
			return c.ended(err)
		}
		if fresh {
			now, fresh = c.m.now(), false
			c.rec.mu.Lock()
		}
		s := &c.slots[n]
		c.rec.sent(c.m, s.due, s.left, now, len(c.body), cmd.Code, cmd.Remark)
		s.busy = false
		if cmd.Code == 0 && c.m.is() == measuring {
			ok++
		}
		if c.m.is() == over {
			inFlight--
		} else {
			c.request(n, now)
		}
		if !c.in.Ready() {
			c.rec.mu.Unlock()
			fresh = true
			c.m.add(ok)
			ok = 0
			if err := c.flush(); err != nil {
				return c.ended(err)
			}
		}
	}
	return nil
}

// ended is the error of a loop whose connection failed; after the end a closed connection is none.
func (c *sender) ended(err error) error {
	if c.m.is() == over && (errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF)) {
		return nil
	}
	return err
}

// receive takes the answers of an open loop until the connection is closed. Answers that came together free their
// places together.
func (c *sender) receive(freed chan<- struct{}) error {
	var cmd remoting.Command
	var back []int32
	for {
		n, err := c.answer(&cmd)
		if errors.Is(err, errSilent) && c.idle() {
			continue
		}
		if err != nil {
			return c.ended(err)
		}
		now := c.m.now()
		ok := int64(0)
		c.rec.mu.Lock()
		c.mu.Lock()
		for {
			s := c.slots[n]
			c.slots[n].busy = false
			back = append(back, n)
			c.rec.sent(c.m, s.due, s.left, now, len(c.body), cmd.Code, cmd.Remark)
			if cmd.Code == 0 && c.m.counts(s.due) {
				ok++
			}
			if !c.in.Ready() {
				break
			}
			if n, err = c.answer(&cmd); err != nil {
				break
			}
		}
		c.free = append(c.free, back...)
		c.mu.Unlock()
		c.rec.mu.Unlock()
		back = back[:0]
		if err != nil {
			return c.ended(err)
		}
		if ok > 0 {
			c.m.add(ok)
		}
		select {
		case freed <- struct{}{}:
		default:
		}
	}
}

// idle reports whether nothing is on its way.
func (c *sender) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.free) == len(c.slots)
}
