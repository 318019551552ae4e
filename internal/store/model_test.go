package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/vfs"
)

// TestModel runs random operations on a store and on a plain list of messages and compares them: appends one by one,
// in batches and many at once, reads, queries, checkpoints, cleaning, deleted topics, full disks, failed flushes,
// clean stops, kills, power cuts that tear and reorder unflushed writes, and all of these during recovery.
//
// APOGEE_SEED repeats a run, APOGEE_ROUNDS makes it longer.
func TestModel(t *testing.T) {
	rounds := 25
	if testing.Short() {
		rounds = 6
	}
	if v, err := strconv.Atoi(os.Getenv("APOGEE_ROUNDS")); err == nil {
		rounds = v
	}
	for _, c := range []struct {
		name string
		tune func(*Options)
	}{
		{"tiny files", func(*Options) {}},
		{"unflushed", func(o *Options) { o.Flush = AsyncFlush }},
		{"no index", func(o *Options) { o.IndexOff = true }},
		{"index that rolls", func(o *Options) { o.IndexSlots, o.IndexSize = 3, 12 }},
		{"larger files", func(o *Options) { o.SegmentSize, o.QueueSize, o.IndexSize = 64<<10, 20*100, 4000 }},
		{"unflushed, larger files", func(o *Options) {
			o.Flush, o.SegmentSize, o.QueueSize, o.IndexSize = AsyncFlush, 64<<10, 20*100, 4000
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			if v := os.Getenv("APOGEE_SEED"); v != "" {
				seed, _ = strconv.ParseUint(v, 10, 64)
			}
			t.Logf("APOGEE_SEED=%d repeats it", seed)
			w := newWorld(t, seed, c.tune)
			w.open()
			for w.round = range rounds {
				w.live()
				w.end()
			}
			w.stop()
			if len(w.log) < rounds*5 {
				t.Errorf("only %d messages", len(w.log))
			}
		})
	}
}

// world is a store and what must be in it.
type world struct {
	t     *testing.T
	rnd   *rand.Rand
	tune  func(*Options)
	fs    *vfs.Mem
	s     *Store
	clock atomic.Int64 // ms
	round int
	n     int // messages so far

	log  []*sent // acknowledged, in the order of the log
	seen *listenerModel
	from int64 // physical offset at which the log begins
}

// sent is a message of the model.
type sent struct {
	key     queueKey
	body    string
	word    string // its key
	offset  int64
	phys    int64
	time    int64
	deleted bool // its topic was deleted after it
}

// listenerModel notes how far each queue was visible.
type listenerModel struct {
	mu   sync.Mutex
	next map[queueKey]int64
}

func (l *listenerModel) Arrived(topic string, id int32, next, _ int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := queueKey{topic, id}
	if next != l.next[key]+1 && l.next[key] != 0 {
		panic(fmt.Sprintf("%v: %d became visible after %d", key, next, l.next[key]))
	}
	l.next[key] = next
}

func (l *listenerModel) snapshot() map[queueKey]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := make(map[queueKey]int64, len(l.next))
	for k, v := range l.next {
		m[k] = v
	}
	return m
}

func newWorld(t *testing.T, seed uint64, tune func(*Options)) *world {
	w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 7)), tune: tune, fs: vfs.NewMem()}
	w.clock.Store(1_700_000_000_000)
	return w
}

func (w *world) options() Options {
	o := smallOptions(w.fs)
	w.tune(&o)
	w.seen = &listenerModel{next: map[queueKey]int64{}}
	o.Listener = w.seen
	o.Now = func() time.Time { return time.UnixMilli(w.clock.Load()) }
	if os.Getenv("APOGEE_TRACE") != "" {
		o.Logger = slog.New(slog.NewTextHandler(w.t.Output(), nil))
	}
	o.FlushInterval, o.CheckpointInterval = time.Hour, time.Hour
	return o
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("round %d: "+format, append([]any{w.round}, args...)...)
}

// note logs what happens when APOGEE_TRACE is set.
func (w *world) note(format string, args ...any) {
	if os.Getenv("APOGEE_TRACE") != "" {
		w.t.Logf("round %d: "+format, append([]any{w.round}, args...)...)
	}
}

