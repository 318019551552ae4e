package storetool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path"
	"strings"
	"time"

	"github.com/apogeemq/apogee/internal/broker/delay"
	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/metafile"
	"github.com/apogeemq/apogee/internal/store"
)

// RepairOptions say what a repair may do.
type RepairOptions struct {
	Yes    bool   // do it; otherwise only say what would be done
	Index  bool   // build the index anew though nothing in it is wrong
	Levels string // messageDelayLevel
	Now    time.Time
	Logger *slog.Logger
}

// ErrNotDone: a repair would change something and was not told to.
var ErrNotDone = errors.New("nothing was changed: give --yes to do it")

// step is one thing that a repair does.
type step struct {
	what string
	do   func() error
}

// repair is one run of it. What it cuts, overwrites or removes is copied into a folder beside the store's first.
type repair struct {
	d      *Folder
	r      *Report
	o      RepairOptions
	levels delay.Levels
	keep   string // the folder of copies
}

// Repair says on w what it will do about a check's findings and does it.
//
//   - A hole in the log is filled with records that no consumer sees, so that what lies behind it stays readable. What was
//     in the hole is lost; its places in the consume queues stand for no message.
//   - A log that ends before its checkpoint is cut to its last whole record.
//   - Consume queues that contradict the log, and a damaged index, are built anew from the log.
//   - Offsets behind a queue's end are set to its end. Damaged metadata gives way to its older generation.
func Repair(o Options, ro RepairOptions, w io.Writer) error {
	levels, err := delay.ParseLevels(ro.Levels)
	if err != nil {
		return err
	}
	if ro.Logger == nil {
		ro.Logger = slog.New(slog.DiscardHandler)
	}
	d, err := Open(o)
	if err != nil {
		return err
	}
	if d.Running {
		return fmt.Errorf("a broker has %s open: stop it first", o.Dir)
	}
	lock, err := d.fs.Lock(d.path("lock"))
	if err != nil {
		return fmt.Errorf("lock %s: %w", o.Dir, err)
	}
	r := &repair{d: d, o: ro, levels: levels, keep: strings.TrimSuffix(o.Dir, "/") + ".repair-" + ro.Now.Format("20060102T150405")}
	rebuilds, err := r.first(w)
	if err = errors.Join(err, lock.Close()); err != nil || !ro.Yes {
		return err
	}
	if rebuilds {
		if err := r.rebuild(w); err != nil { // takes the lock itself
			return err
		}
	}
	return r.last(o, w)
}

// first prints the plan and does what comes before the store is opened.
func (r *repair) first(w io.Writer) (rebuilds bool, err error) {
	if r.r, err = r.d.Check(); err != nil {
		return false, err
	}
	steps := r.steps()
	rebuilds = len(r.r.queues)+len(r.r.missing)+len(r.r.holes) > 0 || r.r.index || r.o.Index || len(steps) > 0
	if !rebuilds && len(r.r.fixes) == 0 {
		fmt.Fprintln(w, "nothing to repair")
		return false, nil
	}
	for _, s := range steps {
		fmt.Fprintln(w, "will", s.what)
	}
	for q := range r.r.queues {
		fmt.Fprintf(w, "will build the consume queue %s anew from the log\n", r.d.rel(q.dir))
	}
	for key := range r.r.missing {
		fmt.Fprintf(w, "will build the consume queue consumequeue/%s/%d anew from the log\n", key.topic, key.id)
	}
	if r.r.index || r.o.Index {
		fmt.Fprintln(w, "will build the index anew from the log")
	}
	for _, f := range r.r.fixes {
		fmt.Fprintln(w, "will", f)
	}
	fmt.Fprintln(w, "copies of what is changed go to", r.keep)
	if !r.o.Yes {
		return rebuilds, ErrNotDone
	}
	if err := r.d.fs.MkdirAll(r.keep); err != nil {
		return rebuilds, err
	}
	for q := range r.r.queues {
		if err := r.copyQueue(q); err != nil {
			return rebuilds, err
		}
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return rebuilds, fmt.Errorf("%s: %w", s.what, err)
		}
	}
	if r.r.index || r.o.Index {
		for _, x := range r.d.index {
			if err := r.copyFile(x.name, -1); err != nil {
				return rebuilds, err
			}
			if x.size != r.d.indexSize(r.d.o.IndexSlots, r.d.o.IndexSize) {
				if err := r.d.fs.Remove(x.name); err != nil {
					return rebuilds, err
				}
			}
		}
	}
	return rebuilds, nil
}

