package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/vfs"
)

func TestAppendRefuses(t *testing.T) {
	o := smallOptions(vfs.NewMem())
	o.MaxMessage = 1000
	s := mustOpen(t, o)
	defer s.Close()
	long := strings.Repeat("t", 128)
	for name, c := range map[string]struct {
		m    message.Message
		want string // "": accepted
	}{
		"plain":                    {message.Message{Topic: "T", Body: []byte("x")}, ""},
		"empty body":               {message.Message{Topic: "T"}, ""},
		"no topic":                 {message.Message{Body: []byte("x")}, "topic name"},
		"long topic":               {message.Message{Topic: long, Body: []byte("x")}, "topic name"},
		"long retry topic":         {message.Message{Topic: "%RETRY%" + long, Body: []byte("x")}, ""},
		"much too long":            {message.Message{Topic: "%RETRY%" + long + long, Body: []byte("x")}, "topic name"},
		"a path":                   {message.Message{Topic: "../T", Body: []byte("x")}, "topic name"},
		"the folder":               {message.Message{Topic: "..", Body: []byte("x")}, "topic name"},
		"negative queue":           {message.Message{Topic: "T", QueueID: -1, Body: []byte("x")}, "queue id"},
		"body at the limit":        {message.Message{Topic: "T", Body: make([]byte, 1000)}, ""},
		"body over the limit":      {message.Message{Topic: "T", Body: make([]byte, 1001)}, "maxMessageSize"},
		"properties too long":      {message.Message{Topic: "T", Body: []byte("x"), Properties: bytes.Repeat([]byte("p"), 32768)}, "properties"},
		"properties over a file":   {message.Message{Topic: "T", Body: []byte("x"), Properties: bytes.Repeat([]byte("p"), 4000)}, "record"},
		"properties end in a zero": {message.Message{Topic: "T", Body: []byte("x"), Properties: []byte("a\x01b\x00")}, "zero"},
		"inner batch":              {message.Message{Topic: "T", Body: []byte("x"), SysFlag: message.InnerBatch}, "inner batches"},
	} {
		_, err := s.Put(t.Context(), &c.m)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrIllegal) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	batch := func(ms ...message.Message) error {
		w := make(chanWaiter, 1)
		s.AppendBatch(ms, w)
		return (<-w).Err
	}
	x := message.Message{Topic: "T", Body: []byte("x")}
	other := x
	other.QueueID = 1
	half := message.Message{Topic: "T", Body: make([]byte, 501)}
	if batch(x, x) != nil {
		t.Error("a batch is refused")
	}
	for name, err := range map[string]error{"empty": batch(), "two queues": batch(x, other), "too large": batch(half, half)} {
		if !errors.Is(err, ErrIllegal) {
			t.Errorf("batch, %s: %v", name, err)
		}
	}
	if got := s.MaxOffset("T", 0); got != 5 {
		t.Errorf("queue ends at %d", got)
	}
}

// TestTransactionRecords: prepared and rolled-back records have no place in a queue.
func TestTransactionRecords(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, smallOptions(m))
	props := message.AppendProperty(nil, message.PropertyUniqueKey, "U")
	for i, flag := range []message.SysFlag{message.Prepared, message.Rollback, message.Commit, message.TransactionNot} {
		r, err := s.Put(t.Context(), &message.Message{Topic: "T", Body: []byte{byte('0' + i)}, SysFlag: flag, Properties: props})
		if want := int64(max(i-2, 0)); err != nil || r.QueueOffset != want {
			t.Errorf("flag %x: %+v, %v", int(flag), r, err)
		}
	}
	for range 2 {
		if got := read(t, s, "T", 0); fmt.Sprint(got) != "[2 3]" {
			t.Errorf("%v", got)
		}
		q, err := s.Query("T", "U", 9, 0, 1<<62)
		if err != nil || len(q.Records) != 3 { // all but the rolled-back one
			t.Errorf("%d by key, %v", len(q.Records), err)
		}
		q.Release()
		k := m.Kill()
		_ = s.Close()
		s = mustOpen(t, smallOptions(k))
	}
	_ = s.Close()
}

