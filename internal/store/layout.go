package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/vfs"
)

// What follows is the layout of the store's files for tools that read them without opening the store.

// Sizes of the files' parts in bytes.
const (
	UnitSize        = queueUnit
	IndexHeaderSize = indexHeader
	IndexEntrySize  = indexEntry
	IndexSlotSize   = 4
)

// Unit is one entry of a consume queue.
type Unit struct {
	Physical int64
	Size     int32
	TagsCode int64
}

// DecodeUnit decodes the first UnitSize bytes of b.
func DecodeUnit(b []byte) Unit {
	u := decodeUnit(b)
	return Unit{u.physical, u.size, u.tagsCode}
}

// Empty reports that nothing was ever written here.
func (u Unit) Empty() bool { return u.Size <= 0 }

// NoMessage reports that the unit stands for no message.
func (u Unit) NoMessage() bool { return u.Size == preBlankSize }

// AppendNoMessage appends a unit that stands for no message.
func AppendNoMessage(b []byte) []byte { return appendUnit(b, unit{size: preBlankSize}) }

// IndexHead is an index file's header. Times are in ms; Next is the number of the next entry, 1 in an empty file.
type IndexHead struct {
	BeginTime, EndTime         int64
	BeginPhysical, EndPhysical int64
	SlotsUsed, Next            int
}

// DecodeIndexHead decodes the first IndexHeaderSize bytes of b.
func DecodeIndexHead(b []byte) IndexHead {
	h := decodeIndexHead(b)
	return IndexHead{h.beginTime, h.endTime, h.beginPhys, h.endPhys, h.used, h.next}
}

// IndexEntry is one entry of an index file; Prev is the slot's entry before it, 0 for none.
type IndexEntry struct {
	Hash     int32
	Physical int64
	Seconds  int32 // since the file's BeginTime
	Prev     int
}

// DecodeIndexEntry decodes the first IndexEntrySize bytes of b.
func DecodeIndexEntry(b []byte) IndexEntry {
	e := decodeIndexRecord(b)
	return IndexEntry{e.hash, e.physical, e.seconds, e.prev}
}

// IsIndexName reports whether a file's name is an index file's.
func IsIndexName(name string) bool {
	_, ok := indexTime(name)
	return ok
}

// IndexHashes appends the hashes under which a record is in the index: of its unique key, then of each key.
func IndexHashes(dst []int32, m *message.Message) []int32 {
	indexKeys(m.SysFlag, m.Properties, func(key []byte) { dst = append(dst, indexHash(m.Topic, key)) })
	return dst
}

// TagsCode is what a record's unit holds in its last field. For one that is delivered later it is the time of that,
// which depends on the delay levels at the time: then exact is false, and code is the store time, before which it can't be.
func TagsCode(m *message.Message) (code int64, exact bool) {
	if m.Topic == message.ScheduleTopic {
		if v, ok := message.Property(m.Properties, message.PropertyDelayLevel); ok && atoi(v) > 0 {
			return m.StoreTimestamp, false
		}
	}
	v, _ := message.Property(m.Properties, message.PropertyTags)
	return message.TagsCode(v), true
}

// CheckpointName is our checkpoint's name; OwnCheckpoint what is in it: up to Physical the log, the consume queues and
// the index are durable, Last is where the record before begins, -1 for none.
const CheckpointName = ownCheckpointName

// OwnCheckpoint see CheckpointName.
type OwnCheckpoint struct {
	Physical, Last int64
	IndexFile      string // "" for none
	IndexNext      int
	IndexOff       bool
}

// DecodeCheckpoint decodes our checkpoint; ok is false when it is damaged.
func DecodeCheckpoint(b []byte) (c OwnCheckpoint, ok bool) {
	o, ok := decodeOwnCheckpoint(b)
	return OwnCheckpoint{o.physical, o.last, o.index.file, o.index.next, o.indexOff}, ok
}

// LogReader walks the records of one commit-log file with plain reads.
type LogReader struct{ r *logReader }

// NewLogReader reads the commit-log file that begins at base and has size bytes. The caller closes f.
func NewLogReader(f vfs.File, name string, base, size int64) *LogReader {
	return &LogReader{newLogReader(&segment{base: base, name: name, file: f}, size)}
}

// Record decodes the record at a physical offset into m and checks its CRC. A blank one gives message.ErrBlank and
// how many bytes it fills. The bytes, and what of m lies in them, are valid until the next call.
func (r *LogReader) Record(physical int64, m *message.Message) (rec []byte, n int, err error) {
	return r.r.record(physical, m, true)
}

// Bytes returns n bytes at a physical offset, valid until the next call.
func (r *LogReader) Bytes(physical int64, n int) ([]byte, error) {
	return r.r.bytes(physical-r.r.g.base, n)
}

// IsDamage reports whether an error of Record says that the bytes are no record, rather than that they couldn't be
// read.
func IsDamage(err error) bool { return isDamage(err) }

// ErrForeign: the folder holds a store of a kind that is not served here.
var ErrForeign = errors.New("not a store that can be opened here")

// CheckKind refuses, untouched, what RocksDB and DLedger stores hold: consume queues or metadata in a RocksDB database,
// a commit log with DLedger's frames around its records. The error names the folder and says what to do.
func CheckKind(fsys vfs.FS, dir, logDir string) error {
	const remedy = "let the Java broker that made it move to the file layout first, or give an empty folder"
	for _, d := range []string{"consumequeue", "config/topics", "config/subscriptionGroups", "config/consumerOffsets", "config/rdb"} {
		name := path.Join(dir, d)
		if _, err := fsys.Stat(path.Join(name, "CURRENT")); err == nil {
			return fmt.Errorf("%w: %s is a RocksDB database (storeType=defaultRocksDB): %s", ErrForeign, name, remedy)
		} else if !errors.Is(err, fs.ErrNotExist) && !isNotDir(err) {
			return err
		}
	}
	entries, err := fsys.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), "dledger-") {
			return fmt.Errorf("%w: %s is a DLedger store (enableDLegerCommitLog=true): %s", ErrForeign, path.Join(dir, e.Name()), remedy)
		}
	}
	return checkFrames(fsys, logDir, remedy)
}

// dledgerFrame is the size of the header that DLedger writes before a record: magic (4) | size (4) | index (8) |
// term (8) | position (8) | channel (4) | chain CRC (4) | body CRC (4) | body size (4).
const dledgerFrame = 48

// checkFrames looks whether the first commit-log file begins with a DLedger frame around a record.
func checkFrames(fsys vfs.FS, logDir, remedy string) error {
	entries, err := fsys.ReadDir(logDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if _, err := strconv.ParseInt(e.Name(), 10, 64); err != nil || len(e.Name()) != 20 {
			continue
		}
		name := path.Join(logDir, e.Name())
		f, err := fsys.OpenFile(name, 0)
		if err != nil {
			return err
		}
		b := make([]byte, dledgerFrame+headerSize)
		err = readFull(f, b, 0)
		_ = f.Close()
		if err != nil {
			return nil // too short for either: opening says what is wrong
		}
		_, plain := message.DecodeHeader(b)
		h, framed := message.DecodeHeader(b[dledgerFrame:])
		if plain != nil && framed == nil && !h.Blank {
			return fmt.Errorf("%w: %s holds records in DLedger's frames: %s", ErrForeign, name, remedy)
		}
		return nil
	}
	return nil
}

func isNotDir(err error) bool { return errors.Is(err, syscall.ENOTDIR) }