func (w *world) open() {
	w.t.Helper()
	s, err := Open(w.options())
	if err != nil {
		w.fatalf("open: %v", err)
	}
	w.s = s
	w.note("open: log %d..%d, checkpoint %d", s.MinPhysical(), s.MaxPhysical(), s.checkpointed.Load())
}

func (w *world) stop() {
	w.t.Helper()
	if err := w.s.Close(); err != nil {
		w.fatalf("close: %v", err)
	}
}

func (w *world) flushed() bool { return w.s.o.Flush == SyncFlush }

func (w *world) someQueue() queueKey {
	return queueKey{fmt.Sprintf("T%d", w.rnd.IntN(4)), int32(w.rnd.IntN(3))}
}

func (w *world) message(key queueKey) (message.Message, *sent) {
	w.clock.Add(int64(w.rnd.IntN(3)) * int64(w.rnd.IntN(2000)))
	w.n++
	m := &sent{key: key, body: fmt.Sprintf("%06d%s", w.n, strings.Repeat("z", 100*w.rnd.IntN(4))), word: fmt.Sprintf("k%d", w.rnd.IntN(20))}
	props := message.AppendProperty(nil, message.PropertyTags, "t"+strconv.Itoa(w.n%3))
	props = message.AppendProperty(props, message.PropertyKeys, m.word+" all")
	props = message.AppendProperty(props, message.PropertyUniqueKey, "U"+strconv.Itoa(w.n))
	return message.Message{Topic: key.topic, QueueID: key.id, Body: []byte(m.body), Properties: props}, m
}

// next returns the offset that a queue's next message gets.
func (w *world) next(key queueKey) int64 {
	for i := len(w.log) - 1; i >= 0; i-- {
		if m := w.log[i]; m.key == key && !m.deleted {
			return m.offset + 1
		}
	}
	return 0
}

// took adds an acknowledged message to the model.
func (w *world) took(m *sent, r Result) {
	w.t.Helper()
	if r.Err != nil {
		w.fatalf("append: %v", r.Err)
	}
	if want := w.next(m.key); r.QueueOffset != want {
		w.fatalf("%v: message %.6s got offset %d, want %d", m.key, m.body, r.QueueOffset, want)
	}
	m.offset, m.phys, m.time = r.QueueOffset, r.PhysicalOffset, r.StoreTimestamp
	if n := len(w.log); n > 0 && w.log[n-1].phys >= m.phys {
		w.fatalf("physical offset %d after %d", m.phys, w.log[n-1].phys)
	}
	w.log = append(w.log, m)
	w.note("%.6s: %v offset %d at %d", m.body, m.key, m.offset, m.phys)
}

func (w *world) put() {
	w.t.Helper()
	m, e := w.message(w.someQueue())
	r, _ := w.s.Put(w.t.Context(), &m)
	w.took(e, r)
}

func (w *world) putBatch() {
	w.t.Helper()
	key := w.someQueue()
	var ms []message.Message
	var es []*sent
	for range 1 + w.rnd.IntN(5) {
		m, e := w.message(key)
		ms, es = append(ms, m), append(es, e)
	}
	c := make(chanWaiter, 1)
	w.s.AppendBatch(ms, c)
	r := <-c
	if r.Err != nil || r.Count != len(ms) || len(r.Sizes) != len(ms) {
		w.fatalf("batch: %+v", r)
	}
	for i, e := range es {
		w.took(e, r)
		r.QueueOffset++
		r.PhysicalOffset += int64(r.Sizes[i])
	}
}

// putMany appends without waiting in between; the results come in the order of the appends.
func (w *world) putMany(n int) (es []*sent, waiters []chanWaiter) {
	for range n {
		m, e := w.message(w.someQueue())
		c := make(chanWaiter, 1)
		w.s.Append(&m, c)
		es, waiters = append(es, e), append(waiters, c)
	}
	return es, waiters
}

