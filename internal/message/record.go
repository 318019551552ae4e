package message

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// The stored form of a message. All integers are big-endian and signed.
//
//	    0      4        8        12      16      20             28
//	    +------+--------+--------+-------+-------+--------------+
//	    | size | magic  | bodyCRC| queue | flag  | queue offset |
//	    +------+--------+--------+-------+-------+--------------+
//	28  | physical offset (8) | sysFlag (4) | born time (8)     |  48
//	    +---------------------+-------------+-------------------+
//	48  | born host: address (4, or 16 by sysFlag) + port (4)   |
//	    | store time (8)                                        |
//	    | store host: address (4, or 16 by sysFlag) + port (4)  |
//	    | reconsume times (4) | prepared transaction offset (8) |
//	    | body length (4)     | body …                          |
//	    | topic length (1; 2 in version 2) | topic …            |
//	    | properties length (2)            | properties …       |
//	    +-------------------------------------------------------+
//
// A blank record fills the end of a commit-log file: size (what is left of the file) and blankMagic; the rest
// of it is arbitrary.
const (
	magicV1    uint32 = 0xDAA320A7
	magicV2    uint32 = 0xDAA320AB
	blankMagic uint32 = 0xCBD43194

	positionQueueOffset    = 20
	positionPhysicalOffset = 28
	positionSysFlag        = 36
	positionBornHost       = 48

	// fixedSize is the size of a version-1 record with two IPv4 hosts, without body, topic and properties.
	fixedSize = 91

	// BlankSize is what must stay free behind a record, so that a blank record always fits.
	BlankSize = 8

	// MaxProperties is the largest length of encoded properties: the length field is a signed 16-bit one.
	MaxProperties = 1<<15 - 1
	// MaxTopic is the largest length of a topic name in bytes that a record can hold here.
	MaxTopic = 255
)

// Errors of DecodeRecord and DecodeHeader.
var (
	// ErrBlank: the record is a blank one, the rest of its file holds nothing.
	ErrBlank = errors.New("blank record")
	// ErrTruncated: the bytes end before the record does.
	ErrTruncated = errors.New("record is cut off")
	// ErrCorrupt: the bytes are not a record: bad magic, lengths that disagree, or a wrong CRC.
	ErrCorrupt = errors.New("record is corrupt")
)

// RecordSize returns the size of the stored form of m in bytes.
func (m *Message) RecordSize() int {
	n := fixedSize + len(m.Body) + len(m.Topic) + len(m.Properties)
	if !isV4(m.BornHost) {
		n += 12
	}
	if !isV4(m.StoreHost) {
		n += 12
	}
	if version2(m.Topic) {
		n++
	}
	return n
}

// version2 reports whether a topic needs the record version whose topic length has two bytes. Java decides by
// the number of characters; names are ASCII, so bytes are the same.
func version2(topic string) bool { return len(topic) > 127 }

func isV4(a netip.AddrPort) bool { return !a.IsValid() || a.Addr().Is4() || a.Addr().Is4In6() }

// AppendRecord appends the stored form of m to dst. The caller has checked that the topic and properties fit
// their length fields. It sets the host bits of the system flag from the addresses and computes the body's CRC;
// queue offset, physical offset and store time are taken from m and can be patched in place later.
func AppendRecord(dst []byte, m *Message) []byte {
	be := binary.BigEndian
	flag := m.SysFlag &^ (BornHostV6 | StoreHostV6)
	if !isV4(m.BornHost) {
		flag |= BornHostV6
	}
	if !isV4(m.StoreHost) {
		flag |= StoreHostV6
	}
	magic := magicV1
	if version2(m.Topic) {
		magic = magicV2
	}
	dst = be.AppendUint32(dst, uint32(m.RecordSize()))
	dst = be.AppendUint32(dst, magic)
	dst = be.AppendUint32(dst, BodyCRC(m.Body))
	dst = be.AppendUint32(dst, uint32(m.QueueID))
	dst = be.AppendUint32(dst, uint32(m.Flag))
	dst = be.AppendUint64(dst, uint64(m.QueueOffset))
	dst = be.AppendUint64(dst, uint64(m.PhysicalOffset))
	dst = be.AppendUint32(dst, uint32(flag))
	dst = be.AppendUint64(dst, uint64(m.BornTimestamp))
	dst = appendHost(dst, m.BornHost)
	dst = be.AppendUint64(dst, uint64(m.StoreTimestamp))
	dst = appendHost(dst, m.StoreHost)
	dst = be.AppendUint32(dst, uint32(m.ReconsumeTimes))
	dst = be.AppendUint64(dst, uint64(m.PreparedTransactionOffset))
	dst = be.AppendUint32(dst, uint32(len(m.Body)))
	dst = append(dst, m.Body...)
	if magic == magicV2 {
		dst = be.AppendUint16(dst, uint16(len(m.Topic)))
	} else {
		dst = append(dst, byte(len(m.Topic)))
	}
	dst = append(dst, m.Topic...)
	dst = be.AppendUint16(dst, uint16(len(m.Properties)))
	return append(dst, m.Properties...)
}

