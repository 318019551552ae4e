package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sort"
	"strconv"
	"sync/atomic"

	"github.com/apogeemq/apogee/internal/vfs"
)

// segment is one commit-log file: its name is its start offset, its size the configured one from the moment it
// is made. It is written through the file and read through the mapping.
//
// refs counts the store's own reference and one for every reader that holds records; the mapping goes with the
// last of them.
type segment struct {
	base int64
	name string
	file vfs.File
	m    vfs.Mapping
	data []byte
	refs atomic.Int32
}

func fileName(offset int64) string { return fmt.Sprintf("%020d", offset) }

func (s *Store) openSegment(base int64, flag int) (*segment, error) {
	name := path.Join(s.o.LogDir, fileName(base))
	f, err := s.fs.OpenFile(name, os.O_RDWR|flag)
	if err != nil {
		return nil, fmt.Errorf("commit log: %w", err)
	}
	if flag&os.O_CREATE != 0 {
		err := f.Truncate(s.o.SegmentSize)
		if err == nil {
			err = f.Sync()
		}
		if err == nil {
			err = s.fs.SyncDir(s.o.LogDir)
		}
		if err != nil {
			// Half made it must not stay: its size may not be what it seems.
			return nil, errors.Join(fmt.Errorf("commit log: create %s: %w", name, err), f.Close(), s.fs.Remove(name))
		}
	}
	m, err := f.Map(s.o.SegmentSize, false)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("commit log: %w", err), f.Close())
	}
	g := &segment{base: base, name: name, file: f, m: m, data: m.Bytes()}
	g.refs.Store(1)
	return g, nil
}

func (g *segment) ref() bool {
	for {
		n := g.refs.Load()
		if n <= 0 {
			return false
		}
		if g.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (g *segment) unref() {
	if g.refs.Add(-1) == 0 {
		_ = g.m.Close()
		_ = g.file.Close()
	}
}

// loadSegments opens the commit-log files. A last file of length 0 (its creation was cut off) is removed; any
// other length than the configured one refuses to open.
func (s *Store) loadSegments() error {
	entries, err := s.fs.ReadDir(s.o.LogDir)
	if err != nil {
		return err
	}
	var bases []int64
	for _, e := range entries {
		base, err := strconv.ParseInt(e.Name(), 10, 64)
		if err != nil || len(e.Name()) != 20 || e.IsDir() {
			s.log.Warn("commit log: a file that doesn't belong here was left alone", "file", e.Name())
			continue
		}
		bases = append(bases, base)
	}
	sort.Slice(bases, func(i, j int) bool { return bases[i] < bases[j] })
	for i, base := range bases {
		name := path.Join(s.o.LogDir, fileName(base))
		info, err := s.fs.Stat(name)
		if err != nil {
			return err
		}
		if info.Size() != s.o.SegmentSize {
			if i == len(bases)-1 && info.Size() == 0 {
				if err := s.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
				break
			}
			return fmt.Errorf("commit log: %s has %d bytes, mappedFileSizeCommitLog is %d: set it to the size this store was made with", name, info.Size(), s.o.SegmentSize)
		}
		if i > 0 && base != bases[i-1]+s.o.SegmentSize {
			return fmt.Errorf("%w: commit log: %s does not follow %s; a file between them is missing", ErrDamaged, fileName(base), fileName(bases[i-1]))
		}
		g, err := s.openSegment(base, 0)
		if err != nil {
			return err
		}
		s.segments = append(s.segments, g)
	}
	return nil
}

// segmentAt returns the segment that holds a physical offset, with a reference, or nil.
func (s *Store) segmentAt(at int64) *segment {
	s.segMu.RLock()
	defer s.segMu.RUnlock()
	if len(s.segments) == 0 || at < s.segments[0].base {
		return nil
	}
	i := int((at - s.segments[0].base) / s.o.SegmentSize)
	if i >= len(s.segments) || !s.segments[i].ref() {
		return nil
	}
	return s.segments[i]
}

// ensureSegment returns the segment that starts at base, the last one's successor, making it when it isn't there.
func (s *Store) ensureSegment(base int64) (*segment, error) {
	s.makeMu.Lock()
	defer s.makeMu.Unlock()
	s.segMu.RLock()
	for i := len(s.segments) - 1; i >= 0; i-- {
		if g := s.segments[i]; g.base == base {
			s.segMu.RUnlock()
			return g, nil
		}
	}
	s.segMu.RUnlock()
	g, err := s.openSegment(base, os.O_CREATE)
	if err != nil {
		return nil, err
	}
	s.segMu.Lock()
	s.segments = append(s.segments, g)
	s.segMu.Unlock()
	return g, nil
}

// makeNextSegment makes the segment that will be needed next when the current one is nearly full, so that no append
// waits for it. Small segments are made when they are needed.
func (s *Store) makeNextSegment() error {
	s.mu.Lock()
	left, base, state := s.segEnd-s.end, s.segEnd, s.state
	s.mu.Unlock()
	if state != nil || s.o.SegmentSize < 64<<20 || left > s.o.SegmentSize/8 || s.segmentCount() == 0 {
		return nil
	}
	_, err := s.ensureSegment(base)
	return err
}

func (s *Store) segmentCount() int {
	s.segMu.RLock()
	defer s.segMu.RUnlock()
	return len(s.segments)
}

// dropUnusedSegments removes segments behind the end of the log; a clean store has none.
func (s *Store) dropUnusedSegments() error {
	end := s.dispatched.Load()
	for n := len(s.segments); n > 1 && s.segments[n-1].base >= end; n = len(s.segments) {
		if err := s.removeSegment(n - 1); err != nil {
			return err
		}
	}
	return nil
}
