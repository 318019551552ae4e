package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/testkit"
	"github.com/apogeemq/apogee/internal/vfs"
)

func mustOpen(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustClose(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// overwriteFile changes bytes of a file.
func overwriteFile(t *testing.T, fsys vfs.FS, name string, at int64, b []byte) {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_RDWR)
	if err == nil {
		_, err = f.WriteAt(b, at)
	}
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, fsys vfs.FS, name string) []byte {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	if err := readFull(f, b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestStaleRecordsStayGone: of two unflushed records the first is lost and the second reaches the disk. It is cut
// off, and must not come back when a record of the first one's size has taken its place and there is a crash again.
func TestStaleRecordsStayGone(t *testing.T) {
	m := vfs.NewMem()
	o := smallOptions(m)
	o.Flush = AsyncFlush
	s := mustOpen(t, o)
	put(t, s, "T", 0, "first")
	if err := s.checkpoint(); err != nil {
		t.Fatal(err)
	}
	put(t, s, "T", 0, "lost1+")
	put(t, s, "T", 0, "stale+")
	writes := 0
	m = m.Crash(func(name string, size int) int {
		if !strings.Contains(name, "commitlog") {
			return size
		}
		writes++
		return size * (writes - 1) // only the second
	})
	_ = s.Close()
	for _, second := range []func(*vfs.Mem) *vfs.Mem{
		func(m *vfs.Mem) *vfs.Mem { return m.Kill() },
		func(m *vfs.Mem) *vfs.Mem { return m.Crash(func(_ string, size int) int { return size }) },
		func(m *vfs.Mem) *vfs.Mem { // takes what isn't a write
			return m.Crash(func(_ string, size int) int {
				if size == 1 {
					return 0
				}
				return size
			})
		},
	} {
		m := m.Kill()
		o.FS = m
		s = mustOpen(t, o)
		if got := read(t, s, "T", 0); fmt.Sprint(got) != "[first]" {
			t.Fatalf("after the first crash: %v", got)
		}
		put(t, s, "T", 0, "newer+")
		next := second(m)
		_ = s.Close()
		o.FS = next
		s = mustOpen(t, o)
		if got := read(t, s, "T", 0); fmt.Sprint(got) != "[first newer+]" {
			t.Errorf("after the second crash: %v", got)
		}
		_ = s.Close()
	}
}

// logOf makes a store in memory with n messages of one queue, 250 bytes or so each, checkpointed after the first at.
func logOf(t *testing.T, n, at int) (*vfs.Mem, *Store) {
	t.Helper()
	m := vfs.NewMem()
	s := mustOpen(t, smallOptions(m))
	for i := range n {
		if i == at {
			if err := s.checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
		put(t, s, "T", 0, fmt.Sprintf("%03d%s", i, strings.Repeat("x", 100)))
	}
	return m, s
}

func TestLostLogRefusesToOpen(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, m *vfs.Mem, s *Store){
		"record before the checkpoint": func(t *testing.T, m *vfs.Mem, s *Store) {
			phys, _, _, _ := s.QueueEntry("T", 0, 49)
			overwriteFile(t, m, path.Join("/store/commitlog", fileName(phys-phys%4096)), phys%4096+90, []byte("?"))
		},
		"all files": func(t *testing.T, m *vfs.Mem, _ *Store) {
			if err := errors.Join(m.RemoveAll("/store/commitlog"), m.MkdirAll("/store/commitlog")); err != nil {
				t.Fatal(err)
			}
		},
		"a file in the middle": func(t *testing.T, m *vfs.Mem, _ *Store) {
			if err := m.Remove(path.Join("/store/commitlog", fileName(8192))); err != nil {
				t.Fatal(err)
			}
		},
		"a record that a queue knows": func(t *testing.T, m *vfs.Mem, s *Store) {
			if err := s.flushQueues(); err != nil {
				t.Fatal(err)
			}
			phys, _, _, _ := s.QueueEntry("T", 0, 55)
			overwriteFile(t, m, path.Join("/store/commitlog", fileName(phys-phys%4096)), phys%4096, make([]byte, 50))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, s := logOf(t, 58, 50)
			damage(t, m, s)
			m = m.Kill()
			_ = s.Close()
			_, err := Open(smallOptions(m))
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("open: %v", err)
			}
			t.Log(err)
			// Refusing changed nothing that another try, or a repair, needs.
			if _, err := Open(smallOptions(m)); !errors.Is(err, ErrDamaged) {
				t.Errorf("second open: %v", err)
			}
		})
	}
}

// TestWithoutCheckpoint opens killed stores whose checkpoint is gone or damaged at any byte: the whole log is read.
func TestWithoutCheckpoint(t *testing.T) {
	m, s := logOf(t, 58, 50)
	size := len(readFile(t, m, "/store/checkpoint.apogee"))
	m = m.Kill()
	_ = s.Close()
	for at := -1; at < size; at++ {
		c := m.Kill()
		if at < 0 {
			if err := errors.Join(c.Remove("/store/checkpoint.apogee"), c.Remove("/store/checkpoint")); err != nil {
				t.Fatal(err)
			}
		} else {
			b := readFile(t, c, "/store/checkpoint.apogee")
			overwriteFile(t, c, "/store/checkpoint.apogee", int64(at), []byte{b[at] ^ 1})
		}
		s := mustOpen(t, smallOptions(c))
		if got := read(t, s, "T", 0); len(got) != 58 || !strings.HasPrefix(got[57], "057") {
			t.Fatalf("byte %d: %d messages", at, len(got))
		}
		q, err := s.Query("T", "k"+"003"+strings.Repeat("x", 100), 9, 0, 1<<62)
		if err != nil || len(q.Records) != 1 {
			t.Fatalf("byte %d: %d by key, %v", at, len(q.Records), err)
		}
		q.Release()
		_ = s.Close()
	}
}

// TestQueuesAreBuiltAnew: units before the checkpoint are missing, which no crash does but a hand may.
func TestQueuesAreBuiltAnew(t *testing.T) {
	for name, damage := range map[string]func(m *vfs.Mem) error{
		"one file":   func(m *vfs.Mem) error { return m.Remove("/store/consumequeue/T/0/" + fileName(6*160)) },
		"all files":  func(m *vfs.Mem) error { return m.RemoveAll("/store/consumequeue/T") },
		"the folder": func(m *vfs.Mem) error { return m.RemoveAll("/store/consumequeue") },
	} {
		t.Run(name, func(t *testing.T) {
			m, s := logOf(t, 58, 50)
			m = m.Kill()
			_ = s.Close()
			if err := damage(m); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, smallOptions(m))
			defer s.Close()
			if got := read(t, s, "T", 0); len(got) != 58 {
				t.Errorf("%d messages", len(got))
			}
		})
	}
}