// steps are what is done to the log and to small files.
func (r *repair) steps() []step {
	var out []step
	add := func(do func() error, format string, args ...any) {
		out = append(out, step{fmt.Sprintf(format, args...), do})
	}
	d := r.d
	for _, g := range d.segments {
		if g.size > d.o.SegmentSize {
			add(func() error { return r.resize(g) }, "cut %s to %d bytes", d.rel(g.name), d.o.SegmentSize)
		} else if g.size < d.o.SegmentSize {
			add(func() error { return r.resize(g) }, "make %s %d bytes long again, with zeros", d.rel(g.name), d.o.SegmentSize)
		}
	}
	checkpoint := d.ownBad
	for _, h := range r.r.holes {
		switch {
		case h.missing:
			add(func() error { return r.blankFiles(h) }, "make commit-log files without a message for physical offsets %d to %d, which are missing", h.from, h.to)
		case h.tail:
			checkpoint = true
			add(func() error { return r.cutLog(h) }, "cut the log at %d, its last whole record; it went on to %d once", h.from, h.to)
		default:
			add(func() error { return r.fill(h) }, "fill %d bytes of %s with records that no consumer sees, from physical offset %d to %d", h.to-h.from, d.rel(d.segmentOf(h.from).name), h.from, h.to)
		}
	}
	if d.Own != nil && d.Own.Physical > r.r.End && !checkpoint {
		checkpoint = true
	}
	if checkpoint {
		name := d.path(store.CheckpointName)
		add(func() error { return errors.Join(r.copyFile(name, -1), d.fs.Remove(name), d.fs.SyncDir(d.o.Dir)) }, "remove %s, so that the log is read anew", store.CheckpointName)
	}
	for q := range r.r.queues {
		for _, f := range q.bad {
			add(func() error { return d.fs.Remove(f.name) }, "remove %s, which has %d bytes of %d", d.rel(f.name), f.size, d.o.QueueSize)
		}
		if n := r.lostUnits(q, nil); n > 0 {
			add(func() error { return r.blankLost(q) }, "let %d units of the consume queue %s, whose messages are lost, stand for no message", n, d.rel(q.dir))
		}
		if from, ok := r.strayUnits(q); ok {
			add(func() error { return r.cutUnits(q, from) }, "cut the consume queue %s at offset %d", d.rel(q.dir), from)
		}
	}
	for _, f := range r.r.badConfigs {
		if f.take {
			add(func() error { return r.takeOlder(f.file) }, "put %s.bak in the place of %s", f.file, f.file)
		} else {
			name := d.path(f.file)
			add(func() error {
				return errors.Join(r.copyFile(name, -1), d.fs.Remove(name), d.fs.SyncDir(d.path("config")))
			}, "remove %s, which is damaged", f.file)
		}
	}
	return out
}