func TestScheduledEntries(t *testing.T) {
	m := vfs.NewMem()
	o := smallOptions(m)
	o.DelayLevels = []time.Duration{time.Second, 5 * time.Second}
	s := mustOpen(t, o)
	want := []int64{}
	for i, c := range []struct {
		level string
		delay int64 // ms; < 0: the tag's hash
	}{{"1", 1000}, {"2", 5000}, {"9", 5000}, {"0", -1}, {"x", -1}, {"", -1}} {
		props := message.AppendProperty(nil, message.PropertyTags, "a")
		if c.level != "" {
			props = message.AppendProperty(props, message.PropertyDelayLevel, c.level)
		}
		r, err := s.Put(t.Context(), &message.Message{Topic: "SCHEDULE_TOPIC_XXXX", Body: []byte("x"), Properties: props})
		if err != nil {
			t.Fatal(err)
		}
		code := int64('a')
		if c.delay >= 0 {
			code = r.StoreTimestamp + c.delay
		}
		want = append(want, code)
		if _, _, got, ok := s.QueueEntry("SCHEDULE_TOPIC_XXXX", 0, int64(i)); !ok || got != code {
			t.Errorf("level %q: tags code %d, want %d", c.level, got, code)
		}
	}
	k := m.Kill() // the codes are made again from the log
	_ = s.Close()
	o.FS = k
	s = mustOpen(t, o)
	defer s.Close()
	for i, code := range want {
		if _, _, got, ok := s.QueueEntry("SCHEDULE_TOPIC_XXXX", 0, int64(i)); !ok || got != code {
			t.Errorf("entry %d after a crash: %d, want %d", i, got, code)
		}
	}
}

func TestGetLimits(t *testing.T) {
	o := smallOptions(vfs.NewMem())
	o.SegmentSize, o.QueueSize = 1<<20, 20*1000
	s := mustOpen(t, o)
	defer func() { _ = s.Close() }()
	for i := range 2000 {
		put(t, s, "T", 0, fmt.Sprintf("%04d", i)+strings.Repeat("x", 96))
	}
	phys, size, _, _ := s.QueueEntry("T", 0, 1990)
	lastTen := s.MaxPhysical() - phys
	var r GetResult
	for _, c := range []struct {
		name         string
		at           int64
		num, bytes   int
		f            Filter
		tune         func(*Options)
		status       GetStatus
		count        int
		next         int64
		slow         bool
		lastInMemory int64 // bytes; 0: everything
	}{
		{name: "all that was asked for", at: 0, num: 5, status: Found, count: 5, next: 5},
		{name: "no number is one", at: 7, num: 0, status: Found, count: 1, next: 8},
		{name: "32 in memory", at: 0, num: 100, status: Found, count: 32, next: 32},
		{name: "bytes asked for", at: 0, num: 100, bytes: 3*int(size) + 1, status: Found, count: 3, next: 3},
		{name: "the first is always taken", at: 0, num: 100, bytes: 1, status: Found, count: 1, next: 1},
		{name: "bytes in memory", at: 0, num: 100, tune: func(o *Options) { o.MaxBytesInMemory = 4 * int(size) }, status: Found, count: 4, next: 4},
		{name: "8 on disk", at: 0, num: 100, lastInMemory: lastTen, status: Found, count: 8, next: 8, slow: true},
		{name: "bytes on disk", at: 0, num: 100, lastInMemory: lastTen, tune: func(o *Options) { o.MaxBytesOnDisk = 2 * int(size) }, status: Found, count: 2, next: 2, slow: true},
		{name: "in memory behind the disk's part", at: 1990, num: 100, lastInMemory: lastTen, status: Found, count: 10, next: 2000},
		{name: "nothing is in memory", at: 1990, num: 100, tune: func(o *Options) { o.InMemoryRatio = -1 }, status: Found, count: 8, next: 1998, slow: true},
		{name: "a scan looks at 800", at: 3, num: 32, f: tagFilter(77), status: NoMatchedMessage, next: 803},
		{name: "a large number looks further", at: 3, num: 1500, f: tagFilter(77), status: NoMatchedMessage, next: 1503},
		{name: "a scan over the end", at: 1700, num: 32, f: tagFilter(77), status: NoMatchedMessage, next: 2000},
		{name: "by record", at: 0, num: 32, f: bodyFilter("0799"), status: Found, count: 1, next: 800},
		{name: "by record, too far", at: 0, num: 32, f: bodyFilter("0800"), status: NoMatchedMessage, next: 800},
	} {
		mustClose(t, s)
		tuned := o
		if c.tune != nil {
			c.tune(&tuned)
		}
		if c.lastInMemory > 0 {
			tuned.MemoryBytes, tuned.InMemoryRatio = c.lastInMemory*100, 1
		}
		s = mustOpen(t, tuned)
		s.Get("T", 0, c.at, c.num, c.bytes, c.f, &r)
		if r.Status != c.status || r.Count != c.count || len(r.Records) != c.count || r.NextOffset != c.next || r.Slow != c.slow {
			t.Errorf("%s: %v, %d messages, next %d, slow %v", c.name, r.Status, r.Count, r.NextOffset, r.Slow)
		}
		if r.MinOffset != 0 || r.MaxOffset != 2000 {
			t.Errorf("%s: bounds %d..%d", c.name, r.MinOffset, r.MaxOffset)
		}
		r.Release()
	}
	if !s.InMemory("T", 0, 0) || s.InMemory("T", 0, 2000) || s.InMemory("none", 0, 0) {
		t.Error("InMemory")
	}
	if GetStatus(OffsetOverflowBadly).String() != "OFFSET_OVERFLOW_BADLY" || NoMessageInQueue.String() != "NO_MESSAGE_IN_QUEUE" {
		t.Error("names of statuses")
	}
}