// TestShortQueueFile: a power cut took the size of a consume-queue file and left some of its bytes.
func TestShortQueueFile(t *testing.T) {
	m, s := logOf(t, 58, 50) // units 48… are in the file at 6*160, which the checkpoint has; 56… in the next
	if err := s.flushQueues(); err != nil {
		t.Fatal(err)
	}
	m = m.Kill()
	_ = s.Close()
	name := "/store/consumequeue/T/0/" + fileName(7*160)
	f, err := m.OpenFile(name, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(25); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, smallOptions(m))
	if got := read(t, s, "T", 0); len(got) != 58 {
		t.Errorf("%d messages", len(got))
	}
	mustClose(t, s)
	if n := len(readFile(t, m, name)); n != 160 {
		t.Errorf("file has %d bytes", n)
	}
	// After a clean stop a file of another size is another configuration.
	o := smallOptions(m)
	o.QueueSize = 320
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "mappedFileSizeConsumeQueue") {
		t.Errorf("open with another file size: %v", err)
	}
	o = smallOptions(m)
	o.SegmentSize = 8192
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "mappedFileSizeCommitLog") {
		t.Errorf("open with another segment size: %v", err)
	}
	o = smallOptions(m)
	o.IndexSlots = 99
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "maxHashSlotNum") {
		t.Errorf("open with another index size: %v", err)
	}
	if _, err := m.Stat("/store/abort"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a store that was stopped cleanly and couldn't be opened has an abort file")
	}
	s = mustOpen(t, smallOptions(m))
	mustClose(t, s)
}

// counting counts what is read and opened of a file system.
type counting struct {
	vfs.FS
	bytes, opens, dirs atomic.Int64
}

