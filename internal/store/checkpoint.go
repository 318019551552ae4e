package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path"

	"github.com/apogeemq/apogee/internal/message"
)

// position is how far the log is dispatched.
type position struct {
	end  int64 // behind the last record
	last int64 // where that record begins; -1: none is known
	time int64 // its store time, ms
}

func (s *Store) position() position {
	s.posMu.Lock()
	defer s.posMu.Unlock()
	return s.pos
}

func (s *Store) setPosition(p position) {
	s.posMu.Lock()
	s.pos = p
	s.posMu.Unlock()
	s.dispatched.Store(p.end)
}

// javaCheckpoint is the checkpoint file as Java has it: times in ms, 8 bytes each, in 4096 bytes.
type javaCheckpoint struct{ physic, logics, index int64 }

const javaCheckpointSize = 4096

// readSmallFile returns what a small file of the store's folder holds, nil when there is none.
func (s *Store) readSmallFile(name string) ([]byte, error) {
	return s.readFile(name, javaCheckpointSize)
}

// readWholeFile is readSmallFile for files that grow.
func (s *Store) readWholeFile(name string) ([]byte, error) { return s.readFile(name, 64<<20) }

func (s *Store) readFile(name string, limit int64) ([]byte, error) {
	f, err := s.fs.OpenFile(path.Join(s.o.Dir, name), os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, limit))
	if err := readFull(f, b, 0); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return b, nil
}

func (s *Store) readJavaCheckpoint() (c javaCheckpoint, err error) {
	b, err := s.readSmallFile("checkpoint")
	if err != nil || len(b) < 24 {
		return c, err
	}
	be := binary.BigEndian
	return javaCheckpoint{int64(be.Uint64(b)), int64(be.Uint64(b[8:])), int64(be.Uint64(b[16:]))}, nil
}

func (c javaCheckpoint) encode(confirmed int64) []byte {
	b := make([]byte, javaCheckpointSize)
	be := binary.BigEndian
	be.PutUint64(b[0:], uint64(c.physic))
	be.PutUint64(b[8:], uint64(c.logics))
	be.PutUint64(b[16:], uint64(c.index))
	be.PutUint64(b[32:], uint64(confirmed))
	return b
}

// ownCheckpoint is checkpoint.apogee, a line of text with a CRC:
//
//	apogee 1 PHYSICAL LAST INDEXFILE INDEXNEXT INDEXTIME INDEXPHYSICAL CRC
//
// Up to PHYSICAL log, consume queues and index are durable; LAST is where the record before it begins, -1 for none.
// The index fields are its last file's end then; INDEXFILE is "-" for none and "off" when no index was kept.
type ownCheckpoint struct {
	physical, last int64
	index          indexEnd
	indexOff       bool
}

const ownCheckpointName = "checkpoint.apogee"

func (c ownCheckpoint) encode() []byte {
	name := c.index.file
	switch {
	case c.indexOff:
		name = "off"
	case name == "":
		name = "-"
	}
	line := fmt.Sprintf("apogee 1 %d %d %s %d %d %d", c.physical, c.last, name, c.index.next, c.index.time, c.index.physical)
	return fmt.Appendf(nil, "%s %08x\n", line, crc32.ChecksumIEEE([]byte(line)))
}

func decodeOwnCheckpoint(b []byte) (c ownCheckpoint, ok bool) {
	var version int
	var crc uint32
	n, err := fmt.Sscanf(string(b), "apogee %d %d %d %s %d %d %d %x\n", &version, &c.physical, &c.last, &c.index.file, &c.index.next, &c.index.time, &c.index.physical, &crc)
	if err != nil || n != 8 || version != 1 {
		return c, false
	}
	switch c.index.file {
	case "-":
		c.index.file = ""
	case "off":
		c.index.file, c.indexOff = "", true
	}
	return c, string(c.encode()) == string(b)
}

// readOwnCheckpoint returns our checkpoint; not found when there is none or it is damaged.
func (s *Store) readOwnCheckpoint() (c ownCheckpoint, found bool, err error) {
	b, err := s.readSmallFile(ownCheckpointName)
	if err != nil || b == nil {
		return c, false, err
	}
	if c, found = decodeOwnCheckpoint(b); !found {
		s.log.Warn("recovery: the checkpoint is damaged and left out", "file", ownCheckpointName)
	}
	return c, found, nil
}

// verdict is what the log says about our own checkpoint.
type verdict int