type bodyFilter string

func (bodyFilter) MatchTagsCode(int64) bool      { return true }
func (f bodyFilter) MatchRecord(rec []byte) bool { return bytes.Contains(rec, []byte(f)) }

// TestDiskFailsForAReader: a consumer must not be told to go on behind messages that couldn't be read just now.
func TestDiskFailsForAReader(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, smallOptions(m))
	for i := range 20 {
		put(t, s, "T", 0, fmt.Sprint(i))
	}
	mustClose(t, s)
	s = mustOpen(t, smallOptions(m))
	defer s.Close()
	var r GetResult
	get := func(at int64) {
		t.Helper()
		s.Get("T", 0, at, 1, 0, nil, &r)
		if r.Status != OffsetFoundNull || r.NextOffset != at {
			t.Errorf("%v, next %d", r.Status, r.NextOffset)
		}
		r.Release()
	}
	fail := func(op, name string) error {
		if strings.Contains(name, "consumequeue") {
			return syscall.EIO
		}
		return nil
	}
	m.FailWith(fail)
	get(5) // not loaded yet
	m.FailWith(nil)
	if got := s.MaxOffset("T", 0); got != 20 {
		t.Errorf("ends at %d", got)
	}
	m.FailWith(fail)
	get(5)
	m.FailWith(func(op, name string) error {
		if op == "load" {
			return syscall.EIO
		}
		return nil
	})
	get(5)
	m.FailWith(nil)
	if got := read(t, s, "T", 0); len(got) != 20 {
		t.Errorf("%d messages", len(got))
	}
}

// TestClosed: a store that is closed refuses, and tells no consumer to move.
func TestClosed(t *testing.T) {
	s := mustOpen(t, smallOptions(vfs.NewMem()))
	put(t, s, "T", 0, "x")
	mustClose(t, s)
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	m := message.Message{Topic: "T", Body: []byte("x")}
	if _, err := s.Put(t.Context(), &m); !errors.Is(err, ErrClosed) {
		t.Errorf("put: %v", err)
	}
	if err := s.DeleteTopic("T"); !errors.Is(err, ErrClosed) {
		t.Errorf("delete: %v", err)
	}
	var r GetResult
	s.Get("T", 0, 0, 1, 0, nil, &r)
	if r.Status != OffsetFoundNull || r.NextOffset != 0 {
		t.Errorf("get: %v, next %d", r.Status, r.NextOffset)
	}
	r.Release()
	if _, _, err := s.Record(0); !errors.Is(err, ErrNotFound) {
		t.Errorf("record: %v", err)
	}
}

// blockingFS lets writes of the log wait.
type blockingFS struct {
	vfs.FS
	gate chan struct{}
}

