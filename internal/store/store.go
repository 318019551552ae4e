package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/vfs"
)

// FlushMode says when a send is answered.
type FlushMode int

// The flush modes.
const (
	SyncFlush  FlushMode = iota // when it is on the disk
	AsyncFlush                  // when the operating system has it; flushed every FlushInterval
)

// String returns RocketMQ's name of the mode.
func (m FlushMode) String() string {
	if m == AsyncFlush {
		return "ASYNC_FLUSH"
	}
	return "SYNC_FLUSH"
}

// Options are a store's settings. Zero fields take Java's defaults.
type Options struct {
	Dir    string // storePathRootDir
	LogDir string // storePathCommitLog; default Dir/commitlog
	FS     vfs.FS // default the operating system's
	Logger *slog.Logger
	Now    func() time.Time // default time.Now

	Flush         FlushMode
	FlushInterval time.Duration // of AsyncFlush; default 500 ms

	SegmentSize int64 // mappedFileSizeCommitLog; default 1 GiB
	QueueSize   int64 // mappedFileSizeConsumeQueue, a multiple of 20; default 6,000,000
	IndexOff    bool  // messageIndexEnable=false
	IndexSlots  int   // maxHashSlotNum; default 5,000,000
	IndexSize   int   // maxIndexNum; default 20,000,000

	MaxMessage int // maxMessageSize, bytes of a body; default 4 MiB
	MaxBatch   int // bytes that may wait for the committer before Append blocks; default 32 MiB

	// DelayLevels are the delays of SCHEDULE_TOPIC_XXXX: a queue entry of that topic holds the time of delivery.
	DelayLevels []time.Duration

	MemoryBytes       int64 // the machine's; with InMemoryRatio decides what counts as in memory. Default 8 GiB
	InMemoryRatio     int   // accessMessageInMemoryMaxRatio, percent; < 0: nothing is in memory. Default 40
	MaxCountInMemory  int   // maxTransferCountOnMessageInMemory; default 32
	MaxBytesInMemory  int   // maxTransferBytesOnMessageInMemory; default 256 KiB
	MaxCountOnDisk    int   // maxTransferCountOnMessageInDisk; default 8
	MaxBytesOnDisk    int   // maxTransferBytesOnMessageInDisk; default 64 KiB
	MaxOpenQueueFiles int   // default 512

	// CheckpointInterval is how often consume queues, index and checkpoint are written while messages arrive; an
	// opening after a crash reads what arrived since. Default 10 s, and after 32 MiB at the latest.
	CheckpointInterval time.Duration

	// Rebuild, for repairs: the queues it accepts, and with RebuildIndex the index, are made anew from the whole log
	// while opening.
	Rebuild      func(topic string, queueID int32) bool
	RebuildIndex bool

	Listener Listener // may be nil
	// Dropped, when there is one, is told what cleaning deleted of a queue: offsets from one up to another. It must not
	// call the store.
	Dropped func(topic string, queueID int32, from, to int64)
}

// Listener is told of messages that became readable, in order of the log, on the committer's goroutine. It must
// not block, and keeps nothing of props.
type Listener interface {
	Arrived(topic string, queueID int32, nextOffset int64, tagsCode int64)
}

// Waiter waits for an append.
type Waiter interface {
	// Appended is called exactly once, by the committer, or by Append itself when it refuses. It must not block.
	Appended(Result)
}

// Result is how an append went.
type Result struct {
	Err            error // nil: stored, and as safe as the flush mode promises
	PhysicalOffset int64 // of the first record
	QueueOffset    int64 // of the first record
	StoreTimestamp int64 // ms
	Count          int   // records
	Bytes          int   // of all records
	Sizes          []int32
}

// Errors of the store.
var (
	// ErrLocked: another broker, of whichever make, has the folder open.
	ErrLocked = vfs.ErrLocked
	// ErrClosed: the store is closed or closing.
	ErrClosed = errors.New("the store is closed")
	// ErrIllegal: the message can't be stored as it is; the text says why.
	ErrIllegal = errors.New("the message is illegal")
	// ErrDiskFull: the disk is full. The store accepts messages again by itself when there is room.
	ErrDiskFull = errors.New("the disk is full")
	// ErrLogFailed: a write or flush failed; the store accepts nothing more until it is opened again.
	ErrLogFailed = errors.New("the commit log failed")
	// ErrNotFound: there is no such record.
	ErrNotFound = errors.New("no such record")
	// ErrDamaged: the store's files contradict each other in a way that opening must not paper over.
	ErrDamaged = errors.New("the store is damaged")
)