func (c *counting) OpenFile(name string, flag int) (vfs.File, error) {
	c.opens.Add(1)
	f, err := c.FS.OpenFile(name, flag)
	return countingFile{f, c}, err
}

func (c *counting) ReadDir(dir string) ([]fs.DirEntry, error) {
	c.dirs.Add(1)
	return c.FS.ReadDir(dir)
}

type countingFile struct {
	vfs.File
	c *counting
}

func (f countingFile) ReadAt(b []byte, at int64) (int, error) {
	f.c.bytes.Add(int64(len(b)))
	return f.File.ReadAt(b, at)
}

// TestOpeningCostsTheTail opens a killed store with many queues and a small tail, and one that was stopped cleanly:
// what is read depends on neither the log's size nor the number of queues.
func TestOpeningCostsTheTail(t *testing.T) {
	m := vfs.NewMem()
	o := smallOptions(m)
	o.SegmentSize, o.QueueSize, o.IndexSize = 64<<10, 20*100, 10_000
	s := mustOpen(t, o)
	const queues = 800
	for i := range 3 * queues {
		put(t, s, fmt.Sprintf("T%03d", i/8%100), int32(i%8), fmt.Sprintf("%04d%s", i, strings.Repeat("x", 200)))
	}
	if err := s.checkpoint(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		put(t, s, "T000", int32(i%2), fmt.Sprintf("tail%d", i))
	}
	for name, kill := range map[string]bool{"killed": true, "clean": false} {
		t.Run(name, func(t *testing.T) {
			c := &counting{FS: m.Kill()}
			o := o
			o.FS = c
			if !kill {
				mustClose(t, mustOpen(t, o))
			}
			c.bytes.Store(0)
			c.opens.Store(0)
			c.dirs.Store(0)
			s := mustOpen(t, o)
			t.Logf("%d bytes read, %d files opened, %d folders listed; the log has %d bytes", c.bytes.Load(), c.opens.Load(), c.dirs.Load(), s.MaxPhysical())
			// The tail's segment is read in one window, twice, and written again; two queues are looked at.
			if n := c.bytes.Load(); n > 4*o.SegmentSize {
				t.Errorf("%d bytes read", n)
			}
			if n := c.opens.Load(); n > int64(s.segmentCount())+20 {
				t.Errorf("%d files opened", n)
			}
			if n := c.dirs.Load(); n > 12 {
				t.Errorf("%d folders listed", n)
			}
			if got := read(t, s, "T000", 0); len(got) != 8 {
				t.Errorf("%d messages", len(got))
			}
			if got := s.MaxOffset("T099", 7); got != 3 {
				t.Errorf("a queue out of the tail ends at %d", got)
			}
			_ = s.Close()
		})
	}
	_ = s.Close()
}

// TestReadingMakesNoFiles asks for queues that never held a message.
func TestReadingMakesNoFiles(t *testing.T) {
	c := &counting{FS: vfs.NewMem()}
	o := smallOptions(nil)
	o.FS = c
	s := mustOpen(t, o)
	put(t, s, "T", 0, "x")
	if err := s.checkpoint(); err != nil {
		t.Fatal(err)
	}
	opens, dirs := c.opens.Load(), c.dirs.Load()
	var r GetResult
	for i := range 1000 {
		topic, id := fmt.Sprintf("none%d", i%10), int32(i)
		if i%2 == 0 {
			topic = "T"
		}
		if i == 0 {
			id = 77
		}
		s.Get(topic, id, 3, 1, 0, nil, &r)
		if r.Status != NoMessageInQueue || r.NextOffset != 0 || s.MaxOffset(topic, id) != 0 {
			t.Fatalf("%s %d: %v", topic, id, r.Status)
		}
		r.Release()
	}
	if n := c.opens.Load() - opens + c.dirs.Load() - dirs; n > 1 {
		t.Errorf("%d system calls", n)
	}
	mustClose(t, s)
	s = mustOpen(t, o)
	defer s.Close()
	n := 0
	s.Queues(func(topic string, id int32, lo, hi int64) {
		if n++; topic != "T" || id != 0 || lo != 0 || hi != 1 {
			t.Errorf("%s %d %d..%d", topic, id, lo, hi)
		}
	})
	if n != 1 {
		t.Errorf("%d queues", n)
	}
}

