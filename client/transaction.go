package client

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// Resolution is what becomes of a transaction's message.
type Resolution int

// The resolutions.
const (
	Unknown  Resolution = iota // not decided: the broker asks again (WithTransactionCheck)
	Commit                     // consumers get the message
	Rollback                   // nobody gets it
)

func (r Resolution) String() string {
	switch r {
	case Commit:
		return "commit"
	case Rollback:
		return "rollback"
	}
	return "unknown"
}

// javaName is the name in Java's LocalTransactionState.
func (r Resolution) javaName() string {
	switch r {
	case Commit:
		return "COMMIT_MESSAGE"
	case Rollback:
		return "ROLLBACK_MESSAGE"
	}
	return "UNKNOW"
}

// flag is the resolution on the wire.
func (r Resolution) flag() message.SysFlag {
	switch r {
	case Commit:
		return message.Commit
	case Rollback:
		return message.Rollback
	}
	return message.TransactionNot
}

// TransactionResult is where a transaction's message went, and what became of it.
type TransactionResult struct {
	SendResult
	Resolution Resolution
}

// SendInTransaction sends m so that no consumer sees it yet, calls local, and tells the broker what local decided:
// Commit delivers the message, Rollback drops it. It needs WithTransactionCheck: the broker asks there when it isn't
// told, because of Unknown, of a crash, or of a lost connection (a Java broker first after 6 s, then every 30 s, 15 times).
//
// local's error or panic counts as Unknown, and is in the error that SendInTransaction returns along with the result.
// So is a failure to tell the broker: then the check decides. When the message isn't stored as safely as wanted
// (Status isn't StatusOK) local isn't called, and the transaction is rolled back, as in Java. An attempt that seemed to fail may
// have left a second copy; the broker asks about it as about any other.
//
// m is not delayed. ctx bounds the whole call, local's time too.
func (p *Producer) SendInTransaction(ctx context.Context, m *Message, local func(ctx context.Context, m *Message) (Resolution, error), opts ...SendOption) (*TransactionResult, error) {
	const what = "send in transaction"
	switch {
	case local == nil:
		return nil, fmt.Errorf("%s: %w", what, invalid("the local function is nil"))
	case p.o.check == nil:
		return nil, fmt.Errorf("%s: %w", what, invalid("this producer can't answer when the broker asks: make it with WithTransactionCheck"))
	case m != nil && (m.DelayLevel > 0 || !m.DeliverAt.IsZero()):
		return nil, fmt.Errorf("%s: %w", what, invalid("topic %s: a transaction's message can't be delayed", m.Topic))
	}
	ctx, done, err := p.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer done()
	t := p.place(m)
	if err := t.wait(ctx); err != nil {
		return nil, p.explain(what, err)
	}
	res, err := p.hooked(ctx, m, func(ctx context.Context) (*SendResult, error) { return p.sendHalf(ctx, m, collect(opts)) })
	t.done(laneError(err))
	if err != nil {
		return nil, p.explain(what, err)
	}
	out := &TransactionResult{*res, Rollback}
	out.TransactionID = m.ID
	var failed error
	if res.Status == StatusOK {
		out.Resolution, failed = p.runLocal(ctx, m, local)
	}
	if err := p.resolve(ctx, m, out); err != nil && failed == nil {
		failed = fmt.Errorf("the broker wasn't told to %s and will ask: %w", out.Resolution, err)
	}
	return out, p.explain(what, failed)
}

func (p *Producer) sendHalf(ctx context.Context, m *Message, so sendOptions) (*SendResult, error) {
	out, err := p.encode(m, so, pair{message.PropertyTransactionPrepared, "true"}, pair{message.PropertyProducerGroup, p.group})
	if err != nil {
		return nil, err
	}
	out.sysFlag |= message.Prepared
	out.kind = traceHalf
	return p.deliver(ctx, out)
}

func (p *Producer) runLocal(ctx context.Context, m *Message, local func(context.Context, *Message) (Resolution, error)) (r Resolution, err error) {
	defer func() {
		if v := recover(); v != nil {
			r, err = Unknown, fmt.Errorf("the local function panicked: %v\n%s", v, debug.Stack())
		}
	}()
	if r, err = local(ctx, m); err != nil {
		return Unknown, fmt.Errorf("the local function: %w", err)
	}
	if r != Commit && r != Rollback {
		r = Unknown
	}
	return r, nil
}

// endTransactionRequest is the header of END_TRANSACTION (37).
type endTransactionRequest struct {
	Topic                string `f:"topic"`
	ProducerGroup        string `f:"producerGroup,required"`
	TranStateTableOffset int64  `f:"tranStateTableOffset,required"`
	CommitLogOffset      int64  `f:"commitLogOffset,required"`
	CommitOrRollback     int32  `f:"commitOrRollback,required"`
	FromTransactionCheck bool   `f:"fromTransactionCheck"`
	MsgID                string `f:"msgId,required"`
	TransactionID        string `f:"transactionId"`
	BrokerName           string `f:"bname"`
}

