// Package protocol holds RocketMQ's request and response codes, headers and bodies: plain data with encode and
// decode. It moves no bytes over a network and decides nothing.
//
// A header's custom fields are a flat list of text pairs (Fields), views of the frame they came in. The headers
// of the hot requests (send, pull, offsets) decode themselves without reflection; the others are decoded by the
// tags of their struct (see Decode). Bodies are JSON; where Java's dialect differs from JSON the fastjson
// package normalises it.
package protocol