func (b blockingFS) OpenFile(name string, flag int) (vfs.File, error) {
	f, err := b.FS.OpenFile(name, flag)
	if strings.Contains(name, "commitlog/") {
		f = blockingFile{f, b.gate}
	}
	return f, err
}

type blockingFile struct {
	vfs.File
	gate chan struct{}
}

func (f blockingFile) WriteAt(b []byte, at int64) (int, error) {
	<-f.gate
	return f.File.WriteAt(b, at)
}

// TestBackPressure: while the disk is busy appends gather in one batch up to a bound, then Append waits; closing
// answers everyone.
func TestBackPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		o := smallOptions(nil)
		o.FS, o.MaxBatch, o.SegmentSize, o.CheckpointInterval = blockingFS{vfs.NewMem(), gate}, 2000, 1<<20, 1000*time.Hour
		s := mustOpen(t, o)
		var answered, appended atomic.Int64
		m := message.Message{Topic: "T", Body: make([]byte, 400)}
		var wg sync.WaitGroup
		send := func() {
			s.Append(&m, waiterFunc(func(r Result) {
				if r.Err != nil && !errors.Is(r.Err, ErrClosed) {
					t.Error(r.Err)
				}
				answered.Add(1)
			}))
			appended.Add(1)
		}
		send()
		synctest.Wait() // it is being written
		for range 19 {
			wg.Go(send)
		}
		synctest.Wait()
		// Five more fill the batch up to its bound and over it.
		if n := appended.Load(); n < 5 || n > 7 || answered.Load() != 0 {
			t.Errorf("%d appends returned, %d answered", n, answered.Load())
		}
		gate <- struct{}{}
		synctest.Wait()
		if answered.Load() != 1 {
			t.Errorf("%d answered after the first write", answered.Load())
		}
		go func() {
			for range gate {
			}
		}()
		done := make(chan error)
		go func() { done <- s.Close() }()
		synctest.Wait()
		close(gate)
		if err := <-done; err != nil {
			t.Error(err)
		}
		wg.Wait()
		if answered.Load() != 20 {
			t.Errorf("%d answered", answered.Load())
		}
	})
}

type waiterFunc func(Result)

func (f waiterFunc) Appended(r Result) { f(r) }

// TestBackground: flushes and checkpoints come by themselves.
func TestBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		o := smallOptions(m)
		o.Flush, o.FlushInterval, o.CheckpointInterval = AsyncFlush, 0, 0
		s := mustOpen(t, o)
		put(t, s, "T", 0, "x")
		if s.flushed.Load() != 0 {
			t.Error("flushed at once")
		}
		time.Sleep(600 * time.Millisecond)
		synctest.Wait()
		if s.flushed.Load() != s.MaxPhysical() {
			t.Error("not flushed after 0.6 s")
		}
		if s.checkpointed.Load() != 0 {
			t.Error("checkpoint after 0.6 s")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if s.checkpointed.Load() != s.MaxPhysical() {
			t.Error("no checkpoint after 10.6 s")
		}
		mustClose(t, s)
	})
}

// TestFailedBackgroundFlush: in unflushed mode it is the background that meets the failure; appends fail after it.
func TestFailedBackgroundFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		o := smallOptions(m)
		o.Flush = AsyncFlush
		s := mustOpen(t, o)
		put(t, s, "T", 0, "x")
		m.FailWith(func(op, name string) error {
			if op == "datasync" && strings.Contains(name, "commitlog") {
				return syscall.EIO
			}
			return nil
		})
		time.Sleep(time.Second)
		synctest.Wait()
		m.FailWith(nil)
		msg := message.Message{Topic: "T", Body: []byte("y")}
		if _, err := s.Put(t.Context(), &msg); !errors.Is(err, ErrLogFailed) || !errors.Is(s.Health(), ErrLogFailed) {
			t.Errorf("put: %v, health %v", err, s.Health())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s.flushed.Load() != 0 || s.checkpointed.Load() != 0 {
			t.Error("a flush after the failed one was believed")
		}
		if got := read(t, s, "T", 0); fmt.Sprint(got) != "[x]" {
			t.Errorf("%v", got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := m.Stat("/store/abort"); err != nil {
			t.Error("a failed store stopped as if it were clean")
		}
	})
}

