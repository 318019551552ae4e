package delay

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/metafile"
	"github.com/apogeemq/apogee/internal/store"
	"github.com/apogeemq/apogee/internal/vfs"
)

func record(t *testing.T, name string) message.Message {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var m message.Message
	if n, err := message.DecodeRecord(b, &m, true); err != nil || n != len(b) {
		t.Fatal(n, err)
	}
	return m
}

// What a Java broker stored on the schedule topic, and the copy it delivered.
func TestGoldenRecords(t *testing.T) {
	levels, _ := ParseLevels(DefaultLevels)
	for _, n := range []string{"1", "2"} {
		scheduled, want := record(t, "scheduled"+n+".bin"), record(t, "delivered"+n+".bin")
		wantProps := message.PropertyMap(want.Properties)
		wantProps["WAIT"] = "false"

		got := scheduled
		if err := Delivered(&got); err != nil {
			t.Fatal(err)
		}
		if got.Topic != want.Topic || got.QueueID != want.QueueID || !bytes.Equal(got.Body, want.Body) || got.BornTimestamp != want.BornTimestamp ||
			got.BornHost != want.BornHost || got.ReconsumeTimes != want.ReconsumeTimes || got.SysFlag != want.SysFlag || got.Flag != want.Flag {
			t.Errorf("%s: %+v\nwant %+v", n, got, want)
		}
		if props := message.PropertyMap(got.Properties); !maps.Equal(props, wantProps) {
			t.Errorf("%s: %v\nwant %v", n, props, wantProps)
		}

		sent := want
		sent.Properties = message.RemoveProperty(nil, want.Properties, message.PropertyRealTopic, message.PropertyRealQueueID)
		levels.Schedule(nil, &sent, 1)
		if sent.Topic != scheduled.Topic || sent.QueueID != scheduled.QueueID ||
			!maps.Equal(message.PropertyMap(sent.Properties), message.PropertyMap(scheduled.Properties)) {
			t.Errorf("%s: %s %d %q", n, sent.Topic, sent.QueueID, sent.Properties)
		}
		if again := sent; again.RecordSize() != scheduled.RecordSize() {
			t.Errorf("%s: a record of %d bytes, Java's has %d", n, again.RecordSize(), scheduled.RecordSize())
		}
	}
}

func TestParseLevels(t *testing.T) {
	got, err := ParseLevels("  0s 2m\t3h 4d ")
	if want := (Levels{0, 2 * time.Minute, 3 * time.Hour, 96 * time.Hour}); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
	for _, bad := range []string{" ", "1", "1S", "1.5s", "99999999999s", "s1", "1s,2s"} {
		if got, err := ParseLevels(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// entry is one message of a schedule queue.
type entry struct {
	rec       []byte
	deliverAt int64
}

// delivered is one append, and when it was made.
type delivered struct {
	body string
	at   time.Duration
}

// fakeStore holds schedule queues and takes appends. Record's physical offsets number the records.
type fakeStore struct {
	start time.Time

	mu      sync.Mutex
	recs    [][]byte
	queues  map[int32][]entry
	refuse  func(body string) error // asked for each append
	got     []delivered
	refused int
}

func newFake() *fakeStore {
	return &fakeStore{start: time.Now(), queues: map[int32][]entry{}}
}

// add puts a message into a level's queue, due after the given time.
func (f *fakeStore) add(level int, body string, after time.Duration) {
	m := message.Message{Topic: "T", QueueID: 2, Body: []byte(body)}
	Levels(make([]time.Duration, 18)).Schedule(nil, &m, level)
	f.addRecord(level, message.AppendRecord(nil, &m), after)
}

func (f *fakeStore) addRecord(level int, rec []byte, after time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recs = append(f.recs, rec)
	q := int32(level - 1)
	f.queues[q] = append(f.queues[q], entry{rec, f.start.Add(after).UnixMilli()})
}

func (f *fakeStore) QueueEntry(name string, queue int32, offset int64) (int64, int32, int64, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries := f.queues[queue]
	if name != message.ScheduleTopic || offset < 0 || offset >= int64(len(entries)) {
		return 0, 0, 0, false
	}
	e := entries[offset]
	at := slices.IndexFunc(f.recs, func(r []byte) bool { return &r[0] == &e.rec[0] })
	return int64(at), int32(len(e.rec)), e.deliverAt, true
}

func (f *fakeStore) Record(physical int64) ([]byte, func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rec := slices.Clone(f.recs[physical])
	return rec, func() { clear(rec) }, nil // views are dead after the release
}

func (f *fakeStore) Append(m *message.Message, w store.Waiter) {
	body := string(m.Body)
	f.mu.Lock()
	var err error
	if f.refuse != nil {
		err = f.refuse(body)
	}
	if m.Topic != "T" || m.QueueID != 2 {
		err = errors.New("delivered to " + m.Topic)
	}
	if err != nil {
		f.refused++
	} else {
		f.got = append(f.got, delivered{body, time.Since(f.start)})
	}
	f.mu.Unlock()
	go w.Appended(store.Result{Err: err})
}

func (f *fakeStore) MinOffset(string, int32) int64 { return 0 }

func (f *fakeStore) MaxOffset(_ string, queue int32) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(len(f.queues[queue]))
}

func (f *fakeStore) deliveries() []delivered {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.got)
}

func openFake(t *testing.T, fs vfs.FS, f *fakeStore) *Scheduler {
	t.Helper()
	levels, err := ParseLevels(DefaultLevels)
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.MkdirAll("/c"); err != nil {
		t.Fatal(err)
	}
	s, notes, err := Open(Options{FS: fs, Dir: "/c", Store: f, Levels: levels, Logger: slog.New(slog.DiscardHandler), Prepare: func(*message.Message) {}})
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	return s
}

// run starts the scheduler; stop ends it and waits for it.
func run(t *testing.T, s *Scheduler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestInOrderWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, fs := newFake(), vfs.NewMem()
		f.add(2, "late", 5*time.Second)
		f.add(1, "a", 500*time.Millisecond)
		f.add(1, "b", 500*time.Millisecond)
		f.add(1, "c", 900*time.Millisecond)
		s := openFake(t, fs, f)
		stop := run(t, s)
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []delivered{{"a", 500 * time.Millisecond}, {"b", 500 * time.Millisecond}, {"c", 900 * time.Millisecond}, {"late", 5 * time.Second}}
		if got := f.deliveries(); !reflect.DeepEqual(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		stop()
		again := openFake(t, fs.Crash(nil), f)
		if o := again.Offsets(); o[1] != 3 || o[2] != 1 || o[3] != 0 {
			t.Errorf("written progress %v", o)
		}
	})
}

func TestWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := openFake(t, vfs.NewMem(), f)
		stop := run(t, s)
		defer stop()
		time.Sleep(time.Second)
		f.add(1, "a", 2*time.Second)
		for range 3 { // never blocks, though nobody may be listening
			s.Wake()
		}
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		if got := f.deliveries(); len(got) != 0 {
			t.Errorf("too early: %v", got)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if got := f.deliveries(); !reflect.DeepEqual(got, []delivered{{"a", 2 * time.Second}}) {
			t.Errorf("%v", got)
		}
	})
}

func TestFailedAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		failing := true // guarded by f.mu
		f.refuse = func(body string) error {
			if failing && body == "b" {
				return store.ErrDiskFull
			}
			return nil
		}
		for _, body := range []string{"a", "b", "c"} {
			f.add(1, body, 0)
		}
		s := openFake(t, vfs.NewMem(), f)
		stop := run(t, s)
		defer stop()
		synctest.Wait()
		if o := s.Offsets()[1]; o != 1 {
			t.Errorf("progress %d over one delivered message", o)
		}
		time.Sleep(retryAfter + time.Millisecond)
		synctest.Wait()
		f.mu.Lock()
		if f.refused != 2 {
			t.Errorf("tried %d times", f.refused)
		}
		failing = false
		f.got = nil
		f.mu.Unlock()
		time.Sleep(retryAfter)
		synctest.Wait()
		got := f.deliveries()
		if len(got) != 2 || got[0].body != "b" || got[1].body != "c" || s.Offsets()[1] != 3 {
			t.Errorf("%v, progress %v", got, s.Offsets()[1])
		}
	})
}

func TestPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.refuse = func(body string) error {
			if body == "illegal" {
				return store.ErrIllegal
			}
			return nil
		}
		f.addRecord(1, []byte("no record"), 0)
		f.addRecord(1, message.AppendRecord(nil, &message.Message{Topic: message.ScheduleTopic, Body: []byte("without a target")}), 0)
		f.add(1, "illegal", 0)
		f.add(1, "sound", 0)
		s := openFake(t, vfs.NewMem(), f)
		stop := run(t, s)
		defer stop()
		synctest.Wait()
		if got := f.deliveries(); len(got) != 1 || got[0].body != "sound" || s.Offsets()[1] != 4 {
			t.Errorf("%v, progress %v", got, s.Offsets()[1])
		}
	})
}

// A backlog of one level leaves room for the others: they have a turn after each window.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		for i := range 3 * window {
			f.add(1, strconv.Itoa(i), 0)
		}
		f.add(2, "other", 0)
		s := openFake(t, vfs.NewMem(), f)
		stop := run(t, s)
		defer stop()
		synctest.Wait()
		got := f.deliveries()
		if len(got) != 3*window+1 || got[window].body != "other" {
			t.Fatalf("%d delivered, the other level's not after the first window", len(got))
		}
		got = slices.Delete(got, window, window+1)
		for i, d := range got {
			if d.body != strconv.Itoa(i) {
				t.Fatalf("%s in place %d", d.body, i)
			}
		}
	})
}

func TestProgressFile(t *testing.T) {
	b, err := os.ReadFile("testdata/delayOffset.json")
	if err != nil {
		t.Fatal(err)
	}
	f, fs := newFake(), vfs.NewMem()
	for range 3 {
		f.add(1, "a", 0)
	}
	if err := errors.Join(fs.MkdirAll("/c"), metafile.Save(fs, "/c/delayOffset.json", b)); err != nil {
		t.Fatal(err)
	}
	s := openFake(t, fs, f)
	if s.Offsets()[1] != 2 || s.version.Counter != 4 {
		t.Errorf("%v %+v", s.Offsets(), s.version)
	}
	s.offsets[0], s.dirty = 3, true
	if err := errors.Join(s.Save(time.UnixMilli(9)), s.Save(time.UnixMilli(10))); err != nil {
		t.Fatal(err)
	}
	again := openFake(t, fs.Crash(nil), f)
	if !reflect.DeepEqual(again.Offsets(), s.Offsets()) || again.version != s.version || again.version.Timestamp != 9 {
		t.Errorf("%v %+v", again.Offsets(), again.version)
	}
	// Damaged: the older generation is Java's file.
	file, err := fs.OpenFile("/c/delayOffset.json", os.O_RDWR|os.O_TRUNC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt([]byte(`{"offsetTable":{1`), 0); err != nil {
		t.Fatal(err)
	}
	old, notes, err := Open(s.o)
	if err != nil || len(notes) == 0 || old.Offsets()[1] != 2 {
		t.Fatal(notes, err)
	}
	// A queue that holds less than the file says.
	s.o.Store = newFake()
	if short, _, err := Open(s.o); err != nil || short.Offsets()[1] != 0 {
		t.Errorf("%v %v", short, err)
	}
}
