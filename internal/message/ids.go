package message

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"
)

const upperHex = "0123456789ABCDEF"

func appendHex(dst []byte, b []byte) []byte {
	for _, c := range b {
		dst = append(dst, upperHex[c>>4], upperHex[c&15])
	}
	return dst
}

// OffsetID is the id a broker gives a stored message: upper-case hex of its address (4 or 16 bytes), port
// (4 bytes) and physical offset (8 bytes); 32 or 56 characters.
func OffsetID(host netip.AddrPort, physical int64) string {
	var raw [28]byte
	b := appendHost(raw[:0], host)
	b = binary.BigEndian.AppendUint64(b, uint64(physical))
	var text [56]byte
	return string(appendHex(text[:0], b))
}

// ParseOffsetID is the reverse of OffsetID.
func ParseOffsetID(id string) (netip.AddrPort, int64, error) {
	if len(id) != 32 && len(id) != 56 {
		return netip.AddrPort{}, 0, fmt.Errorf("message id %q: %d characters, an offset id has 32 (IPv4) or 56 (IPv6)", id, len(id))
	}
	b, err := hex.DecodeString(id)
	if err != nil {
		return netip.AddrPort{}, 0, fmt.Errorf("message id %q: %w", id, err)
	}
	host := decodeHost(b[:len(b)-8])
	return host, int64(binary.BigEndian.Uint64(b[len(b)-8:])), nil
}

// UniqueIDs makes the unique ids (property UNIQ_KEY) of one process: upper-case hex of address (4 or 16 bytes),
// process id (2), a number of this instance (4), milliseconds since the first of the month (4) and a counter (2).
// It is safe for concurrent use.
type UniqueIDs struct {
	prefix  []byte // hex of address, pid and instance
	counter atomic.Uint32
}

// NewUniqueIDs returns a generator. instance tells generators of one process apart.
func NewUniqueIDs(ip netip.Addr, pid int, instance uint32) *UniqueIDs {
	var raw [22]byte
	b := ip.Unmap().AsSlice()
	if len(b) == 0 {
		b = []byte{127, 0, 0, 1}
	}
	b = append(raw[:0], b...)
	b = binary.BigEndian.AppendUint16(b, uint16(pid))
	b = binary.BigEndian.AppendUint32(b, instance)
	return &UniqueIDs{prefix: appendHex(nil, b)}
}

// Next returns a new id.
func (u *UniqueIDs) Next(now time.Time) string {
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, now.Location())
	var raw [6]byte
	b := binary.BigEndian.AppendUint32(raw[:0], uint32(now.Sub(month).Milliseconds()))
	b = binary.BigEndian.AppendUint16(b, uint16(u.counter.Add(1)))
	var text [64]byte
	return string(appendHex(append(text[:0], u.prefix...), b))
}
