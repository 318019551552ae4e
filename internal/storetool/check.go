package storetool

import (
	"errors"
	"fmt"
	"io"
	"path"
	"sort"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/store"
)

// Finding is one thing that is wrong. Position is a byte in the file, -1 where there is none to name.
type Finding struct {
	File     string
	Position int64
	What     string
	Remedy   string
}

// String is the finding in one line.
func (f Finding) String() string {
	where := f.File
	if f.Position >= 0 {
		where += fmt.Sprintf(" at %d", f.Position)
	}
	return fmt.Sprintf("%s: %s; %s", where, f.What, f.Remedy)
}

// Report is what a check found. Notes are worth knowing and nothing is wrong with them.
type Report struct {
	Findings []Finding
	Notes    []string

	Records, Bytes, Units, Keys, Offsets int64
	Begin, End                           int64 // of the log

	holes   []hole
	queues  map[*queue]bool // to be made anew
	missing map[queueKey]bool
	index   bool // to be made anew
	fixes   []offsetFix
	// badConfigs is what a repair does about damaged metadata
	badConfigs []badConfig
	cut        bool // behind End something lies that the next opening cuts off
}

type queueKey struct {
	topic string
	id    int32
}

const (
	repairRemedy = "`apogee store repair` shows what it would do"
	restRemedy   = "the next start does"
)

// checker is one check.
type checker struct {
	d       *Folder
	r       *Report
	queues  map[queueKey]*queueCheck
	index   indexCheck
	atLeast int64
	inner   int64 // batch records, which have no place in a consume queue
}

// queueCheck is what the log says of one queue.
type queueCheck struct {
	q *queue // nil: it has no files
	// matched units: a run of offsets whose units are their records'
	from, to int64
	next     int64 // offset behind the last record
	has      bool
	orphans  orphans
	bad      bool // something was found
}

// orphans are records that no unit leads to.
type orphans struct {
	n        int64
	offset   int64 // of the first
	physical int64
	last     int64 // offset of the last
	lastPhys int64
}

// Check compares every layer with every other. It reads the whole log.
func (d *Folder) Check() (*Report, error) {
	c := &checker{d: d, r: &Report{queues: map[*queue]bool{}, missing: map[queueKey]bool{}}, queues: map[queueKey]*queueCheck{}}
	c.d.shape(c)
	configs, err := d.readConfigs()
	if err != nil {
		return nil, err
	}
	for _, q := range d.queues {
		c.queues[queueKey{q.topic, q.id}] = &queueCheck{q: q}
		if err := c.longest(q); err != nil {
			return nil, err
		}
	}
	if d.Own != nil {
		c.atLeast = max(c.atLeast, d.Own.Physical)
	}
	if err := c.index.begin(c); err != nil {
		return nil, err
	}
	defer c.index.close()
	c.r.Begin = d.begin()
	end, behind, err := d.walk(c.r.Begin, c.atLeast, walker{record: c.record, hole: c.hole})
	if err != nil {
		return nil, err
	}
	c.r.End = end
	c.tail(end, behind)
	if err := c.checkUnits(); err != nil {
		return nil, err
	}
	if err := c.index.finish(c); err != nil {
		return nil, err
	}
	c.checkpoints()
	c.configs(configs)
	sort.SliceStable(c.r.Findings, func(i, j int) bool {
		a, b := c.r.Findings[i], c.r.Findings[j]
		return a.File < b.File || a.File == b.File && a.Position < b.Position
	})
	return c.r, nil
}

func (c *checker) find(file string, position int64, remedy, format string, args ...any) {
	c.r.Findings = append(c.r.Findings, Finding{file, position, fmt.Sprintf(format, args...), remedy})
}

func (c *checker) note(format string, args ...any) {
	c.r.Notes = append(c.r.Notes, fmt.Sprintf(format, args...))
}

// longest takes from a queue's end how far the log went once. A Java broker that crashed may have units of records that
// never came to the disk.
func (c *checker) longest(q *queue) error {
	if q.hi <= q.lo || !c.d.Clean && c.d.Own == nil {
		return nil
	}
	u, ok, err := c.d.unit(q, q.hi-1)
	if err == nil && ok && !u.NoMessage() && !u.Empty() {
		if end := u.Physical + int64(u.Size); u.Physical >= 0 && end < c.d.lastByte() {
			c.atLeast = max(c.atLeast, end)
		}
	}
	return err
}