// Store is an open store. All methods are safe for concurrent use.
type Store struct {
	o    Options
	fs   vfs.FS
	log  *slog.Logger
	lock io.Closer

	// mu guards the places in the log that are handed out.
	mu       sync.Mutex
	filling  *writeBatch
	spare    *writeBatch
	end      int64 // where the next record goes
	segEnd   int64 // end of the segment that end lies in
	state    error // why appends are refused, or nil
	room     sync.Cond
	lastTime int64 // store times don't go back

	kick chan struct{} // committer: the batch isn't empty

	makeMu   sync.Mutex // held by who makes a segment
	segMu    sync.RWMutex
	segments []*segment // ascending, without gaps

	queueMu     sync.RWMutex
	queues      map[queueKey]*queue
	onDisk      map[string]map[int32]bool // topics with a folder; nil: its queues were not looked at yet
	batchTopics map[string]bool           // topics with batch consume queues; fixed after opening
	files       *fileCache

	index *index // nil: none is kept

	recovered  int64      // where recovery found the log's end; fixed after opening
	scanAll    bool       // opening: look at each unit of a queue
	shortFiles shortFiles // opening: what a queue's file that is too short means

	posMu      sync.Mutex
	pos        position
	dispatched atomic.Int64 // pos.end: up to there everything is visible
	flushed    atomic.Int64 // physical offset up to which the log is durable
	health     atomic.Pointer[error]
	counters   Counters
	complained atomic.Int64 // ms: when a reader's trouble was last logged

	dirtyMu    sync.Mutex
	dirty      []*queue              // with units that wait
	tailBytes  atomic.Int64          // of all units that wait
	queuesFail atomic.Pointer[error] // why the last flush of queues failed
	overfull   atomic.Bool           // the disk is fuller than CleanPolicy allows

	// flushMu is held by who writes consume-queue files or the checkpoint, cleans or deletes.
	flushMu       sync.Mutex
	unsynced      map[queueFileKey]bool
	dirtyDirs     map[string]bool  // with new or removed files
	derivedErr    error            // a flush of queues or index failed
	lastComplaint time.Time        // the background's
	deletedTopics map[string]int64 // up to where the log holds records of topics that were deleted
	checkpointed  atomic.Int64

	stop   chan struct{}
	hurry  chan struct{} // background: much waits
	wg     sync.WaitGroup
	closed atomic.Bool

	// the committer's
	dirtySeg  *segment // written last
	unclean   span     // a failed write may have left bytes there
	wrote     bool     // the batch at hand came to its first write
	diskFull  bool
	unchecked int64 // bytes written since the disk's room was looked at

	reserve int64 // bytes of the disk that appends leave to the rest; fixed after opening
}

// span is a range of physical offsets.
type span struct{ from, to int64 }

// Counters count what the store did since it was opened.
type Counters struct {
	Records, Bytes, Batches, Flushes, Refused atomic.Int64
}

// Counters returns the store's counters.
func (s *Store) Counters() *Counters { return &s.counters }

type queueKey struct {
	topic string
	id    int32
}

func (o *Options) setDefaults() {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.LogDir == "" {
		o.LogDir = path.Join(o.Dir, "commitlog")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	defInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	defDur := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.SegmentSize, 1<<30)
	def(&o.QueueSize, 6_000_000)
	def(&o.MemoryBytes, 8<<30)
	defInt(&o.IndexSlots, 5_000_000)
	defInt(&o.IndexSize, 20_000_000)
	defInt(&o.MaxMessage, 4<<20)
	defInt(&o.MaxBatch, 32<<20)
	defInt(&o.InMemoryRatio, 40)
	defInt(&o.MaxCountInMemory, 32)
	defInt(&o.MaxBytesInMemory, 256<<10)
	defInt(&o.MaxCountOnDisk, 8)
	defInt(&o.MaxBytesOnDisk, 64<<10)
	defInt(&o.MaxOpenQueueFiles, 512)
	defDur(&o.FlushInterval, 500*time.Millisecond)
	defDur(&o.CheckpointInterval, 10*time.Second)
}

