package storetool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/metafile"
	"github.com/apogeemq/apogee/internal/store"
	"github.com/apogeemq/apogee/internal/testkit"
	"github.com/apogeemq/apogee/internal/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	segmentSize = 4096
	queueSize   = 20 * 8
	levels      = "1s 5s 10s"
)

func storeOptions(fs vfs.FS) store.Options {
	return store.Options{Dir: "/s", FS: fs, SegmentSize: segmentSize, QueueSize: queueSize, IndexSlots: 16, IndexSize: 64, CheckpointInterval: time.Hour,
		DelayLevels: []time.Duration{time.Second, 5 * time.Second, 10 * time.Second}}
}

func toolOptions(fs vfs.FS) Options { return Options{FS: fs, Dir: "/s"} }

func put(t *testing.T, s *store.Store, topic string, queue int32, body string) store.Result {
	t.Helper()
	props := message.AppendProperty(message.AppendProperty(nil, message.PropertyTags, "t"), message.PropertyKeys, "k"+body+" all")
	if topic == message.ScheduleTopic {
		props = message.AppendProperty(props, message.PropertyDelayLevel, "2")
	}
	r, err := s.Put(t.Context(), &message.Message{Topic: topic, QueueID: queue, Body: []byte(body), Properties: props})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// made is a store of 40 messages in three queues of two topics and a delayed one, and the metadata of a broker; the
// results are of topic A's queue 0.
func made(t *testing.T, fs vfs.FS) []store.Result {
	t.Helper()
	s, err := store.Open(storeOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	var a []store.Result
	for i := range 20 {
		a = append(a, put(t, s, "A", 0, fmt.Sprintf("a%02d %s", i, strings.Repeat("x", 300))))
		if i%2 == 0 {
			put(t, s, "A", 1, fmt.Sprint("b", i))
			put(t, s, "B", 0, fmt.Sprint("c", i))
		}
	}
	put(t, s, message.ScheduleTopic, 1, "later")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"topics.json":            `{"topicConfigTable":{"A":{},"B":{},"SCHEDULE_TOPIC_XXXX":{}}}`,
		"subscriptionGroup.json": `{"subscriptionGroupTable":{}}`,
		"consumerOffset.json":    `{"dataVersion":{"counter":7},"offsetTable":{"A@g":{0:20,1:10},"B@g":{0:3}}}`,
		"delayOffset.json":       `{"offsetTable":{2:1}}`,
	} {
		for range 2 { // so that there is an older generation
			if err := metafile.Save(fs, "/s/config/"+name, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return a
}

func check(t *testing.T, fs vfs.FS) *Report {
	t.Helper()
	d, err := Open(toolOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Check()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantSound(t *testing.T, r *Report) {
	t.Helper()
	if len(r.Findings) > 0 {
		t.Fatalf("findings: %v\nnotes: %q", r.Findings, r.Notes)
	}
}

func edit(t *testing.T, fs vfs.FS, name string, f func(vfs.File)) {
	t.Helper()
	h, err := fs.OpenFile(path.Join("/s", name), os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	f(h)
	if err := errors.Join(h.Sync(), h.Close()); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, fs vfs.FS, name string, at int64, b string) {
	t.Helper()
	edit(t, fs, name, func(h vfs.File) {
		if _, err := h.WriteAt([]byte(b), at); err != nil {
			t.Fatal(err)
		}
	})
}

// onlyIn returns the name of the one file of a folder.
func onlyIn(t *testing.T, fs vfs.FS, dir string) string {
	t.Helper()
	entries, err := fs.ReadDir(path.Join("/s", dir))
	if err != nil || len(entries) == 0 {
		t.Fatal(err, entries)
	}
	return path.Join(dir, entries[0].Name())
}

func replace(t *testing.T, fs vfs.FS, name, text string) {
	t.Helper()
	edit(t, fs, name, func(h vfs.File) {
		if err := h.Truncate(int64(len(text))); err != nil {
			t.Fatal(err)
		}
	})
	write(t, fs, name, 0, text)
}

// TestDamage hurts a sound store in each layer. The check must name the file, a repair without consent must change
// nothing, and one with consent must leave a store that is sound, opens, and has every message that wasn't hurt.
func TestDamage(t *testing.T) {
	const log0, queueA = "commitlog/00000000000000000000", "consumequeue/A/0/00000000000000000000"
	for name, c := range map[string]struct {
		hurt func(*testing.T, *vfs.Mem, []store.Result)
		want string // in a finding
		file string // of that finding
		lost int    // messages of A's queue 0
	}{
		"nothing": {func(*testing.T, *vfs.Mem, []store.Result) {}, "", "", 0},
		"a body in the middle": {func(t *testing.T, m *vfs.Mem, a []store.Result) {
			write(t, m, log0, a[2].PhysicalOffset+90, "YY")
		}, "CRC", log0, 1},
		"a record's size": {func(t *testing.T, m *vfs.Mem, a []store.Result) {
			write(t, m, log0, a[3].PhysicalOffset, "\x7f")
		}, "unreadable; the log goes on at", log0, 1},
		"zeros over two records": {func(t *testing.T, m *vfs.Mem, a []store.Result) {
			n := a[2].PhysicalOffset - a[1].PhysicalOffset + int64(a[2].Bytes)
			write(t, m, log0, a[1].PhysicalOffset, strings.Repeat("\x00", int(n)))
		}, "unreadable", log0, 2},
		"a record that says it lies elsewhere": {func(t *testing.T, m *vfs.Mem, a []store.Result) {
			write(t, m, log0, a[1].PhysicalOffset+28, "\x00\x00\x00\x00\x00\x00\x99\x99")
		}, "it says it lies at", log0, 1},
		"a record's queue offset": {func(t *testing.T, m *vfs.Mem, a []store.Result) {
			write(t, m, log0, a[2].PhysicalOffset+22, "\x40")
		}, "the unit of offset 2 leads to", queueA, 1},
		"a record's topic": {func(t *testing.T, m *vfs.Mem, a []store.Result) {
			write(t, m, log0, a[2].PhysicalOffset+89+304, "Z")
		}, "which is topic Z queue 0", queueA, 1},
		"a record's queue": {func(t *testing.T, m *vfs.Mem, a []store.Result) {
			write(t, m, log0, a[2].PhysicalOffset+15, "\x07")
		}, "which is topic A queue 7", queueA, 1},
		"a blank record": {func(t *testing.T, m *vfs.Mem, a []store.Result) {
			last := lastIn(a, segmentSize)
			write(t, m, log0, last.PhysicalOffset+int64(last.Bytes), strings.Repeat("\x55", 8))
		}, "no whole record", log0, -1},
		"the last record": {func(t *testing.T, m *vfs.Mem, a []store.Result) {
			at := a[19].PhysicalOffset
			write(t, m, fmt.Sprintf("commitlog/%020d", at-at%segmentSize), at%segmentSize, strings.Repeat("\x00", 2000))
		}, "none behind it; the log went on to", "", 1},
		"a commit-log file is missing": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			if err := errors.Join(m.Remove("/s/commitlog/00000000000000004096"), m.SyncDir("/s/commitlog")); err != nil {
				t.Fatal(err)
			}
		}, "a file between them is missing", "commitlog/00000000000000008192", -1},
		"a commit-log file is short": {func(t *testing.T, m *vfs.Mem, a []store.Result) {
			edit(t, m, log0, func(h vfs.File) { _ = h.Truncate(a[3].PhysicalOffset) })
		}, "the others 4096", log0, -1},
		"a unit's place": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			write(t, m, queueA, 20*3+6, "\x01\x23")
		}, "the unit of offset 3 leads to", queueA, 0},
		"a unit's size": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			write(t, m, queueA, 20*3+11, "\x01")
		}, "the unit of offset 3 says", queueA, 0},
		"a unit's tags code": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			write(t, m, queueA, 20*3+19, "\xff")
		}, "the unit of offset 3 has tags code", queueA, 0},
		"an empty unit": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			write(t, m, queueA, 20*3, strings.Repeat("\x00", 20))
		}, "the unit of offset 3 is empty", queueA, 0},
		"a queue's last units": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			write(t, m, "consumequeue/A/0/00000000000000000320", 20*2, strings.Repeat("\x00", 40))
		}, "no unit leads to 2 messages", "consumequeue/A/0", 0},
		"a unit behind the end": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			write(t, m, "consumequeue/A/0/00000000000000000320", 20*4, "\x00\x00\x00\x00\x00\x99\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
		}, "the log ends at", "consumequeue/A/0/00000000000000000320", 0},
		"a queue file is missing": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			if err := errors.Join(m.Remove("/s/consumequeue/A/0/00000000000000000160"), m.SyncDir("/s/consumequeue/A/0")); err != nil {
				t.Fatal(err)
			}
		}, "the file is missing", "consumequeue/A/0/00000000000000000160", 0},
		"a queue is missing": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			if err := errors.Join(m.RemoveAll("/s/consumequeue/A/0"), m.SyncDir("/s/consumequeue/A")); err != nil {
				t.Fatal(err)
			}
		}, "no unit leads to 20 messages", "consumequeue/A/0", 0},
		"a queue file is short": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			edit(t, m, queueA, func(h vfs.File) { _ = h.Truncate(30) })
		}, "it has 30 bytes", queueA, 0},
		"delivery times of delayed messages": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			write(t, m, "consumequeue/SCHEDULE_TOPIC_XXXX/1/00000000000000000000", 12, strings.Repeat("\x00", 8))
		}, "has tags code 0", "consumequeue/SCHEDULE_TOPIC_XXXX/1/00000000000000000000", 0},
		"an index entry's hash": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			write(t, m, onlyIn(t, m, "index"), 40+16*4+20*5, "\x00\x11\x22\x33")
		}, "no key with that", "index", 0},
		"an index entry's place": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			write(t, m, onlyIn(t, m, "index"), 40+16*4+20*5+11, "\xff")
		}, "entry 5 leads to", "index", 0},
		"an index slot": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			write(t, m, onlyIn(t, m, "index"), 40, strings.Repeat("\x00", 16*4))
		}, "its newest is", "index", 0},
		"an index header": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			write(t, m, onlyIn(t, m, "index"), 36, "\x00\x01\x00\x00")
		}, "its header says", "index", 0},
		"an index file is short": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			edit(t, m, onlyIn(t, m, "index"), func(h vfs.File) { _ = h.Truncate(500) })
		}, "it has 500 bytes", "index", 0},
		"our checkpoint": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			write(t, m, store.CheckpointName, 12, "9")
		}, "damaged", store.CheckpointName, 0},
		"offsets that are cut": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			replace(t, m, "config/consumerOffset.json", `{"offsetTable":{"A@g":{0:2`)
		}, "it is damaged", "config/consumerOffset.json", 0},
		"topics that are empty": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			edit(t, m, "config/topics.json", func(h vfs.File) { _ = h.Truncate(0) })
		}, "it is empty", "config/topics.json", 0},
		"an offset behind the end": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			replace(t, m, "config/consumerOffset.json", `{"dataVersion":{"counter":7},"offsetTable":{"A@g":{0:500,1:2}}}`)
		}, "group g has offset 500 in topic A queue 0, which ends at 20", "config/consumerOffset.json", 0},
		"a delay offset behind the end": {func(t *testing.T, m *vfs.Mem, _ []store.Result) {
			replace(t, m, "config/delayOffset.json", `{"offsetTable":{2:9}}`)
		}, "delay level 2 has offset 9", "config/delayOffset.json", 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			a := made(t, m)
			wantSound(t, check(t, m))
			c.hurt(t, m, a)
			r := check(t, m)
			if c.want != "" && !named(r, c.file, c.want) {
				t.Fatalf("no finding of %s that says %q: %v %q", c.file, c.want, r.Findings, r.Notes)
			}
			before := contents(t, m)
			var out bytes.Buffer
			o := RepairOptions{Levels: levels, Now: time.UnixMilli(1700000000000)}
			if err := Repair(toolOptions(m), o, &out); c.want != "" && !errors.Is(err, ErrNotDone) || c.want == "" && err != nil {
				t.Fatalf("%v: %s", err, out.String())
			}
			if after := contents(t, m); after != before {
				t.Fatal("a repair without consent changed something")
			}
			o.Yes = true
			if err := Repair(toolOptions(m), o, &out); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			wantSound(t, check(t, m))
			if c.want != "" && !strings.Contains(out.String(), "will ") {
				t.Errorf("it doesn't say what it does: %s", out.String())
			}
			wantMessages(t, m, a, c.lost)
		})
	}
}