// live is a while of a store's life.
func (w *world) live() {
	w.t.Helper()
	for range w.rnd.IntN(50) {
		switch w.rnd.IntN(20) {
		default:
			w.put()
		case 0, 1:
			w.putBatch()
		case 2, 3:
			es, cs := w.putMany(w.rnd.IntN(8))
			for i, c := range cs {
				w.took(es[i], <-c)
			}
		case 4:
			w.noError(w.s.flushLog(w.s.dispatched.Load()))
			w.noError(w.s.writeDerived())
		case 5:
			w.noError(w.s.writeDerived())
		case 6:
			w.noError(w.s.checkpoint())
		case 7:
			w.someReads()
		case 8:
			w.fullDisk()
		case 9:
			if w.rnd.IntN(3) == 0 {
				w.clean()
			}
		case 10:
			if w.rnd.IntN(6) == 0 {
				w.deleteTopic()
			}
		}
	}
	w.check()
}

func (w *world) noError(err error) {
	w.t.Helper()
	if err != nil {
		w.fatalf("%v", err)
	}
}

func (w *world) clean() {
	w.t.Helper()
	n, err := w.s.Clean(CleanPolicy{Keep: time.Hour, Hour: true, MaxFiles: 1 + w.rnd.IntN(3)}, time.Now().Add(2*time.Hour))
	w.noError(err)
	w.note("cleaned %d", n)
	if n > 0 {
		w.from = w.s.MinPhysical()
	}
}

func (w *world) deleteTopic() {
	w.t.Helper()
	topic := w.someQueue().topic
	es, cs := w.putMany(w.rnd.IntN(3)) // some on their way
	w.noError(w.s.DeleteTopic(topic))
	w.note("deleted %s", topic)
	for i, c := range cs {
		w.took(es[i], <-c)
	}
	for _, m := range w.log {
		m.deleted = m.deleted || m.key.topic == topic
	}
	w.seen.mu.Lock()
	for key := range w.seen.next {
		if key.topic == topic {
			delete(w.seen.next, key)
		}
	}
	w.seen.mu.Unlock()
}

// fullDisk refuses appends with a disk that takes only a part of a write, and then has room again.
func (w *world) fullDisk() {
	w.t.Helper()
	part := w.rnd.IntN(3)
	zeroFails := w.rnd.IntN(3) == 0
	w.note("full disk, part %d/2, zero fails %v, at %d", part, zeroFails, w.s.MaxPhysical())
	w.fs.FailWith(func(op, name string) error {
		switch {
		case !strings.Contains(name, "commitlog"):
		case op == "write":
			return &vfs.Short{Part: func(n int) int { return n * part / 2 }, Err: syscall.ENOSPC}
		case op == "zero" && zeroFails:
			return syscall.ENOSPC
		}
		return nil
	})
	for range 1 + w.rnd.IntN(2) {
		_, cs := w.putMany(1 + w.rnd.IntN(4))
		for _, c := range cs {
			if r := <-c; !errors.Is(r.Err, ErrDiskFull) {
				w.fatalf("full disk: %v", r.Err)
			}
		}
	}
	w.fs.FailWith(nil)
	w.put() // and erases what was written, which may have failed before: until then a crash may find it
}

// end ends the store's run in one of the ways there are and opens it again.
func (w *world) end() {
	w.t.Helper()
	es, cs := w.putMany(w.rnd.IntN(2) * w.rnd.IntN(5)) // nobody waits for these
	visible := w.seen.snapshot()
	lossy := false // a power cut took what wasn't flushed
	how := w.rnd.IntN(6)
	w.note("end %d, %d unsure, log ends at %d", how, len(es), w.s.MaxPhysical())
	var next *vfs.Mem
	switch how {
	case 0: // clean stop, and whatever happens then
		w.stop()
		next = w.fs.Crash(nil)
	case 1, 2: // power cut
		next = w.fs.Crash(w.tear())
		lossy = true
	case 3: // killed
		next = w.fs.Kill()
	case 4: // killed, then a power cut
		next = w.fs.Kill().Crash(w.tear())
		lossy = true
	case 5: // a flush or write fails, later the process is killed
		w.failLog(&es, &cs)
		next = w.fs.Kill()
	}
	if how != 0 {
		_ = w.s.Close() // the old process's goroutines; its files are another world's
	}
	var unsure []*sent
	for i, c := range cs {
		if r := <-c; r.Err == nil && how == 0 {
			w.took(es[i], r)
		} else {
			unsure = append(unsure, es[i])
		}
	}
	w.fs = next
	flushed := w.flushed()
	w.troubledOpen(&lossy)
	w.open()
	w.settle(unsure, lossy && !flushed)
	if flushed {
		for key, n := range visible {
			if got := w.s.MaxOffset(key.topic, key.id); got < n {
				w.fatalf("%v: %d was visible before the crash, the queue ends at %d", key, n, got)
			}
		}
	}
	w.check()
}

