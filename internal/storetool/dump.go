package storetool

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apogeemq/apogee/internal/message"
)

// Filter chooses messages of the log. Its zero value is all of them.
type Filter struct {
	Topic    string
	Queue    int32     // -1: any
	Key      string    // one of the keys, or the unique key
	From, To time.Time // of storing; zero: no bound. From is included, To isn't
	Offset   int64     // the first queue offset
	Limit    int       // 0: none
}

// dumped is a message as JSON has it.
type dumped struct {
	Topic          string            `json:"topic"`
	Queue          int32             `json:"queue"`
	QueueOffset    int64             `json:"queueOffset"`
	PhysicalOffset int64             `json:"physicalOffset"`
	Size           int32             `json:"size"`
	StoreTimestamp int64             `json:"storeTimestamp"`
	BornTimestamp  int64             `json:"bornTimestamp"`
	StoreHost      string            `json:"storeHost"`
	BornHost       string            `json:"bornHost"`
	OffsetMsgID    string            `json:"offsetMsgId"`
	MsgID          string            `json:"msgId,omitempty"`
	SysFlag        int32             `json:"sysFlag"`
	Flag           int32             `json:"flag"`
	ReconsumeTimes int32             `json:"reconsumeTimes"`
	Transaction    string            `json:"transaction,omitempty"`
	PreparedOffset int64             `json:"preparedTransactionOffset,omitempty"`
	Properties     map[string]string `json:"properties"`
	Body           string            `json:"body,omitempty"`       // when it is text
	BodyBase64     string            `json:"bodyBase64,omitempty"` // when it isn't
	BodyError      string            `json:"bodyError,omitempty"`  // it can't be decompressed: Body is as it is stored
}

// Dump prints the messages that a filter lets through, in the order of the log, a line each: with asJSON one JSON object,
// else for a reader. Holes in the log are told of on notes and passed over. It returns how many messages it printed.
func (d *Folder) Dump(f Filter, asJSON bool, w, notes io.Writer) (int, error) {
	n := 0
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	atLeast := int64(0)
	if d.Own != nil {
		atLeast = d.Own.Physical
	}
	from, err := d.start(f)
	if err != nil {
		return 0, err
	}
	_, _, err = d.walk(from, atLeast, walker{
		hole: func(h hole) error {
			fmt.Fprintf(notes, "note: no whole record at physical offset %d (%v), the log goes on at %d; `apogee store check` says more\n", h.from, h.why, h.to)
			return nil
		},
		record: func(m *message.Message, _ []byte) error {
			if !f.matches(m) {
				return nil
			}
			var err error
			if asJSON {
				err = enc.Encode(describe(m))
			} else {
				_, err = fmt.Fprintln(w, line(m))
			}
			if n++; err == nil && f.Limit > 0 && n >= f.Limit {
				err = errStop
			}
			return err
		},
	})
	return n, err
}

// start returns a physical offset before which no message can match.
func (d *Folder) start(f Filter) (int64, error) {
	at := d.begin()
	if f.Topic != "" && f.Queue >= 0 && f.Offset > 0 {
		if q := d.queue(f.Topic, f.Queue); q != nil && f.Offset >= q.lo && f.Offset < q.hi {
			u, ok, err := d.unit(q, f.Offset)
			if err != nil {
				return 0, err
			}
			var m message.Message
			if ok && d.record(u.Physical, &m) == nil && m.Topic == f.Topic && m.QueueOffset == f.Offset {
				return u.Physical, nil
			}
		}
	}
	if !f.From.IsZero() {
		for _, g := range d.segments[min(1, len(d.segments)):] { // store times ascend
			var m message.Message
			if d.record(g.base, &m) != nil || m.StoreTimestamp >= f.From.UnixMilli() {
				break
			}
			at = g.base
		}
	}
	return at, nil
}

func (f Filter) matches(m *message.Message) bool {
	if m.Topic == fillerTopic && m.SysFlag.Transaction() == message.Rollback && f.Topic == "" {
		return false // what a repair filled a hole with
	}
	return (f.Topic == "" || m.Topic == f.Topic) && (f.Queue < 0 || m.QueueID == f.Queue) && m.QueueOffset >= f.Offset &&
		(f.From.IsZero() || m.StoreTimestamp >= f.From.UnixMilli()) && (f.To.IsZero() || m.StoreTimestamp < f.To.UnixMilli()) &&
		(f.Key == "" || hasKey(m, f.Key))
}