// AppendBlank appends the 8 bytes of a blank record that fills the last size bytes of a file.
func AppendBlank(dst []byte, size int) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(size))
	return binary.BigEndian.AppendUint32(dst, blankMagic)
}

func appendHost(dst []byte, a netip.AddrPort) []byte {
	if isV4(a) {
		var ip [4]byte
		if a.IsValid() {
			ip = a.Addr().As4()
		}
		dst = append(dst, ip[:]...)
	} else {
		ip := a.Addr().As16()
		dst = append(dst, ip[:]...)
	}
	return binary.BigEndian.AppendUint32(dst, uint32(a.Port()))
}

// BodyCRC is the CRC-32 (IEEE) of a body as a record holds it: 31 bits.
func BodyCRC(body []byte) uint32 { return crc32.ChecksumIEEE(body) & 0x7FFFFFFF }

// SetQueueOffset writes the queue offset into a built record.
func SetQueueOffset(rec []byte, v int64) {
	binary.BigEndian.PutUint64(rec[positionQueueOffset:], uint64(v))
}

// SetPhysicalOffset writes the physical offset into a built record.
func SetPhysicalOffset(rec []byte, v int64) {
	binary.BigEndian.PutUint64(rec[positionPhysicalOffset:], uint64(v))
}

// SetStoreTimestamp writes the store time (ms) into a built record. Its place depends on the born host's size.
func SetStoreTimestamp(rec []byte, ms int64) {
	at := positionBornHost + recordSysFlag(rec).hostSize(BornHostV6)
	binary.BigEndian.PutUint64(rec[at:], uint64(ms))
}

func recordSysFlag(rec []byte) SysFlag {
	return SysFlag(binary.BigEndian.Uint32(rec[positionSysFlag:]))
}

// Header is the part of a record in front of its hosts and variable fields, plus the store time.
type Header struct {
	Size           int32
	Blank          bool
	BodyCRC        uint32
	QueueID        int32
	QueueOffset    int64
	PhysicalOffset int64
	SysFlag        SysFlag
	StoreTimestamp int64 // ms
}

// DecodeHeader reads the fixed fields of the record at the start of b without looking at the rest: enough to
// walk a log. A blank record is returned as such, without an error. The size is not checked against anything
// but the smallest legal one.
func DecodeHeader(b []byte) (Header, error) {
	be := binary.BigEndian
	if len(b) < BlankSize {
		return Header{}, ErrTruncated
	}
	h := Header{Size: int32(be.Uint32(b))}
	switch be.Uint32(b[4:]) {
	case magicV1, magicV2:
	case blankMagic:
		h.Blank = true
		return h, nil
	default:
		return h, fmt.Errorf("%w: magic %08x", ErrCorrupt, be.Uint32(b[4:]))
	}
	if h.Size < fixedSize {
		return h, fmt.Errorf("%w: size %d", ErrCorrupt, h.Size)
	}
	if len(b) < positionBornHost {
		return h, ErrTruncated
	}
	h.BodyCRC = be.Uint32(b[8:])
	h.QueueID = int32(be.Uint32(b[12:]))
	h.QueueOffset = int64(be.Uint64(b[positionQueueOffset:]))
	h.PhysicalOffset = int64(be.Uint64(b[positionPhysicalOffset:]))
	h.SysFlag = recordSysFlag(b)
	at := positionBornHost + h.SysFlag.hostSize(BornHostV6)
	if len(b) < at+8 {
		return h, ErrTruncated
	}
	h.StoreTimestamp = int64(be.Uint64(b[at:]))
	return h, nil
}