// lastByte is where the last segment ends.
func (d *Folder) lastByte() int64 {
	if n := len(d.segments); n > 0 {
		return d.segments[n-1].base + d.o.SegmentSize
	}
	return 0
}

// shape looks at the files' names and sizes.
func (d *Folder) shape(c *checker) {
	for i, g := range d.segments {
		if g.size != d.o.SegmentSize {
			c.find(d.rel(g.name), -1, repairRemedy, "it has %d bytes, the others %d", g.size, d.o.SegmentSize)
		}
		if g.base%d.o.SegmentSize != 0 {
			c.find(d.rel(g.name), -1, "give the size this store was made with (--config)", "its name is no multiple of the file size %d", d.o.SegmentSize)
		}
		if i > 0 && g.base != d.segments[i-1].base+d.o.SegmentSize {
			c.find(d.rel(g.name), -1, repairRemedy, "it does not follow %s: a file between them is missing", path.Base(d.segments[i-1].name))
		}
	}
	for _, q := range d.queues {
		for _, f := range q.bad {
			if !d.Clean && f.size < d.o.QueueSize {
				c.note("%s has %d of %d bytes: its making was cut off, the next start makes it anew", d.rel(f.name), f.size, d.o.QueueSize)
				continue
			}
			c.r.queues[q] = true
			c.find(d.rel(f.name), -1, repairRemedy, "it has %d bytes, consume-queue files here have %d", f.size, d.o.QueueSize)
		}
	}
	for _, x := range d.index {
		if d.o.IndexSlots > 0 && x.size != d.indexSize(d.o.IndexSlots, d.o.IndexSize) {
			c.r.index = true
			c.find(d.rel(x.name), -1, repairRemedy, "it has %d bytes, index files here have %d", x.size, d.indexSize(d.o.IndexSlots, d.o.IndexSize))
		}
	}
	for _, name := range d.odd {
		c.note("%s doesn't belong there and is left alone", name)
	}
	if d.Running {
		c.note("a broker has the folder open: what it didn't write to its files yet is not looked at")
	} else if !d.Clean {
		c.note("the last broker did not stop cleanly (there is a file abort): the next start recovers")
	}
}

// record is one record of the log.
func (c *checker) record(m *message.Message, rec []byte) error {
	c.r.Records++
	c.r.Bytes += int64(len(rec))
	if err := propertyCRC(m, rec); err != nil {
		c.find(c.logPlace(m.PhysicalOffset), c.inFile(m.PhysicalOffset), "its body is sound, so that it is served; nothing brings the rest back", "%v", err)
	}
	if err := c.index.record(c, m); err != nil {
		return err
	}
	if !m.SysFlag.Queued() {
		return nil
	}
	if m.SysFlag&message.InnerBatch != 0 || c.d.batch[m.Topic] {
		c.inner++
		return nil
	}
	if m.PhysicalOffset < c.d.deleted[m.Topic] {
		return nil
	}
	if m.QueueOffset < 0 || m.QueueID < 0 {
		c.r.holes = append(c.r.holes, hole{from: m.PhysicalOffset, to: m.PhysicalOffset + int64(m.StoreSize), why: errors.New("it says what can't be")})
		c.r.index = c.r.index || len(c.d.index) > 0
		c.find(c.logPlace(m.PhysicalOffset), c.inFile(m.PhysicalOffset), repairRemedy, "the record at %d says that it is offset %d of topic %s queue %d", m.PhysicalOffset, m.QueueOffset, m.Topic, m.QueueID)
		return nil
	}
	key := queueKey{m.Topic, m.QueueID}
	q := c.queues[key]
	if q == nil {
		q = &queueCheck{}
		c.queues[key] = q
	}
	if q.has && m.QueueOffset < q.next && q.to > q.from {
		// Records before it have their units. Had the topic been deleted since and made again, this one had its own.
		u, ok, err := c.unitOf(q, m)
		if err != nil {
			return err
		}
		if !c.d.Running && (!ok || u.Physical != m.PhysicalOffset) {
			c.r.holes = append(c.r.holes, hole{from: m.PhysicalOffset, to: m.PhysicalOffset + int64(m.StoreSize), why: errors.New("it says something else than its queue")})
			c.r.index = c.r.index || len(c.d.index) > 0
			c.find(c.logPlace(m.PhysicalOffset), c.inFile(m.PhysicalOffset), repairRemedy, "the record at %d says that it is offset %d of topic %s queue %d, which is at %d already and has another there",
				m.PhysicalOffset, m.QueueOffset, m.Topic, m.QueueID, q.next)
			return nil
		}
	}
	if q.has && m.QueueOffset < q.next { // the topic was deleted and made again: what was before doesn't count
		*q = queueCheck{q: q.q, bad: q.bad}
	}
	if q.has && m.QueueOffset > q.next { // what the queue has in their places is looked at with its units
		c.note("topic %s queue %d jumps from offset %d to %d at %d: the log has no messages between them", m.Topic, m.QueueID, q.next, m.QueueOffset, m.PhysicalOffset)
	}
	q.has, q.next = true, m.QueueOffset+1
	return c.match(q, m)
}