// Open locks the folder, loads and recovers what is in it, and starts the store.
func Open(o Options) (*Store, error) {
	o.setDefaults()
	if o.QueueSize%queueUnit != 0 {
		return nil, fmt.Errorf("consume-queue file size %d is no multiple of %d", o.QueueSize, queueUnit)
	}
	if o.SegmentSize < 1024 {
		return nil, fmt.Errorf("commit-log file size %d: at least 1024 bytes are needed", o.SegmentSize)
	}
	s := &Store{
		o: o, fs: o.FS, log: o.Logger, queues: make(map[queueKey]*queue), kick: make(chan struct{}, 1), stop: make(chan struct{}), hurry: make(chan struct{}, 1),
		unsynced: make(map[queueFileKey]bool), dirtyDirs: make(map[string]bool),
		filling: new(writeBatch), spare: new(writeBatch), files: newFileCache(o.FS, o.MaxOpenQueueFiles),
	}
	s.room.L = &s.mu
	if err := CheckKind(o.FS, o.Dir, o.LogDir); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	for _, d := range []string{o.Dir, o.LogDir, s.queueRoot(), path.Join(o.Dir, "index"), path.Join(o.Dir, "config")} {
		if err := o.FS.MkdirAll(d); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	lock, err := o.FS.Lock(path.Join(o.Dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", o.Dir, err)
	}
	s.lock = lock
	if err := s.open(); err != nil {
		s.closeFiles()
		_ = lock.Close()
		return nil, fmt.Errorf("open store %s: %w", o.Dir, err)
	}
	s.wg.Go(s.commitLoop)
	s.wg.Go(s.maintain)
	return s, nil
}

// open recovers the store. The abort file is there before anything is changed, and goes again when a store that was
// stopped cleanly can't be opened.
func (s *Store) open() error {
	clean, err := s.cleanStop()
	if err != nil {
		return err
	}
	if err := s.writeAbort(); err != nil {
		return err
	}
	if total, _, err := s.fs.Usage(s.o.LogDir); err == nil {
		s.reserve = int64(min(total/16, maxReserve))
	}
	if err = s.loadSegments(); err == nil {
		err = s.recover(clean)
	}
	if err != nil && clean {
		err = errors.Join(err, s.fs.Remove(path.Join(s.o.Dir, "abort")))
	}
	return err
}

func (s *Store) queueRoot() string { return path.Join(s.o.Dir, "consumequeue") }

// cleanStop reports whether the last broker here, of whichever make, stopped cleanly: no abort file.
func (s *Store) cleanStop() (bool, error) {
	_, err := s.fs.Stat(path.Join(s.o.Dir, "abort"))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

func (s *Store) writeAbort() error {
	f, err := s.fs.OpenFile(path.Join(s.o.Dir, "abort"), os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	// That it exists is what counts: a store on a full disk must open all the same.
	if _, err = f.WriteAt(fmt.Append(nil, os.Getpid()), 0); err == nil || isFull(err) {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), s.fs.SyncDir(s.o.Dir))
}

// Health returns why the store accepts no messages, or nil.
func (s *Store) Health() error {
	if p := s.health.Load(); p != nil {
		return *p
	}
	return nil
}

// Put appends m and waits for the result, or for ctx: then the message may be stored all the same.
func (s *Store) Put(ctx context.Context, m *message.Message) (Result, error) {
	w := make(chanWaiter, 1)
	s.Append(m, w)
	select {
	case r := <-w:
		return r, r.Err
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
}

type chanWaiter chan Result

func (w chanWaiter) Appended(r Result) { w <- r }

// MinPhysical returns the physical offset at which the log begins.
func (s *Store) MinPhysical() int64 {
	s.segMu.RLock()
	defer s.segMu.RUnlock()
	if len(s.segments) == 0 {
		return 0
	}
	return s.segments[0].base
}

// MaxPhysical returns the physical offset behind the last visible record.
func (s *Store) MaxPhysical() int64 { return s.dispatched.Load() }

// Dir returns the store's folder.
func (s *Store) Dir() string { return s.o.Dir }

// LogDir returns the commit log's folder.
func (s *Store) LogDir() string { return s.o.LogDir }

// Close stops the store: it refuses new messages, writes and answers those that wait, flushes everything, writes
// the checkpoint, removes the abort file and frees the folder. A second call does nothing.
func (s *Store) Close() error {
	if !s.closed.CompareAndSwap(false, true) {
		return nil
	}
	s.mu.Lock()
	if s.state == nil {
		s.state = ErrClosed
	}
	s.room.Broadcast()
	s.mu.Unlock()
	close(s.stop)
	s.wg.Wait()

	var err error
	if s.Health() == nil && s.unclean == (span{}) {
		if err = s.checkpoint(); err == nil {
			err = s.dropUnusedSegments()
		}
		if err == nil {
			err = errors.Join(s.fs.Remove(path.Join(s.o.Dir, "abort")), s.fs.SyncDir(s.o.Dir))
		}
	}
	s.closeFiles()
	return errors.Join(err, s.lock.Close())
}

func (s *Store) closeFiles() {
	s.files.closeAll()
	if s.index != nil {
		s.index.close()
	}
	s.segMu.Lock()
	defer s.segMu.Unlock()
	for _, g := range s.segments {
		g.unref()
	}
	s.segments = nil
}
