package store

import (
	"errors"
	"fmt"
	"time"
)

// checkpointBytes is how much of the log may be dispatched behind the checkpoint before the next one is written ahead
// of time: an opening after a crash reads no more than that.
const checkpointBytes = 32 << 20

// look is how often the background looks whether there is something to do.
const look = time.Second

// maintain is the store's background: it flushes the log in unflushed mode, makes the next segment, and writes the
// checkpoint. The units of consume queues and the keys of the index are written with the checkpoint, or when many
// wait: what is in their files before the checkpoint says so helps no recovery. On an idle store it does nothing but
// look.
func (s *Store) maintain() {
	tick := time.NewTicker(look)
	defer tick.Stop()
	check := time.NewTicker(s.o.CheckpointInterval)
	defer check.Stop()
	var flush <-chan time.Time
	if s.o.Flush == AsyncFlush {
		t := time.NewTicker(s.o.FlushInterval)
		defer t.Stop()
		flush = t.C
	}
	for {
		var err error
		select {
		case <-s.stop:
			return
		case <-flush:
			err = s.flushLog(s.dispatched.Load())
		case <-tick.C:
			if err = s.makeNextSegment(); err == nil && s.dispatched.Load()-s.checkpointed.Load() >= checkpointBytes {
				err = s.checkpoint()
			}
		case <-s.hurry:
			// Units wait for their records' flush.
			err = errors.Join(s.flushLog(s.dispatched.Load()), s.writeDerived())
		case <-check.C:
			if s.dispatched.Load() != s.checkpointed.Load() {
				err = s.checkpoint()
			}
		}
		if err != nil {
			s.complainBackground(err)
		}
	}
}

// writeDerived writes what waits for consume queues and index.
func (s *Store) writeDerived() error {
	err := s.flushQueues()
	if s.index != nil {
		err = errors.Join(err, s.index.flush())
	}
	return err
}

// complainBackground logs a failure of the background, once a minute while it lasts: it is tried again each second.
func (s *Store) complainBackground(err error) {
	if s.Health() != nil {
		return // said already, and nothing more can be written
	}
	if now := s.o.Now(); now.Sub(s.lastComplaint) >= time.Minute {
		s.lastComplaint = now
		s.log.Error("store: background work failed, it is tried again", "error", err)
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

	// RefuseRatio is diskSpaceWarningLevelRatio: above it appends are refused with ErrDiskFull, until use is down to
	// ForceRatio again. 0: never.
	RefuseRatio int
}

// Refuses reports whether appends are to be refused, given whether they are now.
func (p CleanPolicy) Refuses(now bool) bool {
	return p.RefuseRatio > 0 && (p.UsedRatio > p.RefuseRatio || now && p.UsedRatio > p.ForceRatio)
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
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	if was, is := s.overfull.Load(), p.Refuses(s.overfull.Load()); was != is {
		s.overfull.Store(is)
		s.log.Warn("the disk's use crossed a limit", "usedPercent", p.UsedRatio, "appendsAreRefused", is)
	}
	files, err := s.segmentAges()
	if err != nil {
		return 0, fmt.Errorf("clean: %w", err)
	}
	n, err := s.checkpointedOf(files[:p.Expired(files, now)])
	if n == 0 {
		return 0, err
	}
	if s.o.Dropped != nil {
		if err := s.loadAllQueues(); err != nil { // so that their present beginnings are known
			return 0, fmt.Errorf("clean: %w", err)
		}
	}
	for i := range n {
		// One by one and oldest first, each durably, so that no crash leaves a gap.
		if err := s.removeSegment(0); err != nil {
			return i, fmt.Errorf("clean: %w", err)
		}
		s.log.Info("deleted a commit-log file", "file", fileName(files[i].Base), "modified", files[i].Modified)
	}
	err = s.cleanQueuesLocked()
	if s.index != nil {
		err = errors.Join(err, s.index.clean(s.MinPhysical()))
	}
	if err != nil {
		err = fmt.Errorf("clean: %w", err)
	}
	return n, err
}

// checkpointedOf returns how many of the files the checkpoint is behind of: a recovery must not miss the records of a
// file that is gone, since they say where their queues go on. The checkpoint is moved when that helps; where a full
// disk forbids it, files before the last one go all the same, or there would never be room again.
func (s *Store) checkpointedOf(files []SegmentAge) (n int, err error) {
	end := func(i int) int64 { return files[i].Base + s.o.SegmentSize }
	if len(files) > 0 && end(len(files)-1) > s.checkpointed.Load() {
		if err = s.checkpointLocked(); err != nil {
			err = fmt.Errorf("clean: %w", err)
		}
	}
	for n < len(files) && end(n) <= s.checkpointed.Load() {
		n++
	}
	return n, err
}

// segmentAges returns the commit-log files up to the one that is written.
func (s *Store) segmentAges() ([]SegmentAge, error) {
	s.segMu.RLock()
	defer s.segMu.RUnlock()
	end := s.dispatched.Load()
	var files []SegmentAge
	for _, g := range s.segments {
		if len(files) > 0 && g.base > end {
			break
		}
		info, err := s.fs.Stat(g.name)
		if err != nil {
			return nil, err
		}
		files = append(files, SegmentAge{g.base, info.ModTime()})
	}
	return files, nil
}

// cleanQueuesLocked moves every queue's beginning behind the units that point below the log, and deletes files that
// hold no other. The caller holds flushMu.
func (s *Store) cleanQueuesLocked() error {
	minPhysical := s.MinPhysical()
	var errs []error
	if err := s.loadAllQueues(); err != nil {
		errs = append(errs, err)
	}
	for _, q := range s.allQueues() {
		if err := s.cleanQueueLocked(q, minPhysical); err != nil {
			errs = append(errs, fmt.Errorf("consume queue %s: %w", s.queueDir(q), err))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) cleanQueueLocked(q *queue, minPhysical int64) error {
	q.mu.RLock()
	lo, hi := q.min, q.max
	files := q.files
	q.mu.RUnlock()
	lo, err := s.firstUnit(q, lo, hi, minPhysical)
	if err != nil {
		return err
	}
	q.mu.Lock()
	was := q.min
	q.min = max(q.min, lo)
	q.mu.Unlock()
	if s.o.Dropped != nil && lo > was {
		s.o.Dropped(q.topic, q.id, was, lo)
	}
	for i, start := range files {
		if i == len(files)-1 || (start+s.o.QueueSize)/queueUnit > lo {
			break
		}
		if err := s.removeQueueFile(q, start); err != nil {
			return err
		}
	}
	return nil
}