func lastIn(a []store.Result, limit int64) store.Result {
	var last store.Result
	for _, r := range a {
		if r.PhysicalOffset < limit {
			last = r
		}
	}
	return last
}

func named(r *Report, file, what string) bool {
	for _, f := range r.Findings {
		if strings.HasPrefix(f.File, file) && strings.Contains(f.What, what) {
			return true
		}
	}
	return false
}

// contents is everything in the store's folder, and the names beside it.
func contents(t *testing.T, m *vfs.Mem) string {
	t.Helper()
	var b strings.Builder
	var dir func(string)
	dir = func(name string) {
		entries, err := m.ReadDir(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			p := path.Join(name, e.Name())
			if e.IsDir() {
				dir(p)
				continue
			}
			f, err := m.OpenFile(p, os.O_RDONLY)
			if err != nil {
				t.Fatal(err)
			}
			size, _ := f.Size()
			data := make([]byte, size)
			if err := readFull(f, data, 0); err != nil {
				t.Fatal(err)
			}
			if e.Name() != "lock" {
				fmt.Fprintf(&b, "%s %x\n", p, data)
			}
		}
	}
	dir("/")
	return b.String()
}

// wantMessages opens the store and looks for A's messages: lost of them may be gone, -1 for any number that isn't all.
// Those that are there are in order, and later ones follow the last.
func wantMessages(t *testing.T, m *vfs.Mem, a []store.Result, lost int) {
	t.Helper()
	s, err := store.Open(storeOptions(m))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	there := 0
	var r store.GetResult
	for at := s.MinOffset("A", 0); at < s.MaxOffset("A", 0); {
		s.Get("A", 0, at, 32, 1<<20, nil, &r)
		for _, rec := range r.Records {
			var msg message.Message
			if _, err := message.DecodeRecord(rec, &msg, true); err != nil {
				t.Fatal(err)
			}
			if want := a[msg.QueueOffset].PhysicalOffset; msg.PhysicalOffset != want || !strings.HasPrefix(string(msg.Body), fmt.Sprintf("a%02d", msg.QueueOffset)) {
				t.Fatalf("offset %d at %d, was at %d", msg.QueueOffset, msg.PhysicalOffset, want)
			}
			there++
			q, err := s.Query("A", strings.Fields("k" + string(msg.Body))[0], 10, 0, 1<<60)
			if err != nil || len(q.Records) != 1 {
				t.Fatalf("offset %d is not found by key: %d, %v", msg.QueueOffset, len(q.Records), err)
			}
			q.Release()
		}
		if r.NextOffset <= at {
			t.Fatalf("reading stops at %d: %v", at, r.Status)
		}
		at = r.NextOffset
		r.Release()
	}
	if gone := len(a) - there; lost >= 0 && gone != lost || gone > len(a)/2 {
		t.Errorf("%d of %d messages are gone, want %d", gone, len(a), lost)
	}
	if _, _, tags, ok := s.QueueEntry(message.ScheduleTopic, 1, 0); ok {
		at, _ := s.StoreTimeAt(message.ScheduleTopic, 1, 0)
		if tags != at+5000 {
			t.Errorf("the delayed message is due at %d, stored at %d", tags, at)
		}
	} else if lost == 0 {
		t.Error("the delayed message is gone")
	}
	put(t, s, "A", 0, "new")
}

