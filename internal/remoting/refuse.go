package remoting

import (
	"fmt"

	"github.com/apogeemq/apogee/internal/protocol"
)

// NotSupported is the answer to a request code that isn't served, with Java's remark (and its leading space).
func NotSupported(code int32) *Response {
	return &Response{Code: protocol.RequestCodeNotSupported, Remark: fmt.Sprintf(" request type %d not supported", code)}
}
