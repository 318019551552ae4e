package client

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// innerProducer is the producer group that every Java client has; a heartbeat without any group is refused by some
// brokers.
const innerProducer = "CLIENT_INNER_PRODUCER"

// heartbeat is what brokers are to know of the client.
func (c *Client) heartbeat() protocol.HeartbeatData {
	hb := protocol.HeartbeatData{ClientID: c.id, ProducerDataSet: []protocol.ProducerData{{GroupName: innerProducer}}, ConsumerDataSet: []protocol.ConsumerData{}}
	c.mu.Lock()
	for group := range c.producers {
		hb.ProducerDataSet = append(hb.ProducerDataSet, protocol.ProducerData{GroupName: group})
	}
	c.mu.Unlock()
	members := c.members()
	promised := len(members) > 0
	for _, m := range members {
		hb.ConsumerDataSet = append(hb.ConsumerDataSet, m.heartbeatData())
		promised = promised && m.stopsWhenDisconnected()
	}
	hb.StopsWhenDisconnected = promised
	return hb
}

// greet makes sure that the broker knows the client before the first other request on a connection: brokers tell
// members by their connection. It costs one round trip for each connection.
func (c *Client) greet(ctx context.Context, k *conn) error {
	k.hello.Do(func() {
		if !c.run.Go(func(run context.Context) {
			defer close(k.greeted)
			ctx, cancel := context.WithTimeout(run, c.o.timeout)
			defer cancel()
			if err := c.sendHeartbeat(ctx, k); err != nil {
				c.log.Warn("a broker didn't take the heartbeat", "addr", k.addr, "error", err)
			}
		}) {
			close(k.greeted)
		}
	})
	select {
	case <-k.greeted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Client) sendHeartbeat(ctx context.Context, k *conn) error {
	body, err := json.Marshal(c.heartbeat())
	if err != nil {
		return err
	}
	a, err := k.rc.Invoke(ctx, c.sign(&remoting.Request{Code: protocol.HeartBeat, Body: body, Language: protocol.Go}))
	if err != nil {
		return transport(k.addr, err)
	}
	if a.Code != int32(protocol.Success) {
		return refusal(k.addr, a)
	}
	c.beats.Add(1)
	return nil
}

// heartbeatTo tells one broker about the client now.
func (c *Client) heartbeatTo(ctx context.Context, addr string) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	k, err := c.conns.get(ctx, addr, true)
	if err != nil {
		return err
	}
	fresh := false
	k.hello.Do(func() { fresh = true })
	if fresh {
		defer close(k.greeted)
	}
	return c.sendHeartbeat(ctx, k)
}

// heartbeatAll tells all brokers of the known routes, at the same time, and returns the errors by address.
func (c *Client) heartbeatAll(ctx context.Context) map[string]error {
	brokers := c.routes.brokers(len(c.members()) == 0)
	type result struct {
		addr string
		err  error
	}
	results := make(chan result, len(brokers))
	n := 0
	for addr := range brokers {
		if c.run.Go(func(run context.Context) {
			ctx, cancel := c.bound(ctx)
			defer cancel()
			results <- result{addr, c.heartbeatTo(ctx, addr)}
		}) {
			n++
		}
	}
	errs := map[string]error{}
	for range n {
		if r := <-results; r.err != nil {
			errs[r.addr] = fmt.Errorf("heartbeat: %w", r.err)
		}
	}
	return errs
}

// beat sends heartbeats until the client closes.
func (c *Client) beat(ctx context.Context) {
	t := time.NewTimer(c.o.heartbeat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for addr, err := range c.heartbeatAll(ctx) {
			c.log.Debug("heartbeat failed", "addr", addr, "error", err)
		}
		t.Reset(c.o.heartbeat - time.Duration(rand.Int64N(int64(c.o.heartbeat)/10+1)))
	}
}