// TestGoldenFilesAfterCrash: what we make of a store after a Java broker's crash is, byte for byte, what a Java broker
// makes of it: consume queues, and the log up to its end.
func TestGoldenFilesAfterCrash(t *testing.T) {
	ours := filepath.Join(testkit.Untar(t, "testdata/crash.tar.gz", t.TempDir()), "store")
	javas := filepath.Join(testkit.Untar(t, "testdata/crash_recovered.tar.gz", t.TempDir()), "store")
	s := mustOpen(t, goldenOptions(ours))
	end := s.MaxPhysical()
	mustClose(t, s)
	compared := 0
	err := filepath.WalkDir(filepath.Join(javas, "consumequeue"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		want, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(javas, name)
		got, err := os.ReadFile(filepath.Join(ours, rel))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs (%v)", rel, err)
		}
		compared++
		return nil
	})
	if err != nil || compared < 10 {
		t.Errorf("%d files compared, %v", compared, err)
	}
	entries, err := os.ReadDir(filepath.Join(ours, "commitlog"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		got, err1 := os.ReadFile(filepath.Join(ours, "commitlog", e.Name()))
		want, err2 := os.ReadFile(filepath.Join(javas, "commitlog", e.Name()))
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		var base int64
		_, _ = fmt.Sscan(strings.TrimLeft(e.Name(), "0")+" 0", &base)
		n := min(int64(len(got)), end-base)
		if !bytes.Equal(blankTails(got[:n]), blankTails(want[:n])) {
			t.Errorf("%s differs", e.Name())
		}
		if int64(len(got)) > n && !allZero(got[n:]) {
			t.Errorf("%s has something behind the end of the log", e.Name())
		}
	}
}

// blankTails clears what lies in a blank record behind its 8 bytes: it is arbitrary.
func blankTails(b []byte) []byte {
	b = bytes.Clone(b)
	for at := 0; at+message.BlankSize <= len(b); {
		h, err := message.DecodeHeader(b[at:])
		if err != nil {
			break
		}
		if h.Blank {
			clear(b[at+message.BlankSize:])
			break
		}
		at += int(h.Size)
	}
	return b
}

// TestGoldenFilesLeftAlone: files of a Java store that we don't serve stay as they are.
func TestGoldenFilesLeftAlone(t *testing.T) {
	dir := filepath.Join(testkit.Untar(t, "testdata/clean.tar.gz", t.TempDir()), "store")
	foreign := func() map[string]string {
		m := map[string]string{}
		_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(dir, name)
			for _, part := range []string{"batchconsumequeue", "compaction", "timer", "config", "consumequeue"} {
				if err == nil && !d.IsDir() && strings.HasPrefix(rel, part) {
					b, _ := os.ReadFile(name)
					m[rel] = string(b)
				}
			}
			return nil
		})
		return m
	}
	before := foreign()
	s := mustOpen(t, goldenOptions(dir))
	batch := ""
	for name := range before {
		if strings.HasPrefix(name, "batchconsumequeue/") {
			batch = strings.Split(name, "/")[1]
		}
	}
	m := message.Message{Topic: batch, Body: []byte("x")}
	if _, err := s.Put(t.Context(), &m); batch == "" || !errors.Is(err, ErrIllegal) {
		t.Errorf("append to batch topic %q: %v", batch, err)
	}
	var r GetResult
	s.Get(batch, 0, 0, 1, 0, nil, &r)
	if r.Status != NoMessageInQueue {
		t.Errorf("read of a batch topic: %v", r.Status)
	}
	r.Release()
	mustClose(t, s)
	after := foreign()
	for name, want := range before {
		if after[name] != want {
			t.Errorf("%s changed", name)
		}
	}
	if len(after) != len(before) || len(before) < 20 {
		t.Errorf("%d files before, %d after", len(before), len(after))
	}
}

