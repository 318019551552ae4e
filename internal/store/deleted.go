package store

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"strings"
)

// DeletedName is a file of ours that says which topics were deleted, and up to which physical offset the log holds
// records of theirs: one line of JSON, then its CRC in hexadecimal. Without it, building consume queues anew from the
// whole log would bring deleted topics back, and `apogee store check` could not tell a deleted topic from lost queues.
// A topic leaves it when the log begins behind its records.
const DeletedName = "deleted.apogee"

func encodeDeleted(d map[string]int64) ([]byte, error) {
	line, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s\n%08x\n", line, crc32.ChecksumIEEE(line)), nil
}

// DecodeDeleted decodes the file; ok is false when it is damaged.
func DecodeDeleted(b []byte) (d map[string]int64, ok bool) {
	line, rest, _ := strings.Cut(string(b), "\n")
	if rest != fmt.Sprintf("%08x\n", crc32.ChecksumIEEE([]byte(line))) || json.Unmarshal([]byte(line), &d) != nil {
		return nil, false
	}
	return d, true
}

// readDeleted loads the file. A damaged one is left out: it only matters when queues are built anew.
func (s *Store) readDeleted() error {
	b, err := s.readWholeFile(DeletedName)
	if err != nil {
		return err
	}
	s.deletedTopics = map[string]int64{}
	if len(b) == 0 {
		return nil
	}
	d, ok := DecodeDeleted(b)
	if !ok {
		s.log.Warn("recovery: the list of deleted topics is damaged and left out", "file", DeletedName)
		return nil
	}
	maps.Copy(s.deletedTopics, d)
	return nil
}

// noteDeletedLocked adds a topic to the file. The caller holds flushMu.
func (s *Store) noteDeletedLocked(topic string, upTo int64) error {
	first := s.MinPhysical()
	maps.DeleteFunc(s.deletedTopics, func(_ string, at int64) bool { return at <= first })
	s.deletedTopics[topic] = upTo
	b, err := encodeDeleted(s.deletedTopics)
	if err != nil {
		return err
	}
	return s.replaceFile(DeletedName, b)
}
