package broker

import (
	"errors"
	"fmt"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// refusal is a handler's error that has a response code of its own. Its text is the remark, which clients
// and people match on: where Java has a text for the case, it is Java's.
type refusal struct {
	code   protocol.ResponseCode
	remark string
	header any
}

func (r *refusal) Error() string { return fmt.Sprintf("%v: %s", r.code, r.remark) }

func refuse(code protocol.ResponseCode, format string, args ...any) error {
	return &refusal{code: code, remark: fmt.Sprintf(format, args...)}
}

// refuseWith is refuse with a header, for clients that read one whatever the code is.
func refuseWith(h any, code protocol.ResponseCode, format string, args ...any) error {
	return &refusal{code: code, remark: fmt.Sprintf(format, args...), header: h}
}

// response turns a handler's error into the answer. A missing or unreadable header field is answered with
// INVALID_PARAMETER and the field's name; anything without a code of its own is a SYSTEM_ERROR, as in Java.
func response(err error) *remoting.Response {
	var r *refusal
	if errors.As(err, &r) {
		return &remoting.Response{Code: r.code, Remark: r.remark, Header: r.header}
	}
	var f *protocol.FieldError
	if errors.As(err, &f) {
		return &remoting.Response{Code: protocol.InvalidParameter, Remark: f.Error()}
	}
	return &remoting.Response{Code: protocol.SystemError, Remark: err.Error()}
}