func hasKey(m *message.Message, key string) bool {
	if v, ok := message.Property(m.Properties, message.PropertyUniqueKey); ok && string(v) == key {
		return true
	}
	v, _ := message.Property(m.Properties, message.PropertyKeys)
	for _, k := range strings.Fields(string(v)) {
		if k == key {
			return true
		}
	}
	return false
}

var transactions = map[message.SysFlag]string{message.Prepared: "prepared", message.Commit: "commit", message.Rollback: "rollback"}

func describe(m *message.Message) dumped {
	v := dumped{Topic: m.Topic, Queue: m.QueueID, QueueOffset: m.QueueOffset, PhysicalOffset: m.PhysicalOffset, Size: m.StoreSize,
		StoreTimestamp: m.StoreTimestamp, BornTimestamp: m.BornTimestamp, StoreHost: m.StoreHost.String(), BornHost: m.BornHost.String(),
		OffsetMsgID: message.OffsetID(m.StoreHost, m.PhysicalOffset), SysFlag: int32(m.SysFlag), Flag: m.Flag, ReconsumeTimes: m.ReconsumeTimes,
		Transaction: transactions[m.SysFlag.Transaction()], PreparedOffset: m.PreparedTransactionOffset, Properties: message.PropertyMap(m.Properties)}
	v.MsgID = v.Properties[message.PropertyUniqueKey]
	body, err := plainBody(m)
	if err != nil {
		v.BodyError = err.Error()
	}
	if utf8.Valid(body) {
		v.Body = string(body)
	} else {
		v.BodyBase64 = base64.StdEncoding.EncodeToString(body)
	}
	return v
}

// maxBody bounds what a body may be decompressed to.
const maxBody = 64 << 20

// plainBody is the body as it was sent; as it is stored when it can't be decompressed.
func plainBody(m *message.Message) ([]byte, error) {
	if m.SysFlag&message.Compressed == 0 {
		return m.Body, nil
	}
	b, err := message.Decompress(m.SysFlag, m.Body, maxBody)
	if err != nil {
		return m.Body, err
	}
	return b, nil
}

// lineBody is how many bytes of a body a line shows.
const lineBody = 120

func line(m *message.Message) string {
	body, err := plainBody(m)
	shown := string(body[:min(len(body), lineBody)])
	text := strconv.Quote(shown)
	if len(body) > lineBody {
		text += fmt.Sprintf("… (%d bytes)", len(body))
	}
	if err != nil {
		text += " (" + err.Error() + ")"
	}
	s := fmt.Sprintf("%d %s topic=%s queue=%d offset=%d", m.PhysicalOffset, time.UnixMilli(m.StoreTimestamp).Format("2006-01-02T15:04:05.000Z07:00"), m.Topic, m.QueueID, m.QueueOffset)
	if t := transactions[m.SysFlag.Transaction()]; t != "" {
		s += " transaction=" + t
	}
	for _, p := range [][2]string{{"tags", message.PropertyTags}, {"keys", message.PropertyKeys}, {"id", message.PropertyUniqueKey}} {
		if v, ok := message.Property(m.Properties, p[1]); ok {
			s += fmt.Sprintf(" %s=%s", p[0], v)
		}
	}
	return s + " body=" + text
}

// Info is what a folder holds, without reading the whole log.
type Info struct {
	Dir         string      `json:"dir"`
	Running     bool        `json:"running"`
	Clean       bool        `json:"stoppedCleanly"`
	LastStop    time.Time   `json:"lastCheckpoint,omitzero"` // of a clean stop, when there was one
	Checkpoint  int64       `json:"checkpoint"`              // -1: a Java broker's store
	LogFiles    int         `json:"logFiles"`
	LogFileSize int64       `json:"logFileSize"`
	LogBegin    int64       `json:"logBegin"`
	LogEnd      int64       `json:"logEnd"`
	First       time.Time   `json:"firstStored,omitzero"`
	Last        time.Time   `json:"lastStored,omitzero"`
	Topics      int         `json:"topics"`
	Queues      int         `json:"queues"`
	QueueFile   int64       `json:"queueFileSize"`
	Units       int64       `json:"units"`
	IndexFiles  int         `json:"indexFiles"`
	Keys        int64       `json:"keys"`
	Groups      int         `json:"groups"`
	List        []QueueInfo `json:"list"`
}