// TestJavaCrashWithUnitsAheadOfTheLog: a Java broker without flush writes queue units whenever it likes. After a power
// cut they may point behind the log's end, or leave a hole. No later message may be found through them.
func TestJavaCrashWithUnitsAheadOfTheLog(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, smallOptions(m))
	put(t, s, "A", 0, "a")
	put(t, s, "B", 0, "b")
	end := s.MaxPhysical()
	mustClose(t, s)
	if err := m.Remove("/store/checkpoint.apogee"); err != nil { // as if only Java had been here
		t.Fatal(err)
	}
	f, err := m.OpenFile("/store/abort", os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	overwriteFile(t, m, "/store/consumequeue/A/0/"+fileName(0), queueUnit, appendUnit(nil, unit{end, 150, 0}))
	overwriteFile(t, m, "/store/consumequeue/A/0/"+fileName(0), 3*queueUnit, appendUnit(nil, unit{end + 150, 150, 0}))
	for range 2 {
		s = mustOpen(t, smallOptions(m))
		for i := range 20 {
			put(t, s, "B", 0, fmt.Sprintf("b%d", i))
		}
		if got := read(t, s, "A", 0); fmt.Sprint(got) != "[a]" {
			t.Errorf("%v", got)
		}
		mustClose(t, s)
	}
	s = mustOpen(t, smallOptions(m))
	defer s.Close()
	if r := put(t, s, "A", 0, "a2"); r.QueueOffset != 1 {
		t.Errorf("queue offset %d", r.QueueOffset)
	}
	if got := read(t, s, "A", 0); fmt.Sprint(got) != "[a a2]" {
		t.Errorf("%v", got)
	}
}

// TestTornRecords cuts a record at each byte: what lies behind the cut is zeros.
func TestTornRecords(t *testing.T) {
	m := message.Message{Topic: "Topic", Body: []byte("body"), Properties: []byte("KEYS\x01k\x02TAGS\x01t\x02")}
	rec := message.AppendRecord(nil, &m)
	message.SetStoreTimestamp(rec, 1)
	fsys := vfs.NewMem()
	f, err := fsys.OpenFile("/f", os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	try := func(b []byte) error {
		if err := errors.Join(f.Truncate(0), f.Truncate(4096)); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(b, 0); err != nil {
			t.Fatal(err)
		}
		var m message.Message
		_, _, err := newLogReader(&segment{name: "f", file: f}, 4096).record(0, &m, true)
		return err
	}
	for n := range len(rec) {
		if err := try(rec[:n]); !isDamage(err) {
			t.Errorf("cut at %d of %d: %v", n, len(rec), err)
		}
	}
	if err := try(rec); err != nil {
		t.Errorf("whole: %v", err)
	}
	// A sector in the middle of the properties.
	m.Properties = message.AppendProperty(nil, "LONG", strings.Repeat("p", 3000))
	rec = message.AppendRecord(nil, &m)
	if err := try(rec); err != nil {
		t.Errorf("whole: %v", err)
	}
	for at := 512; at+512 <= len(rec); at += 512 {
		b := bytes.Clone(rec)
		clear(b[at : at+512])
		if err := try(b); !isDamage(err) {
			t.Errorf("sector at %d lost: %v", at, err)
		}
	}
	if !looksTorn([]byte("K\x01v\x00")) || !looksTorn(append(make([]byte, 512), 'x')) || looksTorn([]byte("K\x01\x00v\x02")) || looksTorn(nil) {
		t.Error("looksTorn")
	}
}

func FuzzOwnCheckpoint(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(ownCheckpoint{physical: 7, last: 3, index: indexEnd{"20240101000000000", 4, 5, 6}}.encode())
	f.Add(ownCheckpoint{last: -1, indexOff: true, index: indexEnd{physical: -1}}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, ok := decodeOwnCheckpoint(b); ok && !bytes.Equal(c.encode(), b) {
			t.Errorf("%q decodes to %+v", b, c)
		}
	})
}

// TestJavaCheckpoint: a Java broker finds in its file what it needs for a clean start.
func TestJavaCheckpoint(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, smallOptions(m))
	r := put(t, s, "T", 0, "x")
	mustClose(t, s)
	b := readFile(t, m, "/store/checkpoint")
	be := binary.BigEndian
	if len(b) != 4096 || int64(be.Uint64(b)) != r.StoreTimestamp || int64(be.Uint64(b[8:])) != r.StoreTimestamp || int64(be.Uint64(b[32:])) != r.PhysicalOffset+int64(r.Bytes) {
		t.Errorf("%d bytes: %x", len(b), b[:40])
	}
}