// TestFailedFlushOfQueues: queues whose flush failed are written again by the next opening.
func TestFailedFlushOfQueues(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, smallOptions(m))
	put(t, s, "T", 0, "x")
	m.FailWith(func(op, name string) error {
		if op == "sync" && strings.Contains(name, "consumequeue") {
			return syscall.EIO
		}
		return nil
	})
	if err := s.checkpoint(); !errors.Is(err, syscall.EIO) {
		t.Errorf("checkpoint: %v", err)
	}
	m.FailWith(nil)
	if err := s.checkpoint(); !errors.Is(err, syscall.EIO) || s.checkpointed.Load() != 0 {
		t.Errorf("the checkpoint after it: %v", err)
	}
	put(t, s, "T", 0, "y")
	if err := s.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("close: %v", err)
	}
	s = mustOpen(t, smallOptions(m.Crash(nil)))
	defer s.Close()
	if got := read(t, s, "T", 0); fmt.Sprint(got) != "[x y]" {
		t.Errorf("%v", got)
	}
}

// TestFullDiskOfQueues: units that can't be written wait; when too many do, appends are refused until there is room.
func TestFullDiskOfQueues(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, smallOptions(m))
	defer s.Close()
	put(t, s, "T", 0, "x")
	m.FailWith(func(op, name string) error {
		if op == "write" && strings.Contains(name, "consumequeue") {
			return syscall.ENOSPC
		}
		return nil
	})
	if err := s.flushQueues(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("flush: %v", err)
	}
	put(t, s, "T", 0, "y")
	waiting := s.tailBytes.Swap(maxTailBytes + 1)
	msg := message.Message{Topic: "T", Body: []byte("z")}
	if _, err := s.Put(t.Context(), &msg); !errors.Is(err, ErrDiskFull) {
		t.Errorf("put: %v", err)
	}
	s.tailBytes.Store(waiting)
	m.FailWith(nil)
	if err := s.flushQueues(); err != nil || s.tailBytes.Load() != 0 {
		t.Errorf("flush: %v, %d bytes wait", err, s.tailBytes.Load())
	}
	put(t, s, "T", 0, "z")
	if got := read(t, s, "T", 0); fmt.Sprint(got) != "[x y z]" {
		t.Errorf("%v", got)
	}
}

func TestPutGivesUp(t *testing.T) {
	s := mustOpen(t, smallOptions(vfs.NewMem()))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 { // the answer may be quicker
		if _, err := s.Put(ctx, &message.Message{Topic: "T", Body: []byte("x")}); errors.Is(err, context.Canceled) {
			return
		}
	}
	t.Error("a cancelled context is never noticed")
}