const (
	noCheckpoint verdict = iota // none, or one older than the log's beginning: a Java broker was here for long
	soundCheckpoint
	falseCheckpoint // the log has no such place, though it was durable up to it
)

// judge looks whether the record before the checkpoint is where it says.
func (s *Store) judge(c ownCheckpoint) (verdict, error) {
	first := s.segments[0].base
	switch {
	case c.physical < first:
		return noCheckpoint, nil
	case c.physical == first && c.last < first:
		return soundCheckpoint, nil
	}
	g := s.segmentAt(c.last)
	if g == nil {
		return falseCheckpoint, nil
	}
	defer g.unref()
	r := newLogReader(g, s.o.SegmentSize)
	r.step = 4 << 10
	var m message.Message
	_, n, err := r.record(c.last, &m, true)
	if err == nil && c.last+int64(n) != c.physical { // only a blank may lie between
		var blank int
		_, blank, err = r.record(c.last+int64(n), &m, false)
		if errors.Is(err, message.ErrBlank) && c.last+int64(n)+int64(blank) == c.physical {
			return soundCheckpoint, nil
		}
	} else if err == nil {
		return soundCheckpoint, nil
	}
	if err == nil || isDamage(err) || errors.Is(err, message.ErrBlank) {
		return falseCheckpoint, nil
	}
	return falseCheckpoint, err
}

// checkpoint makes everything dispatched so far durable, in the order log, queues and index, and then says so in
// both checkpoint files.
func (s *Store) checkpoint() error {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	return s.checkpointLocked()
}

// checkpointLocked is checkpoint for holders of flushMu.
func (s *Store) checkpointLocked() error {
	p := s.position()
	if err := s.flushLog(p.end); err != nil {
		return err
	}
	if err := s.flushQueuesLocked(); err != nil {
		return err
	}
	c := ownCheckpoint{physical: p.end, last: p.last, indexOff: s.index == nil, index: indexEnd{physical: -1}}
	if s.index != nil {
		if err := s.index.flush(); err != nil {
			return err
		}
		var err error
		if c.index, err = s.index.end(); err != nil {
			return err
		}
	}
	if err := s.syncDerivedLocked(); err != nil {
		return err
	}
	if err := s.replaceFile(ownCheckpointName, c.encode()); err != nil {
		return err
	}
	if err := s.replaceFile("checkpoint", javaCheckpoint{p.time, p.time, c.index.time}.encode(p.end)); err != nil {
		return err
	}
	s.checkpointed.Store(p.end)
	return nil
}

// syncDerivedLocked makes consume queues and index durable. Once that failed, what the disk has of them is unknown:
// the checkpoint then stays where it is until the next opening writes them again.
func (s *Store) syncDerivedLocked() error {
	if s.derivedErr == nil {
		err := s.syncQueuesLocked()
		if err == nil && s.index != nil {
			err = s.index.sync()
		}
		if err != nil {
			s.derivedErr = fmt.Errorf("the checkpoint stays where it is until the broker is started again: %w", err)
		}
	}
	return s.derivedErr
}

// replaceFile replaces a small file of the store's folder whole.
func (s *Store) replaceFile(name string, data []byte) error {
	tmp, dst := path.Join(s.o.Dir, name+".tmp"), path.Join(s.o.Dir, name)
	f, err := s.fs.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if _, err = f.WriteAt(data, 0); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := s.fs.Rename(tmp, dst); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return s.fs.SyncDir(s.o.Dir)
}

// flushLog makes the log durable up to a physical offset.
func (s *Store) flushLog(upTo int64) error {
	from := s.flushed.Load()
	if from >= upTo {
		return nil
	}
	if err := s.Health(); err != nil {
		return err // a flush that follows a failed one says nothing
	}
	for at := from - from%s.o.SegmentSize; at < upTo; at += s.o.SegmentSize {
		g := s.segmentAt(at)
		if g == nil {
			continue
		}
		err := g.file.Datasync()
		g.unref()
		if err != nil {
			err = fmt.Errorf("%w: flush %s: %w", ErrLogFailed, g.name, err)
			s.mu.Lock()
			s.failLocked(err)
			s.mu.Unlock()
			return err
		}
	}
	s.counters.Flushes.Add(1)
	s.advanceFlushed(upTo)
	return nil
}

// advanceFlushed moves flushed forward.
func (s *Store) advanceFlushed(to int64) {
	for {
		old := s.flushed.Load()
		if old >= to || s.flushed.CompareAndSwap(old, to) {
			return
		}
	}
}
