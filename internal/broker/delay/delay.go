package delay

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/metafile"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/store"
	"github.com/apogeemq/apogee/internal/vfs"
)

// Store is what the scheduler needs of the log store.
type Store interface {
	QueueEntry(topic string, queueID int32, offset int64) (physical int64, size int32, tagsCode int64, ok bool)
	Record(physical int64) (rec []byte, release func(), err error)
	Append(m *message.Message, w store.Waiter)
	MinOffset(topic string, queueID int32) int64
	MaxOffset(topic string, queueID int32) int64
}

// Scheduler delivers scheduled messages. One goroutine serves all levels: it sleeps until the earliest one is due,
// and is woken when a message is scheduled. A message is delivered at least once: up to PersistInterval's worth of
// them may be delivered again after a crash.
type Scheduler struct {
	o    Options
	file string

	mu      sync.Mutex
	offsets []int64 // next offset by level-1: everything below is delivered
	version protocol.DataVersion
	dirty   bool

	wake chan struct{}
}

// Options are a Scheduler's settings.
type Options struct {
	FS     vfs.FS
	Dir    string // the config folder
	Store  Store
	Levels Levels
	Logger *slog.Logger
	// Prepare stamps a message that is about to be delivered with what the broker sets: its store host.
	Prepare         func(m *message.Message)
	PersistInterval time.Duration // flushDelayOffsetInterval; default 10 s
}

// window is how many deliveries of one level may be on their way through the store at once.
const window = 256

type file struct {
	DataVersion protocol.DataVersion `json:"dataVersion"`
	OffsetTable map[int]int64        `json:"offsetTable"`
}

// Open loads the progress. notes says what was passed over while loading.
func Open(o Options) (s *Scheduler, notes []string, err error) {
	if o.PersistInterval == 0 {
		o.PersistInterval = 10 * time.Second
	}
	s = &Scheduler{o: o, file: path.Join(o.Dir, "delayOffset.json"), offsets: make([]int64, len(o.Levels)), wake: make(chan struct{}, 1)}
	_, notes, err = metafile.Load(o.FS, s.file, func(b []byte) error {
		var f file
		if err := fastjson.Unmarshal(b, &f); err != nil {
			return err
		}
		if f.OffsetTable == nil {
			return errors.New("it has no offsetTable")
		}
		for level, at := range f.OffsetTable {
			if level >= 1 && level <= len(s.offsets) {
				s.offsets[level-1] = at
			}
		}
		s.version = f.DataVersion
		return nil
	})
	if err != nil {
		return nil, notes, err
	}
	for i := range s.offsets { // into what the queue holds
		lo, hi := o.Store.MinOffset(message.ScheduleTopic, int32(i)), o.Store.MaxOffset(message.ScheduleTopic, int32(i))
		s.offsets[i] = min(max(s.offsets[i], lo), hi)
	}
	return s, notes, nil
}

// Wake tells the scheduler that a message was scheduled. It never blocks.
func (s *Scheduler) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Offsets returns, by level, how far delivery has come.
func (s *Scheduler) Offsets() map[int]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[int]int64{}
	for i, v := range s.offsets {
		out[i+1] = v
	}
	return out
}

// Encode returns the progress as the file and GET_ALL_DELAY_OFFSET have it.
func (s *Scheduler) Encode() ([]byte, error) {
	offsets := s.Offsets()
	s.mu.Lock()
	defer s.mu.Unlock()
	for level, v := range offsets {
		if v == 0 {
			delete(offsets, level)
		}
	}
	return json.Marshal(file{DataVersion: s.version, OffsetTable: offsets})
}

// Save writes the progress when it changed.
func (s *Scheduler) Save(now time.Time) error {
	s.mu.Lock()
	dirty := s.dirty
	if s.dirty = false; dirty {
		s.version = s.version.Advance(now.UnixMilli())
	}
	s.mu.Unlock()
	if !dirty {
		return nil
	}
	b, err := s.Encode()
	if err == nil {
		err = metafile.Save(s.o.FS, s.file, b)
	}
	if err != nil {
		s.mu.Lock()
		s.dirty = true
		s.mu.Unlock()
	}
	return err
}