// unitOf returns the unit at a record's offset.
func (c *checker) unitOf(q *queueCheck, m *message.Message) (u store.Unit, ok bool, err error) {
	if q.q == nil || m.QueueOffset >= q.q.hi {
		return u, false, nil
	}
	return c.d.unit(q.q, m.QueueOffset)
}

// match compares a record with its unit.
func (c *checker) match(q *queueCheck, m *message.Message) error {
	u, ok, err := c.unitOf(q, m)
	if err != nil {
		return err
	}
	if !ok || u.Physical != m.PhysicalOffset || u.Size != m.StoreSize {
		if q.orphans.n++; q.orphans.n == 1 {
			q.orphans.offset, q.orphans.physical = m.QueueOffset, m.PhysicalOffset
		}
		q.orphans.last, q.orphans.lastPhys = m.QueueOffset, m.PhysicalOffset
		return nil
	}
	if code, exact := store.TagsCode(m); (exact && u.TagsCode != code || !exact && u.TagsCode < code) && u.TagsCode >= -1<<31 {
		file, at := c.d.at(q.q, m.QueueOffset)
		c.bad(q, file, at, "the unit of offset %d has tags code %d, its message's is %d", m.QueueOffset, u.TagsCode, code)
	}
	if q.to != m.QueueOffset {
		q.from = m.QueueOffset
	}
	q.to = m.QueueOffset + 1
	return nil
}

// maxPerQueue bounds the findings of one queue: what more there is is the same.
const maxPerQueue = 20

func (c *checker) bad(q *queueCheck, file string, at int64, format string, args ...any) {
	q.bad = true
	c.r.queues[q.q] = true
	c.find(file, at, repairRemedy, format, args...)
}

func (c *checker) logPlace(at int64) string {
	return c.d.rel(path.Join(c.d.o.LogDir, fmt.Sprintf("%020d", at-at%c.d.o.SegmentSize)))
}

func (c *checker) inFile(at int64) int64 { return at % c.d.o.SegmentSize }

func (c *checker) hole(h hole) error {
	c.r.holes = append(c.r.holes, h)
	c.r.index = c.r.index || len(c.d.index) > 0
	switch {
	case h.missing || h.short: // said already
	case h.tail:
		c.find(c.logPlace(h.from), c.inFile(h.from), repairRemedy, "no whole record at physical offset %d (%v), and none behind it; the log went on to %d once", h.from, h.why, h.to)
	default:
		c.find(c.logPlace(h.from), c.inFile(h.from), repairRemedy, "no whole record at physical offset %d (%v), %d bytes are unreadable; the log goes on at %d", h.from, h.why, h.to-h.from, h.to)
	}
	return nil
}

// tail says what lies behind the log's end.
func (c *checker) tail(end, behind int64) {
	if behind == 0 || c.d.Running {
		return
	}
	c.r.cut = true
	c.note("%s holds %d bytes behind the log's end at %d that are no record: the next start cuts them off", c.logPlace(end), behind, end)
}

