package storetool

import (
	"fmt"
	"hash/crc32"

	"github.com/apogeemq/apogee/internal/message"
)

// propertyCRCSize is what a Java broker with enabledAppendPropCRC puts behind a record's properties: the name, a
// separator, ten digits with the least significant first, a separator.
const propertyCRCSize = len(message.PropertyCRC32) + 12

// propertyCRC checks a record's own CRC, which some Java brokers add, over all of it.
func propertyCRC(m *message.Message, rec []byte) error {
	v, ok := message.Property(m.Properties, message.PropertyCRC32)
	if !ok || len(v) != 10 {
		return nil
	}
	want := int64(0)
	for i := len(v) - 1; i >= 0; i-- {
		if v[i] < '0' || v[i] > '9' {
			return fmt.Errorf("the record at %d has no number as its CRC", m.PhysicalOffset)
		}
		want = want*10 + int64(v[i]-'0')
	}
	if got := int64(crc32.ChecksumIEEE(rec[:len(rec)-propertyCRCSize]) & 0x7FFFFFFF); got != want {
		return fmt.Errorf("the record at %d has CRC %d over all of it, %d is stored", m.PhysicalOffset, got, want)
	}
	return nil
}