// takeOlder replaces a metadata file by its older generation.
func (r *repair) takeOlder(file string) error {
	name := r.d.path(file)
	if err := r.copyFile(name, -1); err != nil {
		return err
	}
	b, err := r.d.read(name + ".bak")
	if err != nil {
		return err
	}
	f, err := r.d.fs.OpenFile(name+".tmp", os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return errors.Join(r.d.fs.Rename(name+".tmp", name), r.d.fs.SyncDir(r.d.path("config")))
}

// strayUnits returns from where on a queue without a record in the log has units that lead nowhere.
func (r *repair) strayUnits(q *queue) (from int64, ok bool) {
	for at := q.lo; at < q.hi; at++ {
		u, there, err := r.d.unit(q, at)
		if err == nil && there && !u.NoMessage() && (u.Empty() || u.Physical >= r.r.End) {
			return at, true
		}
	}
	return 0, false
}

// lostUnits calls f for the units of a queue that lead into holes of the log, and returns how many there are. A queue that still has
// messages is built anew; one that has none keeps its offsets by them.
func (r *repair) lostUnits(q *queue, f func(offset int64)) int {
	n := 0
	for at := q.lo; at < q.hi; at++ {
		u, there, err := r.d.unit(q, at)
		if err == nil && there && !u.NoMessage() && !u.Empty() && r.r.inHoles(u.Physical) {
			if n++; f != nil {
				f(at)
			}
		}
	}
	return n
}

func (r *repair) blankLost(q *queue) error {
	per := r.d.o.QueueSize / store.UnitSize
	var errs []error
	r.lostUnits(q, func(offset int64) {
		f, err := r.d.fs.OpenFile(path.Join(q.dir, fmt.Sprintf("%020d", offset/per*r.d.o.QueueSize)), os.O_RDWR)
		if err != nil {
			errs = append(errs, err)
			return
		}
		_, err = f.WriteAt(store.AppendNoMessage(nil), offset%per*store.UnitSize)
		errs = append(errs, err, f.Sync(), f.Close())
	})
	q.window = q.window[:0]
	return errors.Join(errs...)
}

func (r *repair) cutUnits(q *queue, from int64) error {
	per := r.d.o.QueueSize / store.UnitSize
	for _, start := range q.starts {
		first := start / store.UnitSize
		if first+per <= from {
			continue
		}
		f, err := r.d.fs.OpenFile(path.Join(q.dir, fmt.Sprintf("%020d", start)), os.O_RDWR)
		if err != nil {
			return err
		}
		at := max(from-first, 0) * store.UnitSize
		if err := errors.Join(f.Zero(at, r.d.o.QueueSize-at), f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (r *repair) resize(g segment) error {
	if err := r.copyFile(g.name, r.d.o.SegmentSize); err != nil { // what is cut off
		return err
	}
	f, err := r.d.fs.OpenFile(g.name, os.O_RDWR)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(r.d.o.SegmentSize), f.Sync(), f.Close())
}

// blankFiles makes files that hold one blank record each.
func (r *repair) blankFiles(h hole) error {
	size := r.d.o.SegmentSize
	for at := h.from - h.from%size; at < h.to; at += size {
		f, err := r.d.fs.OpenFile(path.Join(r.d.o.LogDir, fmt.Sprintf("%020d", at)), os.O_RDWR|os.O_CREATE|os.O_EXCL)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(message.AppendBlank(nil, int(size)), 0)
		if err = errors.Join(err, f.Truncate(size), f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return r.d.fs.SyncDir(r.d.o.LogDir)
}

// cutLog makes zeros of everything behind the log's last whole record. Files behind it hold none; the store removes them.
func (r *repair) cutLog(h hole) error {
	for i, g := range r.d.segments {
		if g.base+r.d.o.SegmentSize <= h.from {
			continue
		}
		from := max(h.from-g.base, 0)
		if err := r.copyFile(g.name, from); err != nil {
			return err
		}
		if from == 0 && i > 0 {
			if err := r.d.fs.Remove(g.name); err != nil {
				return err
			}
			continue
		}
		f, err := r.d.fs.OpenFile(g.name, os.O_RDWR)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Zero(from, r.d.o.SegmentSize-from), f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return r.d.fs.SyncDir(r.d.o.LogDir)
}

const (
	// fillerTopic is in the records that fill a hole: as short as a topic can be, since the smallest hole is as long as
	// the smallest record.
	fillerTopic = "-"
	// fillerStep is the most that one of them fills: no more than a broker accepts in one message.
	fillerStep = 1 << 20
)

// filler returns a record of n bytes that stands at a physical offset and that nobody sees: one of a transaction that was rolled
// back has no place in a queue and no key.
func filler(at int64, n int, now time.Time) []byte {
	m := message.Message{Topic: fillerTopic, SysFlag: message.Rollback, PhysicalOffset: at, StoreTimestamp: now.UnixMilli(), BornTimestamp: now.UnixMilli(),
		BornHost: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0), StoreHost: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)}
	m.Body = make([]byte, n-m.RecordSize())
	return message.AppendRecord(nil, &m)
}

// fill writes fillers over a hole, up to the end of its file a blank record.
func (r *repair) fill(h hole) error {
	g := r.d.segmentOf(h.from)
	if err := r.copyRange(g.name, h.from-g.base, h.to-h.from); err != nil {
		return err
	}
	f, err := r.d.fs.OpenFile(g.name, os.O_RDWR)
	if err != nil {
		return err
	}
	at := h.from
	if h.to == g.base+r.d.o.SegmentSize {
		_, err = f.WriteAt(message.AppendBlank(nil, int(h.to-at)), at-g.base)
		return errors.Join(err, f.Sync(), f.Close())
	}
	smallest := (&message.Message{Topic: fillerTopic}).RecordSize()
	now := r.timeBefore(h.from)
	for at < h.to && err == nil {
		n := h.to - at
		if n > 2*fillerStep {
			n = fillerStep
		}
		if n < int64(smallest) {
			err = fmt.Errorf("%d bytes are less than a record needs", n)
			break
		}
		_, err = f.WriteAt(filler(at, int(n), now), at-g.base)
		at += n
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// timeBefore is the store time that a filler gets: that of its file's first record, so that the times in the log go on
// ascending for whoever looks for one.
func (r *repair) timeBefore(at int64) time.Time {
	var m message.Message
	if g := r.d.segmentOf(at); g != nil && r.d.record(g.base, &m) == nil {
		return time.UnixMilli(m.StoreTimestamp)
	}
	return r.o.Now
}

// copyFile copies a file from a place on into the folder of copies; -1 and 0 are all of it.
func (r *repair) copyFile(name string, from int64) error {
	f, err := r.d.fs.OpenFile(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err = errors.Join(err, f.Close()); err != nil || size <= from {
		return err
	}
	return r.copyRange(name, max(from, 0), size-max(from, 0))
}

func (r *repair) copyQueue(q *queue) error {
	names := make([]string, 0, len(q.starts))
	for _, start := range q.starts {
		names = append(names, path.Join(q.dir, fmt.Sprintf("%020d", start)))
	}
	for _, b := range q.bad {
		names = append(names, b.name)
	}
	for _, n := range names {
		if err := r.copyFile(n, -1); err != nil {
			return err
		}
	}
	return nil
}

// copyRange copies n bytes of a file to the same place of one in the folder of copies, leaving out blocks of zeros.
func (r *repair) copyRange(name string, from, n int64) error {
	in, err := r.d.fs.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer in.Close()
	to := path.Join(r.keep, r.d.rel(name))
	if strings.HasPrefix(r.d.rel(name), "/") { // the log is elsewhere
		to = path.Join(r.keep, "commitlog", path.Base(name))
	}
	if err := r.d.fs.MkdirAll(path.Dir(to)); err != nil {
		return err
	}
	out, err := r.d.fs.OpenFile(to, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for end := from + n; from < end && err == nil; from += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), end-from)]
		k, e := in.ReadAt(b, from)
		if e != nil && !errors.Is(e, io.EOF) {
			err = e
			break
		}
		if b = b[:k]; !allZero(b) {
			_, err = out.WriteAt(b, from)
		}
	}
	size, e := out.Size()
	if err = errors.Join(err, e); err == nil && size == 0 {
		err = out.Truncate(n)
	}
	return errors.Join(err, out.Sync(), out.Close(), r.d.fs.SyncDir(path.Dir(to)))
}

// rebuild opens the store, which builds anew what was found bad, and closes it.
func (r *repair) rebuild(w io.Writer) error {
	d := r.d
	bad := map[queueKey]bool{}
	for q := range r.r.queues {
		bad[queueKey{q.topic, q.id}] = true
	}
	for key := range r.r.missing {
		bad[key] = true
	}
	o := store.Options{Dir: d.o.Dir, LogDir: d.o.LogDir, FS: d.fs, Logger: r.o.Logger, SegmentSize: d.o.SegmentSize, QueueSize: d.o.QueueSize,
		IndexSlots: d.o.IndexSlots, IndexSize: d.o.IndexSize, DelayLevels: r.levels,
		RebuildIndex: r.r.index || r.o.Index,
		// Records in holes are lost: what was found of a queue may be only a part of what is wrong with it.
		Rebuild: func(topic string, id int32) bool { return bad[queueKey{topic, id}] }}
	if len(d.index) == 0 && d.Own != nil && d.Own.IndexOff && !r.o.Index {
		o.IndexOff = true
	}
	s, err := store.Open(o)
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	fmt.Fprintln(w, "the store opens, and was closed cleanly")
	return nil
}

// last sets offsets right, now that the queues' ends are known, and checks everything again.
func (r *repair) last(o Options, w io.Writer) error {
	d, err := Open(o)
	if err != nil {
		return err
	}
	rep, err := d.Check()
	if err != nil {
		return err
	}
	r.d = d
	if err := r.setOffsets(rep.fixes); err != nil {
		return err
	}
	for _, f := range rep.fixes {
		fmt.Fprintln(w, "done:", f)
	}
	if d, err = Open(o); err != nil {
		return err
	}
	begin := time.Now()
	if rep, err = d.Check(); err != nil {
		return err
	}
	rep.Print(w, time.Since(begin))
	if len(rep.Findings) > 0 {
		return fmt.Errorf("%d findings are left", len(rep.Findings))
	}
	return nil
}

// setOffsets changes the offsets of the fixes in their files and nothing else.
func (r *repair) setOffsets(fixes []offsetFix) error {
	byFile := map[string][]offsetFix{}
	for _, f := range fixes {
		byFile[f.file] = append(byFile[f.file], f)
	}
	for name, list := range byFile {
		file := r.d.path(path.Join("config", name))
		if err := r.copyFile(file, -1); err != nil {
			return err
		}
		b, err := r.d.read(file)
		if err != nil {
			return err
		}
		if b == nil { // the older generation is what counts
			if b, err = r.d.read(file + ".bak"); err != nil {
				return err
			}
		}
		if b, err = metafile.Unseal(b); err == nil {
			b, err = withOffsets(b, list)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := metafile.Save(r.d.fs, file, b); err != nil {
			return err
		}
	}
	return nil
}

func withOffsets(b []byte, list []offsetFix) ([]byte, error) {
	var all map[string]json.RawMessage
	if err := fastjson.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	for _, f := range list {
		var table any
		if f.name == "" {
			var t map[string]int64
			if err := json.Unmarshal(all["offsetTable"], &t); err != nil {
				return nil, err
			}
			t[f.key()] = f.end
			table = t
		} else {
			var t map[string]map[string]int64
			if err := json.Unmarshal(all["offsetTable"], &t); err != nil {
				return nil, err
			}
			t[f.name][f.key()] = f.end
			table = t
		}
		raw, err := json.Marshal(table)
		if err != nil {
			return nil, err
		}
		all["offsetTable"] = raw
	}
	return json.Marshal(all)
}