// troubledOpen opens the store with errors or crashes on the way, before it is opened for good.
func (w *world) troubledOpen(lossy *bool) {
	w.t.Helper()
	for range w.rnd.IntN(3) {
		fails := int64(w.rnd.IntN(60))
		var count atomic.Int64
		var crashed *vfs.Mem
		crash := w.rnd.IntN(2) == 0
		w.fs.FailWith(func(op, name string) error {
			if n := count.Add(1); n < fails || n > fails && !crash {
				return nil
			}
			return syscall.EIO
		})
		s, err := Open(w.options())
		w.note("troubled open with crash %v: %v", crash, err)
		if crash {
			crashed = w.fs.Crash(w.tear())
			*lossy = true
		}
		if err == nil {
			_ = s.Close()
		}
		w.fs.FailWith(nil)
		if crashed != nil {
			w.fs = crashed
		} else {
			w.fs = w.fs.Kill()
		}
	}
}

// tear says which part of unflushed writes a power cut leaves.
func (w *world) tear() func(string, int) int {
	rnd := rand.New(rand.NewPCG(w.rnd.Uint64(), 3))
	switch rnd.IntN(4) {
	case 0:
		return nil
	case 1:
		return func(_ string, size int) int { return size }
	case 2: // whole writes, any of them
		return func(_ string, size int) int { return size * rnd.IntN(2) }
	}
	return func(name string, size int) int {
		n := rnd.IntN(size + 1)
		if strings.Contains(name, "/index/") {
			n -= n % 4 // its words are aligned: no disk tears one
		}
		return n
	}
}

// failLog lets the log fail, with appends on their way and after.
func (w *world) failLog(es *[]*sent, cs *[]chanWaiter) {
	w.t.Helper()
	bad := []string{"datasync", "write"}[w.rnd.IntN(2)]
	w.note("log fails at %s", bad)
	w.fs.FailWith(func(op, name string) error {
		if op == bad && strings.Contains(name, "commitlog") {
			return syscall.EIO
		}
		return nil
	})
	e, c := w.putMany(1 + w.rnd.IntN(4))
	*es, *cs = append(*es, e...), append(*cs, c...)
	if !w.flushed() && bad == "datasync" {
		// The committer may go on while this runs: only what was written and unflushed before the call must fail.
		durable, written := w.s.flushed.Load(), w.s.dispatched.Load()
		if err := w.s.flushLog(written); written > durable && !errors.Is(err, ErrLogFailed) {
			w.fatalf("failed flush of %d to %d: %v", durable, written, err)
		}
	} else {
		if err := w.s.barrier(); !errors.Is(err, ErrLogFailed) {
			w.fatalf("after a failure: %v", err)
		}
		m, _ := w.message(w.someQueue())
		if _, err := w.s.Put(w.t.Context(), &m); !errors.Is(err, ErrLogFailed) || w.s.Health() == nil {
			w.fatalf("put after a failure: %v, health %v", err, w.s.Health())
		}
	}
	w.fs.FailWith(nil)
}

