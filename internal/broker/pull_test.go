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