// TestJavaStores: what a Java broker left is sound, and comes out as its manifest says.
func TestJavaStores(t *testing.T) {
	for _, name := range []string{"clean", "crash", "crash_recovered"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(testkit.Untar(t, "../store/testdata/"+name+".tar.gz", t.TempDir()), "store")
			d, err := Open(Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			r, err := d.Check()
			if err != nil {
				t.Fatal(err)
			}
			wantSound(t, r)
			raw, err := os.ReadFile("../store/testdata/" + name + ".manifest.json")
			if err != nil {
				t.Fatal(err)
			}
			var want struct {
				Records []struct {
					Blank          bool
					PhysicalOffset int64
					Topic          string
					Body           string
					BodyLength     int
					Properties     map[string]string
				}
			}
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if _, err := d.Dump(Filter{Queue: -1}, true, &out, &out); err != nil {
				t.Fatal(err)
			}
			dec := json.NewDecoder(&out)
			n := 0
			for _, w := range want.Records {
				if w.Blank {
					continue
				}
				var got dumped
				if err := dec.Decode(&got); err != nil {
					t.Fatal(err)
				}
				if got.PhysicalOffset != w.PhysicalOffset || got.Topic != w.Topic || fmt.Sprint(got.Properties) != fmt.Sprint(w.Properties) || w.Body != "" && got.Body != w.Body && got.BodyBase64 == "" {
					t.Fatalf("%+v, want %+v", got, w)
				}
				n++
			}
			if int64(n) != r.Records || n < 50 {
				t.Errorf("%d records compared, %d checked", n, r.Records)
			}
		})
	}
}

