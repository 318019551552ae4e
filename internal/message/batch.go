package message

import (
	"encoding/binary"
	"fmt"
	"iter"
)

// BatchItem is one message of a batch body; its slices are views of the body.
type BatchItem struct {
	Flag       int32
	Body       []byte
	Properties []byte
}

// A batch body is its messages end to end, each:
//
//	size (4, all of it) | magic (4) | body CRC (4) | flag (4) | body length (4) | body | properties length (2) | properties
//
// Magic and CRC are 0 from clients and not looked at.
const batchFixedSize = 4 + 4 + 4 + 4 + 4 + 2

// SplitBatch yields the messages of a batch body, or an error that says where the body went wrong and ends it.
func SplitBatch(body []byte) iter.Seq2[BatchItem, error] {
	return func(yield func(BatchItem, error) bool) {
		be := binary.BigEndian
		for at := 0; at < len(body); {
			b := body[at:]
			bad := func(what string, n int) {
				yield(BatchItem{}, fmt.Errorf("batch body at byte %d of %d: %s %d", at, len(body), what, n))
			}
			if len(b) < batchFixedSize {
				bad("bytes left, too few for a message:", len(b))
				return
			}
			size := int(int32(be.Uint32(b)))
			if size < batchFixedSize || size > len(b) {
				bad("size", size)
				return
			}
			n := int(int32(be.Uint32(b[16:])))
			if n < 0 || n > size-batchFixedSize {
				bad("body length", n)
				return
			}
			p := int(be.Uint16(b[20+n:]))
			if 22+n+p != size {
				bad("properties length", p)
				return
			}
			if !yield(BatchItem{Flag: int32(be.Uint32(b[12:])), Body: b[20 : 20+n : 20+n], Properties: b[22+n : size : size]}, nil) {
				return
			}
			at += size
		}
	}
}

// AppendBatchItem appends one message to a batch body.
func AppendBatchItem(dst []byte, flag int32, body, props []byte) []byte {
	be := binary.BigEndian
	dst = be.AppendUint32(dst, uint32(batchFixedSize+len(body)+len(props)))
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	dst = be.AppendUint32(dst, uint32(flag))
	dst = be.AppendUint32(dst, uint32(len(body)))
	dst = append(dst, body...)
	dst = be.AppendUint16(dst, uint16(len(props)))
	return append(dst, props...)
}
