package broker

import (
	"strings"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// searchOffset handles SEARCH_OFFSET_BY_TIMESTAMP (29).
func (b *Broker) searchOffset(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.SearchOffsetRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	at := b.store.OffsetByTime(h.Topic, h.QueueID, h.Timestamp, strings.EqualFold(h.BoundaryType, "upper"))
	return &remoting.Response{Header: &protocol.OffsetResponse{Offset: at}}, nil
}

// maxOffset handles GET_MAX_OFFSET (30): the next offset of the queue, 0 where it is unknown.
func (b *Broker) maxOffset(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.QueueRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	return &remoting.Response{Header: &protocol.OffsetResponse{Offset: b.store.MaxOffset(h.Topic, h.QueueID)}}, nil
}

// minOffset handles GET_MIN_OFFSET (31).
func (b *Broker) minOffset(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.QueueRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	return &remoting.Response{Header: &protocol.OffsetResponse{Offset: b.store.MinOffset(h.Topic, h.QueueID)}}, nil
}

// earliestStoreTime handles GET_EARLIEST_MSG_STORETIME (32): milliseconds, -1 for a queue without messages.
func (b *Broker) earliestStoreTime(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.QueueRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	ms, ok := b.store.StoreTimeAt(h.Topic, h.QueueID, b.store.MinOffset(h.Topic, h.QueueID))
	if !ok {
		ms = -1
	}
	return &remoting.Response{Header: &protocol.TimestampResponse{Timestamp: ms}}, nil
}

// viewMessage handles VIEW_MESSAGE_BY_ID (33): the record at a physical offset.
func (b *Broker) viewMessage(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.ViewMessageRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	rec, release, err := b.store.Record(h.Offset)
	if err != nil {
		return nil, refuse(protocol.SystemError, "can not find message by the offset, %d", h.Offset)
	}
	return &remoting.Response{Parts: [][]byte{rec}, Release: release}, nil
}

// queryMessage handles QUERY_MESSAGE (12): messages by key through the index. A hash match only, as in Java:
// clients compare the keys.
func (b *Broker) queryMessage(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.QueryMessageRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	n := int(h.MaxNum)
	if h.UniqueKeyQuery {
		n = b.o.DefaultQueryMaxNum
	}
	r, err := b.store.Query(h.Topic, h.Key, n, h.BeginTimestamp, h.EndTimestamp)
	if err != nil {
		return nil, err
	}
	header := &protocol.QueryMessageResponse{IndexLastUpdateTimestamp: r.LastTimestamp, IndexLastUpdatePhyoffset: r.LastPhysicalOffset}
	if len(r.Records) == 0 {
		r.Release()
		return nil, refuseWith(header, protocol.QueryNotFound, "can not find message, maybe time range not correct")
	}
	return &remoting.Response{Header: header, Parts: r.Records, Release: r.Release}, nil
}