func TestDumpFilters(t *testing.T) {
	m := vfs.NewMem()
	a := made(t, m)
	d, err := Open(toolOptions(m))
	if err != nil {
		t.Fatal(err)
	}
	dump := func(f Filter) (int, string) {
		t.Helper()
		var out, notes bytes.Buffer
		n, err := d.Dump(f, false, &out, &notes)
		if err != nil || notes.Len() > 0 {
			t.Fatal(err, notes.String())
		}
		return n, out.String()
	}
	mid := time.UnixMilli(a[10].StoreTimestamp)
	late := 0
	for _, r := range a {
		if r.StoreTimestamp >= mid.UnixMilli() {
			late++
		}
	}
	for _, c := range []struct {
		f    Filter
		want int
	}{
		{Filter{Queue: -1}, 41},
		{Filter{Topic: "A", Queue: -1}, 30},
		{Filter{Topic: "A", Queue: 1}, 10},
		{Filter{Topic: "A", Queue: 0, Offset: 15}, 5},
		{Filter{Topic: "A", Queue: 0, Offset: 99}, 0},
		{Filter{Topic: "A", Queue: 0, Offset: 3, Limit: 4}, 4},
		{Filter{Queue: -1, Key: "kc4"}, 1},
		{Filter{Queue: -1, Key: "c4"}, 0},
		{Filter{Topic: "A", Queue: 0, From: mid}, late},
		{Filter{Topic: "A", Queue: 0, To: mid}, 20 - late},
		{Filter{Topic: "None", Queue: -1}, 0},
	} {
		if n, text := dump(c.f); n != c.want || strings.Count(text, "\n") != n {
			t.Errorf("%+v: %d messages, want %d\n%s", c.f, n, c.want, text)
		}
	}
	if _, text := dump(Filter{Queue: -1, Key: "kc4"}); !strings.Contains(text, `topic=B queue=0 offset=2 tags=t keys=kc4 all body="c4"`) {
		t.Error(text)
	}
	i, err := d.Info()
	if err != nil {
		t.Fatal(err)
	}
	if !i.Clean || i.Running || i.Units != 41 || i.Topics != 3 || i.Queues != 4 || i.Keys < 80 || i.Groups != 1 || i.LogEnd != i.Checkpoint || i.Last.Before(i.First) {
		t.Errorf("%+v", i)
	}
	var text bytes.Buffer
	if i.Print(&text); !strings.Contains(text.String(), "A 0: offsets 0 to 20") || !strings.Contains(text.String(), "stopped cleanly") {
		t.Error(text.String())
	}
}

