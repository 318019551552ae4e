package client

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// answer implements member: what operators ask a consumer through its broker.
func (e *engine) answer(ctx context.Context, req *remoting.Command) *remoting.Response {
	switch protocol.RequestCode(req.Code) {
	case protocol.GetConsumerRunningInfo:
		return e.runningInfo(req)
	case protocol.GetConsumerStatusFromClient:
		return e.offsetsOf(req)
	case protocol.ConsumeMessageDirectly:
		return e.consumeDirectly(ctx, req)
	}
	return remoting.NotSupported(req.Code)
}

func bodyOf(v any) *remoting.Response {
	b, err := protocol.EncodeBody(v)
	if err != nil {
		return &remoting.Response{Code: protocol.SystemError, Remark: err.Error()}
	}
	return &remoting.Response{Body: b}
}

func wireQueue(q MessageQueue) protocol.MessageQueue {
	return protocol.MessageQueue{Topic: q.Topic, BrokerName: q.Broker, QueueID: int32(q.ID)}
}

// runningInfo is what `mqadmin consumerStatus` shows.
func (e *engine) runningInfo(req *remoting.Command) *remoting.Response {
	info := protocol.ConsumerRunningInfo{MQTable: map[protocol.MessageQueue]protocol.ProcessQueueInfo{}, Properties: map[string]string{
		"PROP_NAMESERVER_ADDR":          strings.Join(e.c.names.current(), ";"),
		"PROP_CONSUME_TYPE":             "CONSUME_PASSIVELY",
		"PROP_CLIENT_VERSION":           strconv.Itoa(int(protocol.Version)),
		"PROP_CONSUMEORDERLY":           strconv.FormatBool(e.o.ordered),
		"PROP_THREADPOOL_CORE_SIZE":     strconv.Itoa(e.o.concurrency),
		"PROP_CONSUMER_START_TIMESTAMP": strconv.FormatInt(e.started.UnixMilli(), 10),
		"clientId":                      e.c.id,
	}}
	for _, s := range e.Status() {
		if s.Mine && s.Reason != "" {
			info.Properties["reason."+s.Queue.String()] = s.Reason
		}
	}
	e.mu.Lock()
	for _, topic := range slices.Sorted(maps.Keys(e.subs)) {
		info.SubscriptionSet = append(info.SubscriptionSet, e.subs[topic].data())
	}
	for mq, q := range e.queues {
		p := protocol.ProcessQueueInfo{CommitOffset: q.progress.commit(), CachedMsgCount: int64(q.count), CachedMsgSizeInMiB: int64(q.bytes >> 20),
			Locked: !e.o.broadcast && q.phase != locking, Dropped: q.phase == draining || q.phase == lost, LastLockTimestamp: q.link.renewed.UnixMilli(), LastPullTimestamp: q.since.UnixMilli()}
		if n := len(q.progress.unfinished); n > 0 {
			p.CachedMsgMinOffset, p.CachedMsgMaxOffset = q.progress.unfinished[0], q.progress.unfinished[n-1]
		}
		info.MQTable[wireQueue(mq)] = p
	}
	e.mu.Unlock()
	if v, _ := req.Fields.Get("jstackEnable"); string(v) == "true" {
		buf := make([]byte, 1<<20)
		info.Jstack = string(buf[:runtime.Stack(buf, true)])
	}
	return bodyOf(info)
}

// offsetsOf is the consumer's own view of its offsets in a topic.
func (e *engine) offsetsOf(req *remoting.Command) *remoting.Response {
	topic, _ := req.Fields.Get("topic")
	out := protocol.ConsumerStatus{MessageQueueTable: map[protocol.MessageQueue]int64{}}
	e.mu.Lock()
	defer e.mu.Unlock()
	for mq, q := range e.queues {
		if mq.Topic == string(topic) && q.phase == running {
			out.MessageQueueTable[wireQueue(mq)] = q.progress.commit()
		}
	}
	return bodyOf(out)
}

// consumeDirectly runs the handler on a message that an operator chose. No offset moves.
func (e *engine) consumeDirectly(ctx context.Context, req *remoting.Command) *remoting.Response {
	var m message.Message
	if _, err := message.DecodeRecord(req.Body, &m, true); err != nil {
		return &remoting.Response{Code: protocol.SystemError, Remark: fmt.Sprintf("the message can't be read: %v", err)}
	}
	broker, _ := req.Fields.Get("brokerName")
	x := e.c.fromRecord(string(broker), &m)
	body, err := message.Decompress(m.SysFlag, m.Body, maxBody)
	if err != nil {
		return &remoting.Response{Code: protocol.SystemError, Remark: err.Error()}
	}
	x.Body = body
	e.original(x)
	ctx, cancel := context.WithTimeout(ctx, e.o.timeout)
	defer cancel()
	t := &task{ms: []*Message{x}, since: time.Now()}
	result := protocol.ConsumeDirectlyResult{Order: e.o.ordered, AutoCommit: true, ConsumeResult: "CR_SUCCESS"}
	if err := e.call(ctx, t); err != nil {
		result.ConsumeResult, result.Remark = "CR_LATER", err.Error()
	}
	result.SpentTimeMills = time.Since(t.since).Milliseconds()
	return bodyOf(result)
}
