package store

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/vfs"
)

// TestBuildingAnewLeavesDeletedTopics: all consume queues are gone and are built from the whole log, which still holds
// records of a topic that was deleted, and of its next life.
func TestBuildingAnewLeavesDeletedTopics(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, smallOptions(m))
	for i := range 20 {
		put(t, s, "gone", 0, fmt.Sprint("old", i))
		put(t, s, "gone", 1, fmt.Sprint("old", i))
		put(t, s, "T", 0, fmt.Sprint(i))
	}
	if err := s.DeleteTopic("gone"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		put(t, s, "gone", 0, fmt.Sprint("new", i))
		put(t, s, "T", 0, fmt.Sprint("more", i))
	}
	if err := s.checkpoint(); err != nil {
		t.Fatal(err)
	}
	put(t, s, "T", 0, "last") // what is read after the crash: it shows that the queue is missing
	m = m.Kill()
	_ = s.Close()
	if err := m.RemoveAll("/store/consumequeue"); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, smallOptions(m))
	defer mustClose(t, s)
	if got := read(t, s, "T", 0); len(got) != 24 {
		t.Errorf("topic T has %d messages, want 24", len(got))
	}
	if got := read(t, s, "gone", 0); fmt.Sprint(got) != "[new0 new1 new2]" {
		t.Errorf("the topic that was deleted and made again has %v", got)
	}
	if _, hi := s.bounds("gone", 1); hi != 0 {
		t.Errorf("a queue of the deleted topic came back with %d messages", hi)
	}
}

func TestDeletedFile(t *testing.T) {
	b, err := encodeDeleted(map[string]int64{"A": 17, "%RETRY%g": 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	if d, ok := DecodeDeleted(b); !ok || len(d) != 2 || d["A"] != 17 || d["%RETRY%g"] != 1<<40 {
		t.Errorf("%v %v", d, ok)
	}
	for i := range b {
		hurt := append([]byte(nil), b...)
		hurt[i] ^= 4
		if d, ok := DecodeDeleted(hurt); ok {
			t.Errorf("byte %d: %v", i, d)
		}
		if d, ok := DecodeDeleted(b[:i]); ok {
			t.Errorf("cut at %d: %v", i, d)
		}
	}
}

// TestCleaningWaitsForTheCheckpoint: while the checkpoint can't be written, no file goes that it isn't behind of. Its records
// say where their queues go on: had it gone, a crash would let queues begin again at an offset that was given out.
func TestCleaningWaitsForTheCheckpoint(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, smallOptions(m))
	for i := range 40 {
		put(t, s, "T", int32(i/20), fmt.Sprintf("%03d%s", i, strings.Repeat("c", 300)))
	}
	m.FailWith(func(op, name string) error {
		if op == "rename" && strings.Contains(name, ownCheckpointName) {
			return os.ErrPermission
		}
		return nil
	})
	policy := CleanPolicy{Hour: true, MaxFiles: 100}
	later := time.Now().Add(time.Hour)
	if n, err := s.Clean(policy, later); n != 0 || !errors.Is(err, os.ErrPermission) || s.MinPhysical() != 0 {
		t.Errorf("%d files went, the log begins at %d, %v", n, s.MinPhysical(), err)
	}
	m.FailWith(nil)
	if n, err := s.Clean(policy, later); n < 2 || err != nil {
		t.Errorf("%d files went, %v", n, err)
	}
	want := [2]int64{s.MaxOffset("T", 0), s.MaxOffset("T", 1)}
	m = m.Crash(nil)
	_ = s.Close()
	s = mustOpen(t, smallOptions(m))
	defer mustClose(t, s)
	for q, at := range want {
		r, err := s.Put(t.Context(), &message.Message{Topic: "T", QueueID: int32(q), Body: []byte("next")})
		if err != nil || r.QueueOffset != at {
			t.Errorf("queue %d goes on at %d, want %d (%v)", q, r.QueueOffset, at, err)
		}
	}
}

// TestGapBehindABlankBeginning: a queue that begins inside its file, and in which messages are missing later, begins where it
// did when it is opened again.
func TestGapBehindABlankBeginning(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, smallOptions(m))
	for i := range 20 {
		put(t, s, "T", 0, fmt.Sprint(i))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	blank := blankUnits(1)
	for _, offset := range []int64{0, 1, 9, 10, 17} {
		overwriteFile(t, m, fmt.Sprintf("/store/consumequeue/T/0/%020d", offset/8*160), offset%8*queueUnit, blank)
	}
	s = mustOpen(t, smallOptions(m))
	defer mustClose(t, s)
	if lo, hi := s.bounds("T", 0); lo != 2 || hi != 20 {
		t.Errorf("the queue has offsets %d to %d, want 2 to 20", lo, hi)
	}
	got := 0
	var r GetResult
	for at := int64(2); at < 20; at = r.NextOffset {
		s.Get("T", 0, at, 32, 1<<20, nil, &r)
		if got += r.Count; r.NextOffset <= at {
			t.Fatalf("reading stops at %d: %v", at, r.Status)
		}
		r.Release()
	}
	if got != 15 {
		t.Errorf("%d messages, want 15", got)
	}
}