// TestWhileABrokerRuns checks a folder again and again while messages are stored, topics deleted and checkpoints
// written: nothing is a finding.
func TestWhileABrokerRuns(t *testing.T) {
	dir := t.TempDir()
	o := store.Options{Dir: dir, Flush: store.AsyncFlush, FlushInterval: time.Millisecond, SegmentSize: 64 << 10, QueueSize: 20 * 100, IndexSlots: 100, IndexSize: 400, CheckpointInterval: 2 * time.Millisecond}
	s, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := metafile.Save(vfs.OS(), dir+"/config/topics.json", []byte(`{"topicConfigTable":{"t1":{}}}`)); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if w == 1 && i%300 == 299 {
					if err := s.DeleteTopic("gone"); err != nil {
						t.Error(err)
					}
				}
				topic := fmt.Sprint("t", i%20)
				if w == 1 && i%7 == 0 {
					topic = "gone"
				}
				put(t, s, topic, int32(w), fmt.Sprint(w, "-", i))
			}
		})
	}
	testkit.Eventually(t, 30*time.Second, "there is something to check", func() bool { return s.Counters().Records.Load() > 500 })
	ran := 0
	for range 12 {
		d, err := Open(Options{Dir: dir, SegmentSize: o.SegmentSize, QueueSize: o.QueueSize, IndexSlots: o.IndexSlots, IndexSize: o.IndexSize})
		if err != nil {
			t.Fatal(err)
		}
		if !d.Running {
			t.Fatal("it doesn't see that a broker runs")
		}
		r, err := d.Check()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.Findings {
			t.Error(f)
		}
		if r.Records > 0 {
			ran++
		}
		if err := Repair(Options{Dir: dir}, RepairOptions{Yes: true, Levels: levels}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "stop it first") {
			t.Errorf("a repair while a broker runs: %v", err)
		}
	}
	close(stop)
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if ran < 5 {
		t.Errorf("only %d checks saw records", ran)
	}
	d, err := Open(Options{Dir: dir, SegmentSize: o.SegmentSize, QueueSize: o.QueueSize, IndexSlots: o.IndexSlots, IndexSize: o.IndexSize})
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Check()
	if err != nil {
		t.Fatal(err)
	}
	wantSound(t, r)
}

