package broker

import (
	"context"
	"errors"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

const (
	// relayTimeout is how long a relayed request may take (Java: 10 s).
	relayTimeout = 10 * time.Second
	// maxRelays is how many may wait for clients at once: each has a goroutine.
	maxRelays = 256
)

// serveRelay handles GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309): it passes the request on
// to the client it names, and the client's answer back as it is.
func (b *Broker) serveRelay(c *remoting.Conn, req *remoting.Command) {
	out, target, err := b.prepareRelay(req)
	if err != nil {
		_ = c.Reply(req, response(err))
		return
	}
	if b.relays.Running() >= maxRelays {
		_ = c.Reply(req, response(refuse(protocol.SystemBusy, "%d requests wait for clients' answers already, try again later", maxRelays)))
		return
	}
	ticket := req.Ticket(c)
	taken := b.relays.Go(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, relayTimeout)
		defer cancel()
		a, err := target.Invoke(ctx, out)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			err = refuse(protocol.ConsumeMsgTimeout, "consumer %s did not answer within %v", target.RemoteAddr(), relayTimeout)
			fallthrough
		case err != nil:
			_ = ticket.Reply(response(err))
		default:
			_ = ticket.Reply(&remoting.Response{Code: protocol.ResponseCode(a.Code), Remark: a.Remark, Header: protocol.Empty{}, Extra: a.Fields, Body: a.Body})
		}
	})
	if !taken {
		_ = ticket.Reply(response(refuse(protocol.SystemError, "the broker is stopping")))
	}
}

func (b *Broker) prepareRelay(req *remoting.Command) (*remoting.Request, *remoting.Conn, error) {
	var h protocol.RelayRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, nil, err
	}
	b.clients.mu.RLock()
	info, _ := b.clients.reg.Group(h.ConsumerGroup)
	var target *remoting.Conn
	version := int32(0)
	for _, m := range info.Members {
		if m.Client == h.ClientID {
			target, version = b.clients.conns[m.Conn.ID], m.Version
		}
	}
	b.clients.mu.RUnlock()
	if target == nil {
		return nil, nil, refuse(protocol.SystemError, "The Consumer <%s> <%s> not online", h.ConsumerGroup, h.ClientID)
	}
	if version < protocol.VersionV3_1_8 {
		return nil, nil, refuse(protocol.SystemError, "The Consumer <%s> Version <%d> too low to finish, please upgrade it to V3_1_8_SNAPSHOT", h.ClientID, version)
	}
	kept := req.Clone()
	out := &remoting.Request{Code: protocol.RequestCode(req.Code), Header: protocol.Empty{}, Extra: kept.Fields, Body: kept.Body}
	if protocol.RequestCode(req.Code) == protocol.ConsumeMessageDirectly {
		_, at, err := message.ParseOffsetID(h.MsgID)
		if err != nil {
			return nil, nil, refuse(protocol.SystemError, "%s", err)
		}
		rec, release, err := b.store.Record(at)
		if err != nil {
			return nil, nil, refuse(protocol.SystemError, "%s", err)
		}
		out.Body = append([]byte(nil), rec...)
		release()
		out.Extra = append(out.Extra, protocol.Field{Key: []byte("brokerName"), Value: []byte(b.o.Name)})
	}
	return out, target, nil
}
