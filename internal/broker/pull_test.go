package broker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/testkit"
)

// TestStopAnswersPulls: pulls that wait when the broker stops, and those that come while it does, are answered with an
// error, after which clients back off; none is left without an answer on a connection that is closed.
func TestStopAnswersPulls(t *testing.T) {
	b, addr := start(t)
	c := dial(t, addr, nil)
	pull := &remoting.Request{Code: protocol.PullMessage, Header: &protocol.PullMessageRequest{ConsumerGroup: []byte("g"), Topic: []byte("TBW102"),
		MaxMsgNums: 32, SysFlag: protocol.PullSuspend | protocol.PullSubscription, SuspendTimeoutMillis: 60_000, Subscription: []byte("*")}}
	const waiting = 20
	var asked sync.WaitGroup
	for range waiting {
		asked.Go(func() {
			a, err := c.Invoke(context.Background(), pull)
			if err != nil || a.Code != int32(protocol.ServiceNotAvailable) {
				t.Errorf("a parked pull is answered %+v, %v", a, err)
			}
		})
	}
	testkit.Eventually(t, 10*time.Second, "all pulls wait", func() bool { return b.parked.Len() == waiting })
	b.closed.Store(true) // as Close begins
	if a, err := c.Invoke(t.Context(), pull); err != nil || a.Code != int32(protocol.ServiceNotAvailable) {
		t.Errorf("a pull while the broker stops is answered %+v, %v", a, err)
	}
	b.closed.Store(false)
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
	asked.Wait()
}

// TestPullThatOvertakesItsHeartbeat: it waits for it, and is refused only when none comes.
func TestPullThatOvertakesItsHeartbeat(t *testing.T) {
	b, addr := start(t)
	c := dial(t, addr, nil)
	beat := func(version int64) {
		t.Helper()
		body, err := protocol.EncodeBody(protocol.HeartbeatData{ClientID: "c", ConsumerDataSet: []protocol.ConsumerData{{GroupName: "g", ConsumeType: "CONSUME_PASSIVELY",
			MessageModel: "CLUSTERING", ConsumeFromWhere: "CONSUME_FROM_LAST_OFFSET", SubscriptionDataSet: []protocol.SubscriptionData{
				{Topic: "TBW102", SubString: "*", ExpressionType: "TAG", SubVersion: version, TagsSet: []string{}, CodeSet: protocol.Codes{}}}}}})
		if err != nil {
			t.Fatal(err)
		}
		if a, err := c.Invoke(t.Context(), &remoting.Request{Code: protocol.HeartBeat, Body: body}); err != nil || a.Code != 0 {
			t.Fatalf("heartbeat: %+v, %v", a, err)
		}
	}
	pull := func(version int64) int32 {
		a, err := c.Invoke(t.Context(), &remoting.Request{Code: protocol.PullMessage, Header: &protocol.PullMessageRequest{ConsumerGroup: []byte("g"), Topic: []byte("TBW102"),
			MaxMsgNums: 32, SysFlag: protocol.PullSuspend, SuspendTimeoutMillis: 1, SubVersion: version}})
		if err != nil {
			t.Error(err)
			return -1
		}
		return a.Code
	}
	waits := func() bool {
		b.early.mu.Lock()
		defer b.early.mu.Unlock()
		return b.early.n == 1
	}
	beat(1)
	if code := pull(1); code != int32(protocol.PullNotFound) {
		t.Errorf("a pull as the heartbeat said: code %d", code)
	}
	answered := make(chan int32, 1)
	go func() { answered <- pull(2) }()
	testkit.Eventually(t, 10*time.Second, "the pull waits", waits)
	beat(2)
	if code := <-answered; code != int32(protocol.PullNotFound) {
		t.Errorf("a pull that waited for its heartbeat: code %d", code)
	}
	go func() { answered <- pull(3) }()
	testkit.Eventually(t, 10*time.Second, "the next pull waits", waits)
	beat(2) // not the one it waits for
	if code := <-answered; code != int32(protocol.SubscriptionNotLatest) {
		t.Errorf("a pull whose heartbeat doesn't come: code %d", code)
	}
	if code := pull(4); code != int32(protocol.SubscriptionNotLatest) {
		t.Errorf("a pull without any heartbeat: code %d", code)
	}
	b.early.mu.Lock()
	left := b.early.n
	b.early.mu.Unlock()
	if left != 0 {
		t.Errorf("%d pulls are left", left)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