// checkUnits goes over the units that no record matched, and tells of records that no unit leads to.
func (c *checker) checkUnits() error {
	before := c.d.deleted
	if c.d.Running {
		if err := c.d.readDeleted(); err != nil {
			return err
		}
	}
	for _, key := range c.sortedQueues() {
		q := c.queues[key]
		if c.d.deleted[key.topic] != before[key.topic] {
			continue // deleted, and maybe made again, since its files were listed
		}
		if q.q != nil {
			if err := c.unitsOf(q); err != nil {
				return err
			}
		}
		c.orphansOf(key, q)
	}
	return nil
}

func (c *checker) sortedQueues() []queueKey {
	keys := make([]queueKey, 0, len(c.queues))
	for k := range c.queues {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool {
		return keys[i].topic < keys[j].topic || keys[i].topic == keys[j].topic && keys[i].id < keys[j].id
	})
	return keys
}

func (c *checker) unitsOf(q *queueCheck) error {
	f := q.q
	c.r.Units += f.hi - f.lo
	found, beyond := 0, int64(0)
	var last int64 = -1
	for at := f.lo; at < f.hi; at++ {
		if at == q.from && q.to > q.from {
			at = q.to - 1 // they were compared
			last = -1
			continue
		}
		u, ok, err := c.d.unit(f, at)
		if err != nil {
			return err
		}
		if !ok {
			next := c.nextFile(f, at)
			if !c.d.Running {
				file, _ := c.d.at(f, at)
				c.bad(q, file, -1, "the file is missing, with the units of offsets %d to %d", at, next-1)
			}
			at = next - 1
			continue
		}
		what := ""
		switch {
		case u.Empty():
			what = "is empty, between units that aren't"
		case u.NoMessage(), u.Physical < c.r.Begin && u.Physical >= 0:
		case u.Physical >= c.r.End:
			beyond++
			if c.d.Clean || c.d.Own != nil && u.Physical < c.d.Own.Physical {
				what = fmt.Sprintf("leads to %d, the log ends at %d", u.Physical, c.r.End)
			}
		case u.Physical <= last:
			what = fmt.Sprintf("leads to %d, behind the one before it", u.Physical)
		default:
			last = u.Physical
			if what, err = c.leads(f, u, at); err != nil {
				return err
			}
		}
		if what == "" {
			continue
		}
		if found++; found <= maxPerQueue {
			file, pos := c.d.at(f, at)
			c.bad(q, file, pos, "the unit of offset %d %s", at, what)
		}
	}
	if found > maxPerQueue {
		c.find(c.d.rel(f.dir), -1, repairRemedy, "%d more of its units are bad", found-maxPerQueue)
	}
	if beyond > 0 && !q.bad {
		c.note("%s: %d units lead behind the log's end, the next start cuts them off", c.d.rel(f.dir), beyond)
	}
	return nil
}

// nextFile is the first offset behind a missing file.
func (c *checker) nextFile(q *queue, at int64) int64 {
	per := c.d.o.QueueSize / store.UnitSize
	return min((at/per+1)*per, q.hi)
}

// leads says what is wrong with where a unit leads, "" when nothing is.
func (c *checker) leads(q *queue, u store.Unit, offset int64) (string, error) {
	var m message.Message
	err := c.d.record(u.Physical, &m)
	switch {
	case err != nil && !store.IsDamage(err) && m.Topic == "":
		return fmt.Sprintf("leads to %d, where no record begins (%v)", u.Physical, err), nil
	case err != nil:
		return fmt.Sprintf("leads to %d, where no whole record is (%v)", u.Physical, err), nil
	case m.StoreSize != u.Size:
		return fmt.Sprintf("says %d bytes, the record at %d has %d", u.Size, u.Physical, m.StoreSize), nil
	case len(q.topic) > 5 && q.topic[:5] == "%LMQ%": // light queues share other topics' records
		return "", nil
	case m.Topic != q.topic || m.QueueID != q.id || m.QueueOffset != offset:
		// Nothing in a record secures these fields. When the units beside lead where they should, and no unit where the
		// record says it is, the record is what is wrong: it must not find its way into the queues.
		if own := c.d.queue(m.Topic, m.QueueID); (own == nil || !c.claims(own, m)) && c.leadsWell(q, offset-1) && c.leadsWell(q, offset+1) {
			c.r.holes = append(c.r.holes, hole{from: u.Physical, to: u.Physical + int64(u.Size), why: errors.New("it says something else than its queue")})
			c.r.index = c.r.index || len(c.d.index) > 0
		}
		return fmt.Sprintf("leads to %d, which is topic %s queue %d offset %d", u.Physical, m.Topic, m.QueueID, m.QueueOffset), nil
	}
	return "", nil
}