// DecodeRecord reads the record at the start of b into m and returns its size. Body and Properties of m are
// views of b; Topic is a new string. With verifyCRC the body is checked against its CRC.
//
// A blank record gives ErrBlank and its size. Other errors wrap ErrTruncated or ErrCorrupt and name what was
// wrong.
func DecodeRecord(b []byte, m *Message, verifyCRC bool) (n int, err error) {
	be := binary.BigEndian
	h, err := DecodeHeader(b)
	if err != nil {
		return 0, err
	}
	if h.Blank {
		return int(h.Size), ErrBlank
	}
	size := int(h.Size)
	if size > len(b) {
		return 0, fmt.Errorf("%w: size %d, %d bytes left", ErrTruncated, size, len(b))
	}
	b = b[:size]
	bornSize, storeSize := h.SysFlag.hostSize(BornHostV6), h.SysFlag.hostSize(StoreHostV6)
	topicLength := 1
	if be.Uint32(b[4:]) == magicV2 {
		topicLength = 2
	}
	if size < fixedSize-16+bornSize+storeSize+topicLength-1 {
		return 0, fmt.Errorf("%w: size %d is too small for its hosts", ErrCorrupt, size)
	}
	m.QueueID, m.QueueOffset, m.PhysicalOffset = h.QueueID, h.QueueOffset, h.PhysicalOffset
	m.SysFlag, m.StoreTimestamp, m.BodyCRC, m.StoreSize = h.SysFlag, h.StoreTimestamp, h.BodyCRC, h.Size
	m.Flag = int32(be.Uint32(b[16:]))
	m.BornTimestamp = int64(be.Uint64(b[40:]))
	p := positionBornHost
	m.BornHost = decodeHost(b[p : p+bornSize])
	p += bornSize + 8
	m.StoreHost = decodeHost(b[p : p+storeSize])
	p += storeSize
	m.ReconsumeTimes = int32(be.Uint32(b[p:]))
	m.PreparedTransactionOffset = int64(be.Uint64(b[p+4:]))
	bodyLength := int(int32(be.Uint32(b[p+12:])))
	p += 16
	if bodyLength < 0 || bodyLength > size-p-topicLength-2 {
		return 0, fmt.Errorf("%w: body length %d in a record of %d bytes", ErrCorrupt, bodyLength, size)
	}
	m.Body = b[p : p+bodyLength : p+bodyLength]
	p += bodyLength
	var n2 int
	if topicLength == 2 {
		n2 = int(be.Uint16(b[p:]))
	} else {
		n2 = int(b[p])
	}
	p += topicLength
	if n2 > size-p-2 {
		return 0, fmt.Errorf("%w: topic length %d in a record of %d bytes", ErrCorrupt, n2, size)
	}
	m.Topic = string(b[p : p+n2])
	p += n2
	n3 := int(int16(be.Uint16(b[p:])))
	p += 2
	if n3 < 0 {
		n3 = 0
	}
	if p+n3 != size {
		return 0, fmt.Errorf("%w: fields end at %d of %d bytes", ErrCorrupt, p+n3, size)
	}
	m.Properties = b[p : p+n3 : p+n3]
	if verifyCRC {
		if got := BodyCRC(m.Body); got != h.BodyCRC {
			return 0, fmt.Errorf("%w: body CRC %08x, stored %08x", ErrCorrupt, got, h.BodyCRC)
		}
	}
	return size, nil
}

func decodeHost(b []byte) netip.AddrPort {
	n := len(b) - 4
	addr, _ := netip.AddrFromSlice(b[:n])
	return netip.AddrPortFrom(addr, uint16(binary.BigEndian.Uint32(b[n:])))
}

// RecordProperties returns the encoded properties of a whole, valid record without decoding the rest.
func RecordProperties(rec []byte) []byte {
	be := binary.BigEndian
	f := recordSysFlag(rec)
	p := positionBornHost + f.hostSize(BornHostV6) + 8 + f.hostSize(StoreHostV6) + 12
	p += 4 + int(be.Uint32(rec[p:]))
	if be.Uint32(rec[4:]) == magicV2 {
		p += 2 + int(be.Uint16(rec[p:]))
	} else {
		p += 1 + int(rec[p])
	}
	n := max(int(int16(be.Uint16(rec[p:]))), 0) // a negative length means none, as in DecodeRecord
	return rec[p+2 : p+2+n]
}