// QueueInfo is one queue's range of offsets; End is behind the last.
type QueueInfo struct {
	Topic string `json:"topic"`
	Queue int32  `json:"queue"`
	Begin int64  `json:"begin"`
	End   int64  `json:"end"`
}

// Info tells sizes, counts and ranges. It reads the log's tail from the checkpoint on, or from its last file's beginning.
func (d *Folder) Info() (*Info, error) {
	configs, err := d.readConfigs()
	if err != nil {
		return nil, err
	}
	i := &Info{Dir: d.o.Dir, Running: d.Running, Clean: d.Clean && !d.Running, Checkpoint: -1, LogFiles: len(d.segments), LogFileSize: d.o.SegmentSize, LogBegin: d.begin(),
		Queues: len(d.queues), QueueFile: d.o.QueueSize, IndexFiles: len(d.index)}
	from := i.LogBegin
	if n := len(d.segments); n > 0 {
		from = d.segments[n-1].base
		var m message.Message
		if d.record(d.segments[0].base, &m) == nil {
			i.First = time.UnixMilli(m.StoreTimestamp)
		}
	}
	for _, name := range []string{"checkpoint.apogee", "checkpoint"} {
		if info, err := d.fs.Stat(d.path(name)); err == nil {
			i.LastStop = info.ModTime()
			break
		}
	}
	if d.Own != nil {
		i.Checkpoint = d.Own.Physical
		if d.Own.Last >= from {
			from = d.Own.Last
		}
	}
	i.LogEnd, _, err = d.walk(from, 0, walker{
		record: func(m *message.Message, _ []byte) error {
			i.Last = time.UnixMilli(m.StoreTimestamp)
			return nil
		},
		hole: func(hole) error { return nil },
	})
	if err != nil {
		return nil, err
	}
	topics, groups := map[string]bool{}, map[string]bool{}
	for _, q := range d.queues {
		topics[q.topic] = true
		i.Units += q.hi - q.lo
		i.List = append(i.List, QueueInfo{q.topic, q.id, q.lo, q.hi})
	}
	for k := range configs.offsets {
		if _, g, ok := strings.Cut(k, "@"); ok {
			groups[g] = true
		}
	}
	for _, x := range d.index {
		i.Keys += int64(max(x.head.Next-1, 0))
	}
	i.Topics, i.Groups = len(topics), len(groups)
	sort.Slice(i.List, func(a, b int) bool {
		x, y := i.List[a], i.List[b]
		return x.Topic < y.Topic || x.Topic == y.Topic && x.Queue < y.Queue
	})
	return i, nil
}

// Print writes the figures for a reader.
func (i *Info) Print(w io.Writer) {
	state := "stopped cleanly"
	switch {
	case i.Running:
		state = "open in a broker"
	case !i.Clean:
		state = "not stopped cleanly, the next start recovers"
	}
	const day = "2006-01-02 15:04:05"
	fmt.Fprintf(w, "%s: %s\n", i.Dir, state)
	if !i.LastStop.IsZero() {
		fmt.Fprintf(w, "last checkpoint    %s\n", i.LastStop.Format(day))
	}
	if i.Checkpoint < 0 {
		fmt.Fprintln(w, "written by         a Java broker only, so far")
	}
	fmt.Fprintf(w, "commit log         %d files of %d bytes, physical offsets %d to %d (%d bytes)\n", i.LogFiles, i.LogFileSize, i.LogBegin, i.LogEnd, i.LogEnd-i.LogBegin)
	if !i.First.IsZero() && !i.Last.IsZero() {
		fmt.Fprintf(w, "stored             %s to %s\n", i.First.Format(day), i.Last.Format(day))
	}
	fmt.Fprintf(w, "consume queues     %d of %d topics, %d units, files of %d bytes\n", i.Queues, i.Topics, i.Units, i.QueueFile)
	fmt.Fprintf(w, "index              %d files, %d keys\n", i.IndexFiles, i.Keys)
	fmt.Fprintf(w, "groups             %d with offsets\n", i.Groups)
	for _, q := range i.List {
		fmt.Fprintf(w, "  %s %d: offsets %d to %d\n", q.Topic, q.Queue, q.Begin, q.End)
	}
}