// claims reports whether a queue's unit at a record's offset leads to it.
func (c *checker) claims(q *queue, m message.Message) bool {
	u, ok, err := c.d.unit(q, m.QueueOffset)
	return err != nil || ok && m.QueueOffset < q.hi && u.Physical == m.PhysicalOffset
}

// leadsWell reports whether a unit leads to its record, or its place is before the queue's beginning or behind its end.
func (c *checker) leadsWell(q *queue, offset int64) bool {
	if offset < q.lo || offset >= q.hi {
		return true
	}
	u, ok, err := c.d.unit(q, offset)
	if err != nil || !ok || u.Empty() || u.NoMessage() {
		return false
	}
	var m message.Message
	return c.d.record(u.Physical, &m) == nil && m.Topic == q.topic && m.QueueID == q.id && m.QueueOffset == offset && m.StoreSize == u.Size
}

// orphansOf tells of a queue's records that no unit leads to. At a queue's end they are no finding while a broker runs
// or after a crash: the units wait in memory, or are made by the next start.
func (c *checker) orphansOf(key queueKey, q *queueCheck) {
	o := q.orphans
	if o.n == 0 {
		return
	}
	waits := q.q == nil || o.offset >= q.q.hi
	if waits && (c.d.Running || !c.d.Clean) && (c.d.Own == nil || o.physical >= c.d.Own.Physical) {
		if !c.d.Running {
			c.note("topic %s queue %d: %d messages from offset %d on are not in the consume queue yet, the next start puts them there", key.topic, key.id, o.n, o.offset)
		}
		return
	}
	if q.q == nil && !c.d.topicKnown(key.topic) {
		c.note("the log holds %d messages of topic %s queue %d, which was deleted", o.n, key.topic, key.id)
		return
	}
	dir := path.Join("consumequeue", key.topic, fmt.Sprint(key.id))
	if c.d.Running {
		// The topic may have been deleted since the folder was listed.
		if _, err := c.d.fs.Stat(c.d.path(dir)); err != nil || o.lastPhys < c.d.deleted[key.topic] {
			return
		}
	}
	if q.q == nil {
		c.r.missing[key] = true
	} else {
		c.r.queues[q.q] = true
	}
	c.find(dir, -1, repairRemedy, "no unit leads to %d messages of the log, from offset %d (at %d) to %d (at %d)", o.n, o.offset, o.physical, o.last, o.lastPhys)
}

// checkpoints looks at both checkpoint files.
func (c *checker) checkpoints() {
	d := c.d
	if d.ownBad {
		c.find(store.CheckpointName, -1, "the next start reads the whole log, or remove the file", "it is damaged")
	}
	b, err := d.read(d.path("checkpoint"))
	if err != nil {
		c.find("checkpoint", -1, "look at the disk", "it can't be read: %v", err)
	} else if b != nil && len(b) < 24 {
		c.find("checkpoint", -1, restRemedy+" without it", "it has %d bytes of 4096", len(b))
	}
	if d.Own == nil || d.Running {
		return
	}
	if d.Own.Physical > c.r.End && len(c.r.holes) == 0 {
		c.find(store.CheckpointName, -1, repairRemedy, "the log was durable up to %d and ends at %d", d.Own.Physical, c.r.End)
	}
}

// Print writes the report for a reader.
func (r *Report) Print(w io.Writer, took time.Duration) {
	for _, n := range r.Notes {
		fmt.Fprintln(w, "note:", n)
	}
	for _, f := range r.Findings {
		fmt.Fprintln(w, f)
	}
	fmt.Fprintf(w, "checked %d records (%d bytes, physical offsets %d to %d), %d consume-queue units, %d index entries, %d offsets in %.1f s: ",
		r.Records, r.Bytes, r.Begin, r.End, r.Units, r.Keys, r.Offsets, took.Seconds())
	if len(r.Findings) == 0 {
		fmt.Fprintln(w, "sound")
	} else {
		fmt.Fprintf(w, "%d findings\n", len(r.Findings))
	}
}