func TestQuery(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	m := vfs.NewMem()
	o := smallOptions(m)
	o.SegmentSize, o.IndexSlots, o.IndexSize = 1<<20, 5, 30
	o.Now = func() time.Time { return now }
	s := mustOpen(t, o)
	store := func(topic, keys, unique string) {
		t.Helper()
		props := message.AppendProperty(nil, message.PropertyKeys, keys)
		if unique != "" {
			props = message.AppendProperty(props, message.PropertyUniqueKey, unique)
		}
		if _, err := s.Put(t.Context(), &message.Message{Topic: topic, Body: []byte(now.Format("15:04:05")), Properties: props}); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
	begin := now
	for i := range 100 {
		store("T", fmt.Sprintf("all  k%d 订单%d", i, i), fmt.Sprintf("U%d", i))
	}
	store("T2", "all", "")
	find := func(topic, key string, num int, from, to time.Time) int {
		t.Helper()
		r, err := s.Query(topic, key, num, from.UnixMilli(), to.UnixMilli())
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		if r.LastTimestamp != now.Add(-time.Second).UnixMilli() || r.LastPhysicalOffset <= 0 {
			t.Errorf("the index reaches to %d, %d", r.LastTimestamp, r.LastPhysicalOffset)
		}
		last := int64(-1)
		for _, rec := range r.Records {
			h, err := message.DecodeHeader(rec)
			if err != nil || h.PhysicalOffset <= last {
				t.Errorf("%v: %d after %d", err, h.PhysicalOffset, last)
			}
			last = h.PhysicalOffset
		}
		return len(r.Records)
	}
	check := func() {
		t.Helper()
		for _, c := range []struct {
			topic, key string
			num        int
			from, to   time.Duration
			want       int
		}{
			{"T", "k7", 10, 0, time.Hour, 1},
			{"T", "订单42", 10, 0, time.Hour, 1},
			{"T", "U99", 10, 0, time.Hour, 1},
			{"T", "k7 ", 10, 0, time.Hour, 0},
			{"T", "none", 10, 0, time.Hour, 0},
			{"T2", "k7", 10, 0, time.Hour, 0},
			{"T2", "all", 10, 0, time.Hour, 1},
			{"T", "all", 10, 0, time.Hour, 10},
			{"T", "all", 1000, 0, time.Hour, 64},
			{"T", "all", 1000, 10 * time.Second, 20 * time.Second, 11},
			{"T", "all", 1000, -2 * time.Hour, -time.Hour, 0},
			{"T", "all", 1000, time.Hour, 2 * time.Hour, 0},
		} {
			if got := find(c.topic, c.key, c.num, begin.Add(c.from), begin.Add(c.to)); got < c.want || got > c.want+2*min(c.want, 1) && c.num > c.want {
				t.Errorf("%s %s, %d from %v to %v: %d, want %d", c.topic, c.key, c.num, c.from, c.to, got, c.want)
			}
		}
	}
	check() // in memory
	if err := s.index.flush(); err != nil {
		t.Fatal(err)
	}
	if len(s.index.files) < 10 {
		t.Errorf("%d index files", len(s.index.files))
	}
	check() // in many files
	mustClose(t, s)
	s = mustOpen(t, o)
	check()
	mustClose(t, s)

	o.FS, o.IndexOff = vfs.NewMem(), true
	s = mustOpen(t, o)
	defer s.Close()
	put(t, s, "T", 0, "x")
	if r, err := s.Query("T", "kx", 1, 0, 1<<62); err != nil || len(r.Records) != 0 {
		t.Errorf("without an index: %d, %v", len(r.Records), err)
	}
}

// TestIndexTurnedOnLater: what was stored without an index is in it when it is kept again.
func TestIndexTurnedOnLater(t *testing.T) {
	m := vfs.NewMem()
	o := smallOptions(m)
	for i, off := range []bool{false, true, false} {
		o.IndexOff = off
		s := mustOpen(t, o)
		put(t, s, "T", 0, fmt.Sprint(i))
		mustClose(t, s)
	}
	s := mustOpen(t, o)
	defer s.Close()
	for i := range 3 {
		q, err := s.Query("T", fmt.Sprintf("k%d", i), 9, 0, 1<<62)
		if err != nil || len(q.Records) != 1 {
			t.Errorf("key %d: %d, %v", i, len(q.Records), err)
		}
		q.Release()
	}
}

// TestIndexThatCannotBeWritten: keys wait for it, and the checkpoint with them.
func TestIndexThatCannotBeWritten(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, smallOptions(m))
	put(t, s, "T", 0, "a")
	bad := func(op, name string) error {
		if op == "write" && strings.Contains(name, "/index/") {
			return syscall.ENOSPC
		}
		return nil
	}
	m.FailWith(bad)
	for range 3 {
		if err := s.checkpoint(); !errors.Is(err, syscall.ENOSPC) || s.checkpointed.Load() != 0 {
			t.Errorf("checkpoint: %v", err)
		}
	}
	for i := range 70 { // more than a file holds
		put(t, s, "T", 0, fmt.Sprint(i))
	}
	m.FailWith(nil)
	if err := s.checkpoint(); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"ka", "k0", "k69"} {
		q, err := s.Query("T", key, 9, 0, 1<<62)
		if err != nil || len(q.Records) != 1 {
			t.Errorf("%s: %d, %v", key, len(q.Records), err)
		}
		q.Release()
	}
	mustClose(t, s)
}