// TestRebuildLeavesDeletedTopicsDeleted: the log still holds their records.
func TestRebuildLeavesDeletedTopicsDeleted(t *testing.T) {
	m := vfs.NewMem()
	made(t, m)
	s, err := store.Open(storeOptions(m))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteTopic("A"); err != nil {
		t.Fatal(err)
	}
	put(t, s, "A", 0, "second life")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	replace(t, m, "config/consumerOffset.json", `{"offsetTable":{}}`)
	wantSound(t, check(t, m))
	if err := errors.Join(m.RemoveAll("/s/consumequeue/A"), m.SyncDir("/s/consumequeue")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Repair(toolOptions(m), RepairOptions{Yes: true, Levels: levels, Now: time.Now()}, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if s, err = store.Open(storeOptions(m)); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if lo, hi := s.MinOffset("A", 0), s.MaxOffset("A", 0); lo != 0 || hi != 1 {
		t.Errorf("topic A queue 0 has offsets %d to %d", lo, hi)
	}
	if hi := s.MaxOffset("A", 1); hi != 0 {
		t.Errorf("topic A queue 1 came back with %d messages", hi)
	}
}

// TestOtherKindsAreRefused: what RocksDB and DLedger stores hold is left untouched, by the store and by its tools.
func TestOtherKindsAreRefused(t *testing.T) {
	for file, what := range map[string]string{
		"consumequeue/CURRENT":                       "RocksDB",
		"config/topics/CURRENT":                      "RocksDB",
		"config/rdb/CURRENT":                         "RocksDB",
		"dledger-n0/data/00000000000000000000":       "DLedger",
		"commitlog/00000000000000000000 with frames": "DLedger",
	} {
		m := vfs.NewMem()
		file, frames := strings.CutSuffix(file, " with frames")
		if err := errors.Join(m.MkdirAll("/s/commitlog"), m.MkdirAll("/s/"+path.Dir(file))); err != nil {
			t.Fatal(err)
		}
		text := "MANIFEST-000001\n"
		if frames {
			rec := message.AppendRecord(nil, &message.Message{Topic: "T", Body: []byte("x")})
			text = "\x00\x00\x00\x01" + strings.Repeat("\x00", 44) + string(rec) + strings.Repeat("\x00", 100)
		}
		replace(t, m, file, text)
		before := contents(t, m)
		_, toolErr := Open(toolOptions(m))
		_, storeErr := store.Open(storeOptions(m))
		for _, err := range []error{toolErr, storeErr} {
			if !errors.Is(err, store.ErrForeign) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), strings.Split(file, "/")[0]) {
				t.Errorf("%s: %v", file, err)
			}
		}
		if contents(t, m) != before {
			t.Errorf("%s: something was changed", file)
		}
	}
}

