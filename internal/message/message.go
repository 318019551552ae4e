package message

import (
	"net/netip"
)

// Message is one message. Body and Properties may be views of somebody's buffer: whoever hands a Message over
// says how long they stay.
type Message struct {
	Topic   string
	QueueID int32
	Flag    int32 // the user's, opaque
	SysFlag SysFlag

	BornTimestamp int64 // ms since the epoch, from the client
	BornHost      netip.AddrPort

	StoreTimestamp int64 // ms since the epoch, from the broker
	StoreHost      netip.AddrPort

	ReconsumeTimes            int32
	PreparedTransactionOffset int64

	QueueOffset    int64
	PhysicalOffset int64

	BodyCRC   uint32 // CRC-32 of Body, 31 bits; set by DecodeRecord
	StoreSize int32  // size of the stored form; set by DecodeRecord

	Body       []byte
	Properties []byte // encoded, see properties.go
}

// SysFlag is the set of system flags of a message (Java's MessageSysFlag).
type SysFlag int32

// The bits of a SysFlag.
const (
	Compressed     SysFlag = 0x1
	MultiTags      SysFlag = 0x2
	TransactionNot SysFlag = 0
	Prepared       SysFlag = 0x4
	Commit         SysFlag = 0x8
	Rollback       SysFlag = 0xC
	BornHostV6     SysFlag = 0x10
	StoreHostV6    SysFlag = 0x20
	NeedUnwrap     SysFlag = 0x40
	InnerBatch     SysFlag = 0x80
	CompressedLZ4  SysFlag = 0x100
	CompressedZSTD SysFlag = 0x200
	CompressedZLIB SysFlag = 0x300

	transactionMask SysFlag = 0xC
	compressionMask SysFlag = 0x700
)

// Transaction returns the transaction bits: TransactionNot, Prepared, Commit or Rollback.
func (f SysFlag) Transaction() SysFlag { return f & transactionMask }

// Queued reports whether a record with these flags has a place in a consume queue: prepared and rolled-back
// records have none (storage: dispatch).
func (f SysFlag) Queued() bool {
	t := f.Transaction()
	return t == TransactionNot || t == Commit
}

// Compression returns the compression bits; with Compressed set and none of them the body is ZLIB.
func (f SysFlag) Compression() SysFlag { return f & compressionMask }

// hostSize is the size of a host in the stored form: address and 4-byte port.
func (f SysFlag) hostSize(v6 SysFlag) int {
	if f&v6 != 0 {
		return 20
	}
	return 8
}