// TestSteadyStateAllocatesNothing: a send and a pull allocate nothing of their own.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	o := Options{Dir: t.TempDir(), Flush: AsyncFlush, SegmentSize: 16 << 20, CheckpointInterval: time.Hour, IndexOff: true}
	s := mustOpen(t, o)
	defer s.Close()
	m := benchMessage(512)
	w := make(chanWaiter, 1)
	put := func() {
		s.Append(&m, w)
		if r := <-w; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	for range 1000 {
		put()
	}
	if n := testing.AllocsPerRun(500, put); n > 0.5 { // the queue's tail grows now and then
		t.Errorf("an append allocates %v times", n)
	}
	var r GetResult
	get := func() {
		s.Get("bench", 0, 10, 32, 0, nil, &r)
		if r.Count != 32 {
			t.Fatal(r.Status)
		}
		r.Release()
	}
	get()
	if n := testing.AllocsPerRun(500, get); n > 0 {
		t.Errorf("a read allocates %v times", n)
	}
	if err := s.checkpoint(); err != nil {
		t.Fatal(err)
	}
	get()
	if n := testing.AllocsPerRun(500, get); n > 0 {
		t.Errorf("a read from files allocates %v times", n)
	}
}

// TestEverythingAtOnce runs all operations side by side, for the race detector.
func TestEverythingAtOnce(t *testing.T) {
	o := Options{Dir: t.TempDir(), Flush: AsyncFlush, SegmentSize: 256 << 10, QueueSize: 20 * 500, IndexSlots: 500, IndexSize: 5000,
		MaxOpenQueueFiles: 8, CheckpointInterval: 20 * time.Millisecond, FlushInterval: 5 * time.Millisecond, Listener: new(countingListener)}
	s := mustOpen(t, o)
	stop := make(chan struct{})
	var writers, others sync.WaitGroup
	const each = 3000
	for w := range 3 {
		writers.Go(func() {
			for i := range each {
				m := message.Message{Topic: fmt.Sprintf("T%d", w), QueueID: int32(i % 5), Body: fmt.Appendf(nil, "%d", i), Properties: message.AppendProperty(nil, message.PropertyKeys, fmt.Sprintf("k%d", i%50))}
				if _, err := s.Put(t.Context(), &m); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	loop := func(f func(i int)) {
		others.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					f(i)
				}
			}
		})
	}
	loop(func(i int) {
		var r GetResult
		topic := fmt.Sprintf("T%d", i%3)
		lo, hi := s.MinOffset(topic, int32(i%5)), s.MaxOffset(topic, int32(i%5))
		s.Get(topic, int32(i%5), lo+(hi-lo)/2, 32, 0, nil, &r)
		for _, rec := range r.Records {
			var m message.Message
			if _, err := message.DecodeRecord(rec, &m, true); err != nil || m.Topic != topic {
				t.Errorf("%v, topic %s", err, m.Topic)
			}
		}
		r.Release()
	})
	loop(func(i int) {
		r, err := s.Query(fmt.Sprintf("T%d", i%3), fmt.Sprintf("k%d", i%50), 32, 0, 1<<62)
		if err != nil {
			t.Error(err)
		}
		r.Release()
		s.OffsetByTime("T0", int32(i%5), time.Now().UnixMilli()-5, i%2 == 0)
	})
	loop(func(i int) {
		if _, err := s.Clean(CleanPolicy{Keep: 0, Hour: true, MaxFiles: 1}, time.Now().Add(time.Second)); err != nil {
			t.Error(err)
		}
		if i%3 == 0 {
			m := message.Message{Topic: "gone", Body: []byte("x")}
			if _, err := s.Put(t.Context(), &m); err != nil {
				t.Error(err)
			}
			if err := s.DeleteTopic("gone"); err != nil {
				t.Error(err)
			}
		}
		s.Queues(func(string, int32, int64, int64) {})
	})
	writers.Wait()
	close(stop)
	others.Wait()
	for w := range 3 {
		for id := range int32(5) {
			if got := s.MaxOffset(fmt.Sprintf("T%d", w), id); got != each/5 {
				t.Errorf("T%d %d ends at %d", w, id, got)
			}
		}
	}
	if n := o.Listener.(*countingListener).n.Load(); n < 3*each {
		t.Errorf("the listener heard of %d messages", n)
	}
	mustClose(t, s)
	s = mustOpen(t, o)
	defer s.Close()
	if got := s.MaxOffset("T2", 4); got != each/5 {
		t.Errorf("after reopening T2 4 ends at %d", got)
	}
}

type countingListener struct{ n atomic.Int64 }

func (l *countingListener) Arrived(string, int32, int64, int64) { l.n.Add(1) }
