package load

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// First sends to a topic at a broker's address until a send is acknowledged, and returns how long that took from now
// on. A broker that can't be reached, or refuses because it starts, is tried again until ctx ends.
func First(ctx context.Context, broker, topic string, size int) (time.Duration, error) {
	began := time.Now()
	h := &protocol.SendMessageRequest{ProducerGroup: []byte("bench_producer"), Topic: []byte(topic), DefaultTopic: []byte("TBW102"), DefaultTopicQueueNums: 4,
		BornTimestamp: began.UnixMilli(), Properties: []byte("WAIT\x01true\x02")}
	frame := remoting.AppendRequest(nil, &remoting.Request{Code: protocol.SendMessageV2, Header: h, Body: make([]byte, size), Language: protocol.Go}, 1)
	var last error
	for {
		err := sendOnce(ctx, broker, frame)
		if err == nil {
			return time.Since(began), nil
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("no send was acknowledged in %v: %w", time.Since(began).Round(time.Millisecond), last)
		}
		last = err
		t := time.NewTimer(2 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

func sendOnce(ctx context.Context, broker string, frame []byte) error {
	nc, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", broker)
	if err != nil {
		return err
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := nc.Write(frame); err != nil {
		return err
	}
	in := remoting.NewStream(nc, 4<<10)
	var c remoting.Command
	for {
		if err := in.Next(&c); err != nil {
			return err
		}
		if !c.IsResponse() {
			continue
		}
		if c.Code != 0 {
			return fmt.Errorf("code %d: %s", c.Code, c.Remark)
		}
		return nil
	}
}