// settle makes the model what the store found: of the unsure ones those that came through, in the order in which
// they were appended and none behind a missing one. With lossy the same holds for acknowledged ones.
func (w *world) settle(unsure []*sent, lossy bool) {
	w.t.Helper()
	all := append(slices.Clone(w.log), unsure...)
	sure, known := len(w.log), len(w.log)
	if lossy {
		sure = 0
	}
	found := map[string]bool{}
	phys := map[string]message.Message{}
	w.s.walk(w.t, func(m message.Message) {
		found[string(m.Body)] = true
		phys[string(m.Body)] = m
	})
	w.log = w.log[:0]
	missing := ""
	for i, m := range all {
		if !found[m.body] {
			if i < known && m.phys < w.from {
				w.log = append(w.log, m) // cleaned away
				continue
			}
			if i < sure {
				w.fatalf("acknowledged message %.6s of %v is lost", m.body, m.key)
			}
			missing = m.body
			continue
		}
		if missing != "" {
			w.fatalf("message %.6s is there, %.6s, appended before it, is not", m.body, missing)
		}
		r := phys[m.body]
		m.offset, m.phys, m.time = r.QueueOffset, r.PhysicalOffset, r.StoreTimestamp
		w.log = append(w.log, m)
	}
	for body := range found {
		if !slices.ContainsFunc(w.log, func(m *sent) bool { return m.body == body }) {
			w.fatalf("message %.6s is in the log and was never acknowledged nor unsure", body)
		}
	}
}

// walk calls f for each record of the log.
func (s *Store) walk(t *testing.T, f func(message.Message)) {
	t.Helper()
	for at := s.MinPhysical(); at < s.MaxPhysical(); {
		g := s.segmentAt(at)
		var m message.Message
		_, n, err := newLogReader(g, s.o.SegmentSize).record(at, &m, true)
		g.unref()
		if err != nil && !errors.Is(err, message.ErrBlank) {
			t.Fatalf("record at %d: %v", at, err)
		}
		if err == nil {
			m.Body = bytes.Clone(m.Body)
			f(m)
		}
		at += int64(n)
	}
}

// live messages of a queue, from the log's beginning on.
func (w *world) queueOf(key queueKey) (min, max int64, list []*sent) {
	for _, m := range w.log {
		if m.key != key || m.deleted {
			continue
		}
		max = m.offset + 1
		if m.phys >= w.from {
			list = append(list, m)
		}
	}
	min = max
	if len(list) > 0 {
		min = list[0].offset
	}
	return min, max, list
}

// check compares everything.
func (w *world) check() {
	w.t.Helper()
	for i := range 4 {
		for id := range int32(3) {
			w.checkQueue(queueKey{fmt.Sprintf("T%d", i), id})
		}
	}
	for range 5 {
		w.checkKey(fmt.Sprintf("T%d", w.rnd.IntN(4)), fmt.Sprintf("k%d", w.rnd.IntN(20)), 64)
	}
	if n := len(w.log); n > 0 {
		m := w.log[n-1-w.rnd.IntN(min(n, 50))]
		w.checkKey(m.key.topic, "U"+strings.TrimLeft(m.body[:6], "0"), 1)
	}
}

func (w *world) checkQueue(key queueKey) {
	w.t.Helper()
	lo, hi, list := w.queueOf(key)
	if got := w.s.MaxOffset(key.topic, key.id); got != hi {
		w.fatalf("%v ends at %d, want %d", key, got, hi)
	}
	if got := w.s.MinOffset(key.topic, key.id); got != lo && hi > 0 {
		w.fatalf("%v begins at %d, want %d", key, got, lo)
	}
	if len(list) == 0 {
		return
	}
	var got []string
	var r GetResult
	for at := lo; at < hi; {
		w.s.Get(key.topic, key.id, at, 32, 1<<20, nil, &r)
		if r.Status != Found {
			w.fatalf("%v at %d of %d..%d: %v", key, at, lo, hi, r.Status)
		}
		for i, rec := range r.Records {
			var m message.Message
			if _, err := message.DecodeRecord(rec, &m, true); err != nil || m.Topic != key.topic || m.QueueID != key.id || m.QueueOffset != at+int64(i) {
				w.fatalf("%v at %d: %s %d at %d, %v", key, at+int64(i), m.Topic, m.QueueID, m.QueueOffset, err)
			}
			got = append(got, string(m.Body))
		}
		at = r.NextOffset
		r.Release()
	}
	for i, m := range list {
		if i >= len(got) || got[i] != m.body || m.offset != lo+int64(i) {
			w.fatalf("%v: message %d of %d is wrong or missing (%.6s)", key, i, len(list), m.body)
		}
	}
	if len(got) != len(list) {
		w.fatalf("%v: %d messages, want %d", key, len(got), len(list))
	}
	// By time.
	at := list[w.rnd.IntN(len(list))].time
	first := slices.IndexFunc(list, func(m *sent) bool { return m.time >= at })
	if got := w.s.OffsetByTime(key.topic, key.id, at, false); got != list[first].offset {
		w.fatalf("%v: offset by time %d, want %d", key, got, list[first].offset)
	}
}

