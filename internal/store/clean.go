package store

import (
	"errors"
	"fmt"
	"path"
	"time"
)

// maintain is the store's background: it writes the consume queues' tails, flushes the log in unflushed mode, and
// writes the checkpoint. On an idle store it does nothing but look.
func (s *Store) maintain() {
	flush := time.NewTicker(s.o.FlushInterval)
	defer flush.Stop()
	queues := time.NewTicker(s.o.QueueFlushInterval)
	defer queues.Stop()
	check := time.NewTicker(s.o.CheckpointInterval)
	defer check.Stop()
	checked := s.dispatched.Load()
	for {
		var err error
		select {
		case <-s.stop:
			return
		case <-flush.C:
			if s.o.Flush == AsyncFlush {
				err = s.flushLog(s.dispatched.Load())
			}
		case <-queues.C:
			err = s.flushQueues(false)
		case <-check.C:
			if at := s.dispatched.Load(); at != checked && s.Health() == nil {
				if err = s.checkpoint(); err == nil {
					checked = at
				}
			}
		}
		if err != nil {
			s.log.Error("store: background work failed, it is tried again", "error", err)
		}
	}
}

// SegmentAge is what cleaning knows of one commit-log file.
type SegmentAge struct {
	Base     int64
	Modified time.Time
}

// CleanPolicy says which commit-log files may go (storage: deletion). Ratios are percent of the disk in use.
type CleanPolicy struct {
	Keep       time.Duration // fileReservedTime
	Hour       bool          // it is one of the hours of deleteWhen, or cleaning was asked for
	UsedRatio  int
	CleanRatio int // diskMaxUsedSpaceRatio: delete expired files whatever the hour
	ForceRatio int // diskSpaceCleanForciblyRatio: delete the oldest files whatever their age
	ForceClean bool
	MaxFiles   int
}

// Expired returns how many of the files, oldest first, may be deleted now. The last file never is.
func (p CleanPolicy) Expired(files []SegmentAge, now time.Time) int {
	forced := p.ForceClean && p.UsedRatio > p.ForceRatio
	if !p.Hour && p.UsedRatio <= p.CleanRatio && !forced {
		return 0
	}
	n := 0
	for n < len(files)-1 && n < p.MaxFiles && (forced || now.Sub(files[n].Modified) > p.Keep) {
		n++
	}
	return n
}

// Clean deletes commit-log files by the policy, and what of consume queues and index pointed into them. It
// returns how many files went. Readers that hold records of a deleted file keep them.
func (s *Store) Clean(p CleanPolicy, now time.Time) (int, error) {
	s.segMu.RLock()
	files := make([]SegmentAge, 0, len(s.segments))
	for _, g := range s.segments {
		info, err := s.fs.Stat(g.name)
		if err != nil {
			s.segMu.RUnlock()
			return 0, fmt.Errorf("clean: %w", err)
		}
		files = append(files, SegmentAge{g.base, info.ModTime()})
	}
	s.segMu.RUnlock()
	n := p.Expired(files, now)
	if n == 0 {
		return 0, nil
	}
	s.segMu.Lock()
	gone := append([]*segment(nil), s.segments[:n]...)
	s.segments = append([]*segment(nil), s.segments[n:]...)
	s.segMu.Unlock()
	var errs []error
	for _, g := range gone {
		errs = append(errs, s.fs.Remove(g.name))
		g.unref()
		s.log.Info("deleted a commit-log file", "file", path.Base(g.name))
	}
	errs = append(errs, s.cleanQueues(), s.fs.SyncDir(s.o.LogDir))
	if s.index != nil {
		errs = append(errs, s.index.clean(s.MinPhysical()))
	}
	return n, errors.Join(errs...)
}

// cleanQueues moves every queue's beginning behind the units that point below the log, and deletes files that
// hold no other.
func (s *Store) cleanQueues() error {
	minPhysical := s.MinPhysical()
	s.loadAllQueues()
	s.queueMu.RLock()
	list := make([]*queue, 0, len(s.queues))
	for _, q := range s.queues {
		list = append(list, q)
	}
	s.queueMu.RUnlock()
	var errs []error
	for _, q := range list {
		errs = append(errs, s.cleanQueue(q, minPhysical))
	}
	return errors.Join(errs...)
}

func (s *Store) cleanQueue(q *queue, minPhysical int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	lo, hi := q.min, q.max
	var b [queueUnit]byte
	for lo < hi {
		mid := lo + (hi-lo)/2
		if n, err := s.unitsLocked(q, mid, b[:]); err == nil && n == 1 && decodeUnit(b[:]).physical >= minPhysical {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	q.min = lo
	last := (q.max - 1) * queueUnit
	for start := range q.known {
		if end := (start + s.o.QueueSize) / queueUnit; end <= q.min && start+s.o.QueueSize <= last {
			name := path.Join(q.dir, fileName(start))
			s.files.forget(name)
			if err := s.fs.Remove(name); err != nil {
				return fmt.Errorf("clean consume queue: %w", err)
			}
			delete(q.known, start)
			delete(q.unsynced, start)
		}
	}
	return nil
}
