package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/testkit"
	"github.com/apogeemq/apogee/internal/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func goldenOptions(dir string) Options {
	return Options{Dir: dir, SegmentSize: 65536, QueueSize: 20000, IndexSlots: 500, IndexSize: 2000,
		DelayLevels: []time.Duration{time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second}}
}

type goldenManifest struct {
	Records []struct {
		Blank          bool
		Topic          string
		QueueID        int32
		QueueOffset    int64
		PhysicalOffset int64
		Size           int
		SysFlag        int32
		MsgID          string
		Keys           string
	}
	ConsumeQueues map[string]struct{ Entries [][]int64 }
}

// TestGoldenStores opens stores that a Java broker left, after a clean stop and after kill -9 with undispatched
// records, and compares queues with what Java made of them; then closes and opens them again.
func TestGoldenStores(t *testing.T) {
	for name, manifest := range map[string]string{"clean": "clean", "crash": "crash_recovered", "crash_recovered": "crash_recovered"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(testkit.Untar(t, "testdata/"+name+".tar.gz", t.TempDir()), "store")
			raw, err := os.ReadFile("testdata/" + manifest + ".manifest.json")
			if err != nil {
				t.Fatal(err)
			}
			var want goldenManifest
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				s, err := Open(goldenOptions(dir))
				if err != nil {
					t.Fatal(err)
				}
				compareGolden(t, s, want)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, "abort")); !errors.Is(err, os.ErrNotExist) {
				t.Error("abort file is there after a clean stop")
			}
		})
	}
}

func compareGolden(t *testing.T, s *Store, want goldenManifest) {
	t.Helper()
	checked := 0
	for dir, q := range want.ConsumeQueues {
		units := q.Entries
		if !strings.HasPrefix(dir, "consumequeue/") || len(units) == 0 || len(units[0]) != 3 {
			continue
		}
		id, _ := strconv.Atoi(path.Base(dir))
		topic := path.Base(path.Dir(dir))
		if hi := s.MaxOffset(topic, int32(id)); hi != int64(len(units)) {
			t.Errorf("%s: max offset %d, want %d", dir, hi, len(units))
		}
		for i, u := range units {
			phys, size, tags, ok := s.QueueEntry(topic, int32(id), int64(i))
			if !ok || phys != u[0] || int64(size) != u[1] || tags != u[2] {
				t.Errorf("%s entry %d: %d %d %d %v, want %v", dir, i, phys, size, tags, ok, u)
			}
			rec, release, err := s.Record(phys)
			if err != nil || int64(len(rec)) != u[1] {
				t.Errorf("%s entry %d: %v", dir, i, err)
				continue
			}
			release()
			checked++
		}
	}
	if checked < 50 {
		t.Errorf("only %d entries compared", checked)
	}
	found := 0
	for _, r := range want.Records {
		if r.Blank || r.MsgID == "" || message.SysFlag(r.SysFlag).Transaction() == message.Rollback {
			continue
		}
		q, err := s.Query(r.Topic, r.MsgID, 32, 0, 1<<62)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range q.Records {
			var m message.Message
			if _, err := message.DecodeRecord(rec, &m, true); err == nil && m.PhysicalOffset == r.PhysicalOffset {
				found++
			}
		}
		q.Release()
	}
	if found < 50 {
		t.Errorf("only %d records found by their unique key", found)
	}
}

// smallOptions make every boundary near.
func smallOptions(fs vfs.FS) Options {
	return Options{Dir: "/store", FS: fs, SegmentSize: 4096, QueueSize: 20 * 8, IndexSlots: 16, IndexSize: 64, MaxOpenQueueFiles: 4,
		CheckpointInterval: time.Hour}
}