// checkKey looks for messages by key: the newest limit of them must be found.
func (w *world) checkKey(topic, key string, limit int) {
	w.t.Helper()
	if w.s.index == nil {
		return
	}
	var want []string
	for i := len(w.log) - 1; i >= 0 && len(want) < limit; i-- {
		m := w.log[i]
		if m.phys >= w.from && m.key.topic == topic && (m.word == key || "U"+strings.TrimLeft(m.body[:6], "0") == key) {
			want = append(want, m.body)
		}
	}
	r, err := w.s.Query(topic, key, 64, 0, 1<<62)
	w.noError(err)
	defer r.Release()
	got := map[string]bool{}
	for _, rec := range r.Records {
		var m message.Message
		if _, err := message.DecodeRecord(rec, &m, true); err != nil {
			w.fatalf("by key %s: %v", key, err)
		}
		if got[string(m.Body)] {
			w.fatalf("by key %s: %.6s twice", key, m.Body)
		}
		got[string(m.Body)] = true
	}
	for _, body := range want {
		if !got[body] {
			w.fatalf("by key %s of %s: %.6s is not among %d found", key, topic, body, len(got))
		}
	}
}

// someReads reads at odd places.
func (w *world) someReads() {
	w.t.Helper()
	key := w.someQueue()
	lo, hi, list := w.queueOf(key)
	var r GetResult
	for _, c := range []struct {
		at     int64
		status GetStatus
		next   int64
	}{{hi, OffsetOverflowOne, hi}, {hi + 5, OffsetOverflowBadly, hi}, {lo - 1, OffsetTooSmall, lo}} {
		if hi == 0 {
			c.status, c.next = NoMessageInQueue, 0
		}
		w.s.Get(key.topic, key.id, c.at, 1, 0, nil, &r)
		if r.Status != c.status || r.NextOffset != c.next {
			w.fatalf("%v %d..%d at %d: %v, next %d", key, lo, hi, c.at, r.Status, r.NextOffset)
		}
		r.Release()
	}
	if len(list) == 0 {
		return
	}
	// A filter that lets a third through.
	at := lo + w.rnd.Int64N(hi-lo)
	tag := "t" + strconv.Itoa(w.rnd.IntN(3))
	w.s.Get(key.topic, key.id, at, 5, 0, tagFilter(message.TagsCode([]byte(tag))), &r)
	defer r.Release()
	var want []string
	next := at
	for _, m := range list {
		if m.offset < at || len(want) == 5 {
			continue
		}
		if n, _ := strconv.Atoi(m.body[:6]); "t"+strconv.Itoa(n%3) == tag {
			want = append(want, m.body)
		}
		next = m.offset + 1
	}
	if len(want) == 0 && r.Status == NoMatchedMessage && r.NextOffset == hi {
		return
	}
	if r.Status != Found || len(r.Records) != len(want) || r.NextOffset != next {
		w.fatalf("%v at %d by tag: %v, %d messages, next %d; want %d, next %d", key, at, r.Status, len(r.Records), r.NextOffset, len(want), next)
	}
	for i, rec := range r.Records {
		if !bytes.Contains(rec, []byte(want[i])) {
			w.fatalf("%v at %d by tag: message %d is not %.6s", key, at, i, want[i])
		}
	}
}