func TestNoStore(t *testing.T) {
	if _, err := Open(Options{Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "holds no store") {
		t.Error(err)
	}
	if _, err := Open(Options{Dir: "/none/at/all"}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestRandomDamage hurts random bytes of random files: whatever the check finds, a repair leaves a store that is sound, opens
// and takes messages, and no more is gone than was hurt.
func TestRandomDamage(t *testing.T) {
	seed := uint64(1) // APOGEE_SEED tries another one; several places hurt at once may leave what no repair can know
	if v, err := strconv.ParseUint(os.Getenv("APOGEE_SEED"), 10, 64); err == nil {
		seed = v
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	base := vfs.NewMem()
	a := made(t, base)
	found := 0
	for i := range 150 {
		m := base.Kill()
		var hurt []string
		logs := 0
		for range 1 + rng.IntN(3) {
			var files []string
			for _, dir := range []string{"commitlog", "commitlog", "consumequeue/A/0", "consumequeue/A/1", "consumequeue/B/0", "index"} {
				entries, err := m.ReadDir("/s/" + dir)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					files = append(files, path.Join(dir, e.Name()))
				}
			}
			name := files[rng.IntN(len(files))]
			info, err := m.Stat("/s/" + name)
			if err != nil {
				t.Fatal(err)
			}
			at := rng.Int64N(info.Size())
			b := make([]byte, min(1+rng.Int64N(1+rng.Int64N(300)), info.Size()-at))
			for j := range b {
				b[j] = byte(rng.UintN(256))
			}
			if rng.IntN(4) == 0 {
				clear(b)
			}
			if strings.HasPrefix(name, "commitlog") {
				logs++
			}
			hurt = append(hurt, fmt.Sprintf("%s at %d: %d bytes", name, at, len(b)))
			write(t, m, name, at, string(b))
		}
		r := check(t, m)
		if len(r.Findings) > 0 {
			found++
		}
		var out bytes.Buffer
		if err := Repair(toolOptions(m), RepairOptions{Yes: true, Levels: levels, Now: time.Now()}, &out); err != nil {
			t.Fatalf("run %d, %v: %v\n%s", i, hurt, err, out.String())
		}
		if len(r.Findings) == 0 {
			continue // what nothing secures, or what means nothing
		}
		s, err := store.Open(storeOptions(m))
		if err != nil {
			t.Fatalf("run %d, %v: %v\n%s", i, hurt, err, out.String())
		}
		gone := 0
		for n, want := range a {
			physical, _, _, ok := s.QueueEntry("A", 0, int64(n))
			if !ok || physical != want.PhysicalOffset {
				gone++
			}
		}
		if gone > 2*logs {
			t.Errorf("run %d, %v: %d messages of A's queue 0 are gone\n%v\n%s", i, hurt, gone, r.Findings, out.String())
		}
		put(t, s, "A", 0, "new")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if found < 75 {
		t.Errorf("only %d damages were found", found)
	}
}
