package metafile

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"strconv"
)

// A file that holds a JSON object gets a last member with the CRC-32 of all before it:
//
//	{…,"apogeeCRC":"89abcdef"}
//
// A digit that changed would otherwise pass for an offset. A Java broker reads over members that it doesn't know, and
// writes its own files without: those are taken as they are.
const (
	sealName = `"apogeeCRC":"`
	sealSize = len(sealName) + 8 + len(`"}`)
)

// Seal adds the member to a JSON object; other contents are returned as they are.
func Seal(data []byte) []byte {
	body := bytes.TrimRight(data, " \t\r\n")
	if len(body) < 2 || body[0] != '{' || body[len(body)-1] != '}' {
		return data
	}
	out := append([]byte(nil), bytes.TrimRight(body[:len(body)-1], " \t\r\n")...)
	if out[len(out)-1] != '{' {
		out = append(out, ',')
	}
	return fmt.Appendf(out, `%s%08x"}`, sealName, crc32.ChecksumIEEE(out))
}

// Unseal checks the member and returns the object without it; contents without one are returned as they are. The error
// says that the contents changed since they were sealed.
func Unseal(data []byte) ([]byte, error) {
	at := len(data) - sealSize
	if at < 1 || !bytes.HasPrefix(data[at:], []byte(sealName)) || !bytes.HasSuffix(data, []byte(`"}`)) {
		return data, nil
	}
	stored := data[at+len(sealName) : at+len(sealName)+8]
	got := crc32.ChecksumIEEE(data[:at])
	if want, err := strconv.ParseUint(string(stored), 16, 32); err != nil || uint32(want) != got {
		return nil, fmt.Errorf("its checksum is %08x, %s is stored", got, stored)
	}
	body := bytes.TrimSuffix(data[:at:at], []byte(","))
	return append(append([]byte(nil), body...), '}'), nil
}