func put(t *testing.T, s *Store, topic string, queue int32, body string) Result {
	t.Helper()
	m := message.Message{Topic: topic, QueueID: queue, Body: []byte(body), Properties: message.AppendProperty(message.AppendProperty(nil, "TAGS", "t"+body[:1]), "KEYS", "k"+body)}
	r, err := s.Put(t.Context(), &m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func read(t *testing.T, s *Store, topic string, queue int32) []string {
	t.Helper()
	var out []string
	var r GetResult
	for at := s.MinOffset(topic, queue); ; {
		s.Get(topic, queue, at, 32, 1<<20, nil, &r)
		for i, rec := range r.Records {
			var m message.Message
			if _, err := message.DecodeRecord(rec, &m, true); err != nil {
				t.Fatal(err)
			}
			if m.QueueOffset != at+int64(i) || m.Topic != topic || m.QueueID != queue {
				t.Fatalf("%s %d at %d: got %s %d at %d", topic, queue, at+int64(i), m.Topic, m.QueueID, m.QueueOffset)
			}
			out = append(out, string(m.Body))
		}
		status, next := r.Status, r.NextOffset
		r.Release()
		if status != Found {
			return out
		}
		at = next
	}
}

func TestAppendAndGet(t *testing.T) {
	s, err := Open(smallOptions(vfs.NewMem()))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var r GetResult
	s.Get("T", 0, 0, 32, 0, nil, &r)
	if r.Status != NoMessageInQueue || r.NextOffset != 0 {
		t.Errorf("empty queue: %v %d", r.Status, r.NextOffset)
	}
	var want []string
	for i := range 100 {
		body := fmt.Sprintf("%03d-%s", i, strings.Repeat("x", i))
		if res := put(t, s, "T", 0, body); res.QueueOffset != int64(i) {
			t.Fatalf("queue offset %d, want %d", res.QueueOffset, i)
		}
		want = append(want, body)
	}
	if got := read(t, s, "T", 0); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v", got)
	}
	for _, c := range []struct {
		at     int64
		status GetStatus
		next   int64
	}{{100, OffsetOverflowOne, 100}, {101, OffsetOverflowBadly, 100}, {-1, OffsetTooSmall, 0}, {99, Found, 100}} {
		s.Get("T", 0, c.at, 32, 0, nil, &r)
		if r.Status != c.status || r.NextOffset != c.next {
			t.Errorf("at %d: %v, next %d", c.at, r.Status, r.NextOffset)
		}
		r.Release()
	}
	s.Get("T", 0, 0, 5, 0, nil, &r)
	if r.Count != 5 || r.NextOffset != 5 {
		t.Errorf("%d messages, next %d", r.Count, r.NextOffset)
	}
	r.Release()
	s.Get("T", 0, 0, 32, 0, tagFilter(message.TagsCode([]byte("none"))), &r)
	if r.Status != NoMatchedMessage || r.NextOffset != 100 {
		t.Errorf("filtered: %v, next %d", r.Status, r.NextOffset)
	}
	r.Release()
	q, err := s.Query("T", "k"+want[42], 32, 0, 1<<62)
	if err != nil || len(q.Records) != 1 || !bytes.Contains(q.Records[0], []byte(want[42])) {
		t.Errorf("by key: %d records, %v", len(q.Records), err)
	}
	q.Release()
	if _, err := Open(Options{Dir: "/store", FS: s.fs}); !errors.Is(err, ErrLocked) {
		t.Errorf("second open: %v", err)
	}
	big := message.Message{Topic: "T", Body: make([]byte, 5000)}
	if _, err := s.Put(t.Context(), &big); !errors.Is(err, ErrIllegal) {
		t.Errorf("too big: %v", err)
	}
}

type tagFilter int64

func (f tagFilter) MatchTagsCode(c int64) bool { return c == int64(f) }
func (f tagFilter) MatchRecord([]byte) bool    { return true }

// TestBatch stores batches across segment ends: each lies whole in one segment.
func TestBatch(t *testing.T) {
	s, err := Open(smallOptions(vfs.NewMem()))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 10 {
		var ms []message.Message
		for j := range 5 {
			ms = append(ms, message.Message{Topic: "B", QueueID: 1, Body: fmt.Appendf(nil, "%d-%d-%s", i, j, strings.Repeat("y", 100))})
		}
		w := make(chanWaiter, 1)
		s.AppendBatch(ms, w)
		r := <-w
		if r.Err != nil || r.Count != 5 || len(r.Sizes) != 5 || r.QueueOffset != int64(i*5) {
			t.Fatalf("%+v", r)
		}
		if r.PhysicalOffset/4096 != (r.PhysicalOffset+int64(r.Bytes)-1)/4096 {
			t.Errorf("batch at %d of %d bytes spans segments", r.PhysicalOffset, r.Bytes)
		}
	}
	if got := read(t, s, "B", 1); len(got) != 50 {
		t.Errorf("%d messages", len(got))
	}
}

func TestFailedFlushStopsTheLog(t *testing.T) {
	fs := vfs.NewMem()
	s, err := Open(smallOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "T", 0, "before")
	fs.FailWith(func(op, name string) error {
		if op == "datasync" && strings.Contains(name, "commitlog") {
			return syscall.EIO
		}
		return nil
	})
	m := message.Message{Topic: "T", Body: []byte("lost")}
	if _, err := s.Put(t.Context(), &m); !errors.Is(err, ErrLogFailed) || !errors.Is(err, syscall.EIO) {
		t.Errorf("put: %v", err)
	}
	fs.FailWith(nil)
	if _, err := s.Put(t.Context(), &m); !errors.Is(err, ErrLogFailed) {
		t.Errorf("put after the failure: %v", err)
	}
	if s.Health() == nil {
		t.Error("healthy")
	}
	if got := read(t, s, "T", 0); fmt.Sprint(got) != "[before]" {
		t.Errorf("reads: %v", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := fs.Stat("/store/abort"); err != nil {
		t.Error("a failed store stopped as if it were clean")
	}
}

func TestFullDiskRecoversByItself(t *testing.T) {
	fs := vfs.NewMem()
	s, err := Open(smallOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put(t, s, "T", 0, "one")
	fs.FailWith(func(op, name string) error {
		if op == "write" && strings.Contains(name, "commitlog") {
			return syscall.ENOSPC
		}
		return nil
	})
	m := message.Message{Topic: "T", Body: []byte("refused")}
	for range 3 {
		if _, err := s.Put(t.Context(), &m); !errors.Is(err, ErrDiskFull) {
			t.Errorf("put: %v", err)
		}
	}
	fs.FailWith(nil)
	if r := put(t, s, "T", 0, "two"); r.QueueOffset != 1 {
		t.Errorf("queue offset %d", r.QueueOffset)
	}
	if got := read(t, s, "T", 0); fmt.Sprint(got) != "[one two]" {
		t.Errorf("%v", got)
	}
}

func TestHoleRefusesToOpen(t *testing.T) {
	fs := vfs.NewMem()
	s, err := Open(smallOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		put(t, s, "T", 0, fmt.Sprintf("%03d%s", i, strings.Repeat("h", 200)))
	}
	crashed := fs.Crash(nil)
	_ = s.Close()
	f, err := crashed.OpenFile("/store/commitlog/"+fileName(4096), os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("garbage"), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(smallOptions(crashed)); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "store check") {
		t.Errorf("open: %v", err)
	}
}

func TestCleaning(t *testing.T) {
	fs := vfs.NewMem()
	s, err := Open(smallOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 100 {
		put(t, s, "T", 0, fmt.Sprintf("%03d%s", i, strings.Repeat("c", 200)))
	}
	var held GetResult
	s.Get("T", 0, 0, 1, 0, nil, &held)
	n, err := s.Clean(CleanPolicy{Keep: time.Hour, Hour: true, MaxFiles: 3}, time.Now().Add(2*time.Hour))
	if err != nil || n != 3 {
		t.Fatalf("%d files, %v", n, err)
	}
	if !bytes.Contains(held.Records[0], []byte("000c")) {
		t.Error("a record that was held changed")
	}
	held.Release()
	lo := s.MinOffset("T", 0)
	if lo == 0 || s.MinPhysical() != 3*4096 {
		t.Errorf("min offset %d, physical %d", lo, s.MinPhysical())
	}
	if got := read(t, s, "T", 0); len(got) != int(100-lo) {
		t.Errorf("%d messages from %d on", len(got), lo)
	}
	var r GetResult
	s.Get("T", 0, 0, 1, 0, nil, &r)
	if r.Status != OffsetTooSmall || r.NextOffset != lo {
		t.Errorf("%v %d", r.Status, r.NextOffset)
	}
	now := time.Now()
	files := []SegmentAge{{0, now.Add(-100 * time.Hour)}, {1, now.Add(-80 * time.Hour)}, {2, now}, {3, now}}
	for _, c := range []struct {
		p    CleanPolicy
		want int
	}{
		{CleanPolicy{Keep: 72 * time.Hour, MaxFiles: 10, CleanRatio: 75, ForceRatio: 85}, 0},
		{CleanPolicy{Keep: 72 * time.Hour, MaxFiles: 10, Hour: true, CleanRatio: 75, ForceRatio: 85}, 2},
		{CleanPolicy{Keep: 72 * time.Hour, MaxFiles: 1, Hour: true, CleanRatio: 75, ForceRatio: 85}, 1},
		{CleanPolicy{Keep: 72 * time.Hour, MaxFiles: 10, UsedRatio: 76, CleanRatio: 75, ForceRatio: 85}, 2},
		{CleanPolicy{Keep: 72 * time.Hour, MaxFiles: 10, UsedRatio: 90, CleanRatio: 75, ForceRatio: 85, ForceClean: true}, 3},
	} {
		if got := c.p.Expired(files, now); got != c.want {
			t.Errorf("%+v: %d, want %d", c.p, got, c.want)
		}
	}
}

// TestReserve: appends stop while the disk still has room for the rest of the store, so that it can be cleaned.
func TestReserve(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, smallOptions(m))
	put(t, s, "T", 0, "one")
	body := make([]byte, 2000)
	fill := func() error {
		for range 600 { // room is looked at each MiB
			if _, err := s.Put(t.Context(), &message.Message{Topic: "T", Body: body}); err != nil {
				return err
			}
		}
		return nil
	}
	m.SetFree(maxReserve + 1<<20)
	if err := fill(); err != nil {
		t.Errorf("with room: %v", err)
	}
	m.SetFree(maxReserve - 1)
	err := fill()
	if !errors.Is(err, ErrDiskFull) {
		t.Errorf("without: %v", err)
	}
	t.Log(err)
	end := s.MaxOffset("T", 0)
	if err := fill(); !errors.Is(err, ErrDiskFull) || s.MaxOffset("T", 0) != end {
		t.Errorf("and again: %v", err)
	}
	if n, err := s.Clean(CleanPolicy{Hour: true, MaxFiles: 1000}, time.Now().Add(time.Hour)); err != nil || n < 100 {
		t.Errorf("cleaned %d, %v", n, err)
	}
	m.SetFree(maxReserve + 1<<20)
	if r := put(t, s, "T", 0, "two"); r.QueueOffset != end {
		t.Errorf("queue offset %d, want %d", r.QueueOffset, end)
	}
	mustClose(t, s)
}

// TestOpenOnAFullDisk: a killed store whose disk is full opens, can be read, and refuses.
func TestOpenOnAFullDisk(t *testing.T) {
	for _, checkpointed := range []bool{true, false} {
		m := vfs.NewMem()
		s := mustOpen(t, smallOptions(m))
		for i := range 30 {
			put(t, s, "T", 0, fmt.Sprint(i))
			if i == 10 && checkpointed {
				if err := s.checkpoint(); err != nil {
					t.Fatal(err)
				}
			}
		}
		m = m.Kill()
		_ = s.Close()
		m.SetFree(0)
		m.FailWith(func(op, name string) error {
			if op == "write" && !strings.Contains(name, "commitlog") && !strings.Contains(name, "/index/") {
				return syscall.ENOSPC
			}
			return nil
		})
		s = mustOpen(t, smallOptions(m))
		if got := read(t, s, "T", 0); len(got) != 30 {
			t.Errorf("%d messages", len(got))
		}
		msg := message.Message{Topic: "T", Body: make([]byte, 3000)}
		var err error
		for range 400 {
			if _, err = s.Put(t.Context(), &msg); err != nil {
				break
			}
		}
		if !errors.Is(err, ErrDiskFull) {
			t.Errorf("put: %v", err)
		}
		m.FailWith(nil)
		m.SetFree(1 << 39)
		put(t, s, "T", 0, "x")
		mustClose(t, s)
	}
}

// TestDiskAboveItsLimit: appends are refused above the upper limit until use is down to the lower one.
func TestDiskAboveItsLimit(t *testing.T) {
	s := mustOpen(t, smallOptions(vfs.NewMem()))
	defer s.Close()
	for _, c := range []struct {
		used    int
		refused bool
	}{{50, false}, {90, false}, {91, true}, {86, true}, {85, false}, {90, false}, {95, true}, {10, false}} {
		if _, err := s.Clean(CleanPolicy{UsedRatio: c.used, CleanRatio: 75, ForceRatio: 85, RefuseRatio: 90}, time.Now()); err != nil {
			t.Fatal(err)
		}
		m := message.Message{Topic: "T", Body: []byte("x")}
		if _, err := s.Put(t.Context(), &m); errors.Is(err, ErrDiskFull) != c.refused || !c.refused && err != nil {
			t.Errorf("at %d %%: %v", c.used, err)
		}
	}
	if (CleanPolicy{UsedRatio: 100, ForceRatio: 85}).Refuses(true) {
		t.Error("refuses without a limit")
	}
}

func TestDeletedTopicStaysDeleted(t *testing.T) {
	fs := vfs.NewMem()
	s, err := Open(smallOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		put(t, s, "T", 0, fmt.Sprint(i, "old"))
	}
	if err := s.DeleteTopic("T"); err != nil {
		t.Fatal(err)
	}
	put(t, s, "T", 0, "new")
	crashed := fs.Crash(nil)
	_ = s.Close()
	s, err = Open(smallOptions(crashed))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := read(t, s, "T", 0); fmt.Sprint(got) != "[new]" {
		t.Errorf("%v", got)
	}
}

func TestOffsetByTime(t *testing.T) {
	now := time.UnixMilli(1000)
	o := smallOptions(vfs.NewMem())
	o.Now = func() time.Time { return now }
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, ms := range []int64{1000, 2000, 2000, 3000} {
		now = time.UnixMilli(ms)
		put(t, s, "T", 0, "x")
	}
	for _, c := range []struct {
		ms    int64
		upper bool
		want  int64
	}{{0, false, 0}, {1000, false, 0}, {1001, false, 1}, {2000, false, 1}, {2001, false, 3}, {3001, false, 4},
		{0, true, 0}, {1000, true, 0}, {2000, true, 2}, {2500, true, 2}, {9000, true, 3}} {
		if got := s.OffsetByTime("T", 0, c.ms, c.upper); got != c.want {
			t.Errorf("%d upper=%v: %d, want %d", c.ms, c.upper, got, c.want)
		}
	}
}

func TestConcurrentAppends(t *testing.T) {
	o := Options{Dir: t.TempDir(), Flush: AsyncFlush, SegmentSize: 1 << 20, QueueSize: 20 * 1000, IndexSlots: 1000, IndexSize: 100_000}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 500 {
				put(t, s, "T", int32(w%4), fmt.Sprintf("%d-%d", w, i))
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(o); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	total := 0
	for q := range 4 {
		next := map[byte]int{}
		for _, body := range read(t, s, "T", int32(q)) {
			var w byte
			var i int
			if _, err := fmt.Sscanf(body, "%d-%d", &w, &i); err != nil || i != next[w] {
				t.Fatalf("queue %d: %s, want %d of its writer", q, body, next[w])
			}
			next[w]++
			total++
		}
	}
	if total != 4000 {
		t.Errorf("%d messages", total)
	}
}