// Run delivers until ctx ends, then writes the progress.
func (s *Scheduler) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	persist := time.NewTicker(s.o.PersistInterval)
	defer persist.Stop()
	for {
		select {
		case <-ctx.Done():
			return s.Save(time.Now())
		case <-persist.C:
			if err := s.Save(time.Now()); err != nil {
				s.o.Logger.Error("delay: progress could not be written, it is tried again", "error", err)
			}
			continue
		case <-s.wake:
		case <-timer.C:
		}
		timer.Reset(s.round(ctx))
	}
}

// retryAfter is how long a level that failed to deliver rests.
const retryAfter = 100 * time.Millisecond

// round delivers what is due and returns how long until something is.
func (s *Scheduler) round(ctx context.Context) time.Duration {
	next := time.Hour
	for level := 1; level <= len(s.offsets); level++ {
		next = min(next, s.deliverLevel(ctx, level))
	}
	return next
}

// Due returns how long until an entry is due, 0 when it is already. An entry that would wait longer than its level's delay
// (the levels were changed, or the clock went back) is due now.
func Due(deliverAt int64, delay time.Duration, now time.Time) time.Duration {
	left := time.Duration(deliverAt-now.UnixMilli()) * time.Millisecond
	if left <= 0 || left > delay {
		return 0
	}
	return left
}

// deliverLevel delivers the level's due messages in the queue's order, at most a window of them, and returns how long
// until its next one is due. A backlog thus neither holds up the other levels nor the writing of the progress.
func (s *Scheduler) deliverLevel(ctx context.Context, level int) time.Duration {
	if ctx.Err() != nil {
		return time.Hour
	}
	queue, delay := int32(level-1), s.o.Levels.Delay(level)
	s.mu.Lock()
	at := s.offsets[queue]
	s.mu.Unlock()
	at = max(at, s.o.Store.MinOffset(message.ScheduleTopic, queue))
	wait := time.Duration(0) // a full window: the rest is looked at in the next round
	var flights []*flight
	for len(flights) < window {
		physical, _, deliverAt, ok := s.o.Store.QueueEntry(message.ScheduleTopic, queue, at+int64(len(flights)))
		if !ok {
			wait = time.Hour
			break
		}
		if wait = Due(deliverAt, delay, time.Now()); wait > 0 {
			break
		}
		flights = append(flights, s.deliver(physical))
	}
	done := 0
	for _, f := range flights {
		err := <-f.done
		if errors.Is(err, store.ErrIllegal) { // it would be refused every time
			s.o.Logger.Error("delay: a scheduled message can't be stored and is passed over", "level", level, "offset", at+int64(done), "error", err)
			err = nil
		}
		if err != nil {
			s.o.Logger.Warn("delay: delivery failed, it is tried again", "level", level, "offset", at+int64(done), "error", err)
			break
		}
		done++
	}
	if done > 0 {
		s.mu.Lock()
		s.offsets[queue], s.dirty = at+int64(done), true
		s.mu.Unlock()
	}
	if done < len(flights) {
		return retryAfter
	}
	return wait
}

// flight is one delivery on its way through the store.
type flight struct {
	m    message.Message
	done chan error
}

// Appended implements store.Waiter.
func (f *flight) Appended(r store.Result) {
	f.done <- r.Err
}

// deliver sends one message on its way. One that can't be read or rebuilt is passed over, as in Java: it would
// hold up its level for ever.
func (s *Scheduler) deliver(physical int64) *flight {
	f := &flight{done: make(chan error, 1)}
	rec, release, err := s.o.Store.Record(physical)
	if err == nil {
		defer release()
		if _, err = message.DecodeRecord(rec, &f.m, false); err == nil {
			err = Delivered(&f.m)
		}
	}
	if err != nil {
		s.o.Logger.Error("delay: a scheduled message can't be delivered and is passed over", "physicalOffset", physical, "error", err)
		f.done <- nil
		return f
	}
	if f.m.Topic == message.HalfTopic {
		f.done <- nil
		return f
	}
	s.o.Prepare(&f.m)
	s.o.Store.Append(&f.m, f)
	return f
}