// checkTransactionRequest is the header of CHECK_TRANSACTION_STATE (39).
type checkTransactionRequest struct {
	Topic                string `f:"topic"`
	TranStateTableOffset int64  `f:"tranStateTableOffset,required"`
	CommitLogOffset      int64  `f:"commitLogOffset,required"`
	MsgID                string `f:"msgId"`
	TransactionID        string `f:"transactionId"`
	OffsetMsgID          string `f:"offsetMsgId"`
	BrokerName           string `f:"bname"`
}

// resolve tells the broker of the message. Java's clients send this one-way and don't learn whether it arrived; brokers
// answer a commit or rollback all the same. They don't answer an Unknown.
func (p *Producer) resolve(ctx context.Context, m *Message, r *TransactionResult) error {
	_, physical, err := message.ParseOffsetID(r.OffsetID)
	if err != nil {
		return fmt.Errorf("answer of %s: %w", r.addr, err)
	}
	req := &remoting.Request{Code: protocol.EndTransaction, Header: &endTransactionRequest{Topic: p.c.wrap(m.Topic), ProducerGroup: p.group,
		TranStateTableOffset: r.QueueOffset, CommitLogOffset: physical, CommitOrRollback: int32(r.Resolution.flag()), MsgID: m.ID, TransactionID: m.ID, BrokerName: r.Broker}}
	p.c.tracer.endTransaction(time.Now(), r.region, p.c.unwrap(p.group), m, m.ID, r.addr, m.ID, r.Resolution, false)
	if r.Resolution == Unknown {
		return p.c.oneWay(ctx, r.addr, req)
	}
	a, err := p.c.invoke(ctx, r.addr, req)
	if err != nil {
		return err
	}
	if a.Code != int32(protocol.Success) {
		return refusal(r.addr, a)
	}
	return nil
}

// checkTransaction answers a broker that asks what became of a transaction.
func (c *Client) checkTransaction(ctx context.Context, rc *remoting.Conn, req *remoting.Command) {
	var h checkTransactionRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		c.log.Warn("a broker's question about a transaction is unreadable", "addr", rc.RemoteAddr(), "error", err)
		return
	}
	m, err := c.messageOf(h.BrokerName, req.Body)
	if err != nil {
		c.log.Warn("a broker's question about a transaction has an unreadable message", "addr", rc.RemoteAddr(), "error", err)
		return
	}
	group := m.system[message.PropertyProducerGroup]
	c.mu.Lock()
	p := c.producers[group]
	c.mu.Unlock()
	if p == nil || p.o.check == nil {
		c.log.Warn("a broker asks about a transaction of a group without WithTransactionCheck", "group", group, "id", m.ID)
		return
	}
	p.answerCheck(ctx, rc, h, m)
}

func (p *Producer) answerCheck(ctx context.Context, rc *remoting.Conn, h checkTransactionRequest, m *Message) {
	if !p.gate.enter() {
		return // another member is asked later
	}
	defer p.gate.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.stopped, cancel)()
	taken, err := p.checks.take(ctx, 1)
	if err != nil {
		return
	}
	defer p.checks.give(taken)
	r := p.runCheck(ctx, m)
	id := h.MsgID
	if v := m.system[message.PropertyUniqueKey]; v != "" {
		id = v
	}
	p.c.tracer.endTransaction(time.Now(), m.system[message.PropertyMsgRegion], p.c.unwrap(p.group), m, id, rc.RemoteAddr().String(), h.TransactionID, r, true)
	err = rc.OneWay(p.c.sign(&remoting.Request{Code: protocol.EndTransaction, Language: protocol.Go, Header: &endTransactionRequest{Topic: h.Topic, ProducerGroup: p.group,
		TranStateTableOffset: h.TranStateTableOffset, CommitLogOffset: h.CommitLogOffset, CommitOrRollback: int32(r.flag()), FromTransactionCheck: true,
		MsgID: id, TransactionID: h.TransactionID, BrokerName: h.BrokerName}}))
	if err != nil {
		p.c.log.Warn("a broker didn't learn what became of a transaction and will ask again", "id", id, "resolution", r, "error", err)
	}
}

func (p *Producer) runCheck(ctx context.Context, m *Message) (r Resolution) {
	defer func() {
		if v := recover(); v != nil {
			p.c.log.Error("a transaction check panicked", "id", m.ID, "panic", v, "stack", string(debug.Stack()))
			r = Unknown
		}
	}()
	if r = p.o.check(ctx, m); r != Commit && r != Rollback {
		r = Unknown
	}
	return r
}
