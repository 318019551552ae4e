package client

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// Errors of the client. Compare with errors.Is; Classify says what to do about any of them.
var (
	// ErrClosed: the client, producer or consumer is closed.
	ErrClosed = errors.New("the client is closed")
	// ErrNoRoute: no name server knows a broker with such a queue.
	ErrNoRoute = errors.New("no route")
	// ErrInvalid: a message, name or option that can't be right. The error's text names it and what is allowed.
	ErrInvalid = errors.New("invalid")
	// ErrUnreachable: a server can't be reached, or the connection to it was lost while a call waited. Whether a
	// request that was under way took effect isn't known.
	ErrUnreachable = errors.New("unreachable")
	// ErrHalfDead: a server stopped answering on an open connection, which was therefore closed.
	ErrHalfDead = errors.New("the server stopped answering")
)

// Error is a refusal by a server.
type Error struct {
	Code   int    // RocketMQ's response code
	Remark string // the server's words
	Addr   string // the server
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s answered %s (%d): %s", e.Addr, protocol.ResponseCode(e.Code), e.Code, e.Remark)
}

// Who is the side whose doing an error is.
type Who int

// The sides.
const (
	You     Who = iota + 1 // the caller: its arguments, its context, or it closed the client
	Server                 // a name server or broker refused or can't
	Network                // the way between them
)

func (w Who) String() string {
	switch w {
	case You:
		return "you"
	case Server:
		return "server"
	case Network:
		return "network"
	}
	return "nobody"
}

// Classification says what an error means.
type Classification struct {
	// Retriable: the same call may succeed later or on another broker.
	Retriable bool
	// Unknown: whether the request took effect isn't known; trying again may do it twice.
	Unknown bool
	Who     Who
	Why     string // in a few words
}

// Classify tells what kind of error err is. It knows every error that this package returns; of others it says that
// they are the caller's and not to be retried.
func Classify(err error) Classification {
	var refused *Error
	switch {
	case err == nil:
		return Classification{}
	case errors.Is(err, ErrEarlierFailed): // first: it wraps the earlier one's error
		return Classification{Retriable: true, Who: You, Why: "an earlier message of the key failed"}
	case errors.Is(err, ErrInvalid):
		return Classification{Who: You, Why: "invalid argument"}
	case errors.Is(err, ErrClosed):
		return Classification{Who: You, Why: "closed"}
	case errors.As(err, &refused):
		return Classification{Retriable: retriable(refused.Code), Who: Server, Why: protocol.ResponseCode(refused.Code).String()}
	case errors.Is(err, ErrNoRoute):
		return Classification{Retriable: true, Who: Server, Why: "no route"}
	case errors.Is(err, ErrHalfDead):
		return Classification{Retriable: true, Unknown: true, Who: Network, Why: "the server stopped answering"}
	case errors.Is(err, ErrUnreachable):
		return Classification{Retriable: true, Unknown: true, Who: Network, Why: "unreachable"}
	case errors.Is(err, context.DeadlineExceeded):
		return Classification{Retriable: true, Unknown: true, Who: Network, Why: "no answer within the deadline"}
	case errors.Is(err, context.Canceled):
		return Classification{Unknown: true, Who: You, Why: "canceled"}
	}
	return Classification{Who: You, Why: "not an error of this client"}
}

// retriable are the codes on which another broker may take the message (as the Java client has them).
func retriable(code int) bool {
	switch protocol.ResponseCode(code) {
	case protocol.TopicNotExist, protocol.ServiceNotAvailable, protocol.SystemError, protocol.SystemBusy, protocol.NoPermission, protocol.GoAway, 204, 205:
		return true
	}
	return false
}

func refusal(addr string, a *remoting.Command) error {
	return &Error{Code: int(a.Code), Remark: a.Remark, Addr: addr}
}

// transport makes an error of the network ErrUnreachable; those of a context stay what they are.
func transport(addr string, err error) error {
	var ne net.Error
	switch {
	case err == nil, errors.Is(err, ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, ErrHalfDead), errors.Is(err, remoting.ErrClosed), errors.As(err, &ne):
		return fmt.Errorf("%s is %w: %w", addr, ErrUnreachable, err)
	}
	return fmt.Errorf("%s is %w: %w", addr, ErrUnreachable, err)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
