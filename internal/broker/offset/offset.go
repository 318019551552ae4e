// Package offset keeps how far consumer groups have come: config/consumerOffset.json; what of the queues beyond these
// offsets isn't done, where consumers tell (config/consumerOpen.apogee.json, which is ours alone); and in memory only
// how far they have pulled and which resets wait for them.
package offset

import (
	"encoding/json"
	"errors"
	"path"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/metafile"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/vfs"
)

// key is one group's progress in one topic; the file has it as "topic@group".
type key struct{ topic, group string }

func (k key) String() string { return k.topic + "@" + k.group }

// Table is the offset table. It is safe for concurrent use.
type Table struct {
	fs   vfs.FS
	file string

	mu      sync.Mutex
	offsets map[key]map[int32]int64
	pulled  map[key]map[int32]int64
	resets  map[key]map[int32]int64
	open    map[key]map[int32]openNote
	version protocol.DataVersion
	commits int64
	dirty   bool
	// openDirty is dirty of the other file.
	openFile  string
	openDirty bool
}

// openNote is what a consumer said beyond an offset. It counts as long as that is the committed one: whoever moves the
// offset without saying anything, a Java consumer or an operator, makes it void.
type openNote struct {
	Offset int64  `json:"offset"`
	Open   string `json:"open"`
}

// versionStep is how many commits raise the data version once (consumerOffsetUpdateVersionStep).
const versionStep = 500

// file as Java writes it; groupTopicMap is derived and ignored when read.
type file struct {
	DataVersion   protocol.DataVersion       `json:"dataVersion"`
	GroupTopicMap map[string][]string        `json:"groupTopicMap"`
	OffsetTable   map[string]map[int32]int64 `json:"offsetTable"`
}

// Open loads the table. notes says what was passed over while loading.
func Open(fs vfs.FS, dir string) (t *Table, notes []string, err error) {
	t = &Table{fs: fs, file: path.Join(dir, "consumerOffset.json"), offsets: map[key]map[int32]int64{},
		pulled: map[key]map[int32]int64{}, resets: map[key]map[int32]int64{}, open: map[key]map[int32]openNote{}, openFile: path.Join(dir, "consumerOpen.apogee.json")}
	_, notes, err = metafile.Load(fs, t.file, func(b []byte) error {
		var f file
		if err := fastjson.Unmarshal(b, &f); err != nil {
			return err
		}
		if f.OffsetTable == nil {
			return errors.New("it has no offsetTable")
		}
		for k, queues := range f.OffsetTable {
			topic, group, ok := strings.Cut(k, "@")
			if ok {
				t.offsets[key{topic, group}] = queues
			}
		}
		t.version = f.DataVersion
		return nil
	})
	if err != nil {
		return t, notes, err
	}
	_, more, err := metafile.Load(fs, t.openFile, func(b []byte) error {
		var f map[string]map[int32]openNote
		if err := json.Unmarshal(b, &f); err != nil {
			return err
		}
		for k, queues := range f {
			if topic, group, ok := strings.Cut(k, "@"); ok {
				t.open[key{topic, group}] = queues
			}
		}
		return nil
	})
	return t, append(notes, more...), err
}

// SetOpen keeps what of a queue beyond the committed offset isn't done.
func (t *Table) SetOpen(topic, group string, queue int32, offset int64, open string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := key{topic, group}
	queues := t.open[k]
	if queues == nil {
		queues = map[int32]openNote{}
		t.open[k] = queues
	}
	queues[queue] = openNote{offset, open}
	t.openDirty = true
}

// Open returns what SetOpen kept, "" when the offset has moved since.
func (t *Table) Open(topic, group string, queue int32) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.open[key{topic, group}][queue]
	if !ok || n.Offset != t.offsets[key{topic, group}][queue] {
		return ""
	}
	return n.Open
}

// Commit moves a group's offset. A lower one than before is taken, as in Java; back reports it.
func (t *Table) Commit(topic, group string, queue int32, offset int64) (back bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := key{topic, group}
	if _, ok := t.open[k][queue]; ok {
		delete(t.open[k], queue)
		t.openDirty = true
	}
	old, had := set(t.offsets, k, queue, offset)
	if had && old == offset {
		return false
	}
	t.dirty = true
	if t.commits++; t.commits%versionStep == 0 {
		t.version.Counter++
	}
	return had && offset < old
}

func set(m map[key]map[int32]int64, k key, queue int32, v int64) (old int64, had bool) {
	queues := m[k]
	if queues == nil {
		queues = map[int32]int64{}
		m[k] = queues
	}
	old, had = queues[queue]
	queues[queue] = v
	return old, had
}

// Query returns a group's offset; a reset that waits comes first and is used up by it.
func (t *Table) Query(topic, group string, queue int32) (int64, bool) {
	if v, ok := t.TakeReset(topic, group, queue); ok {
		return v, true
	}
	return t.Peek(topic, group, queue)
}

// Peek returns a group's committed offset and changes nothing.
func (t *Table) Peek(topic, group string, queue int32) (int64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.offsets[key{topic, group}][queue]
	return v, ok
}

// SetPulled remembers up to where a group pulled.
func (t *Table) SetPulled(topic, group string, queue int32, offset int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	set(t.pulled, key{topic, group}, queue, offset)
}

// Pulled returns up to where a group pulled since the start, or its committed offset.
func (t *Table) Pulled(topic, group string, queue int32) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v, ok := t.pulled[key{topic, group}][queue]; ok {
		return v
	}
	return t.offsets[key{topic, group}][queue]
}

// Reset sets a group's offset by an admin's will: the offset moves, and until the queue's next pull or query has
// been told of it, commits of the group are passed over.
func (t *Table) Reset(topic, group string, queue int32, offset int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	set(t.resets, key{topic, group}, queue, offset)
	set(t.offsets, key{topic, group}, queue, offset)
	t.dirty = true
}

// ResetPending reports whether a reset waits for the queue's next pull or query.
func (t *Table) ResetPending(topic, group string, queue int32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.resets) == 0 {
		return false
	}
	_, ok := t.resets[key{topic, group}][queue]
	return ok
}

// TakeReset returns the reset that waits for the queue, and forgets it.
func (t *Table) TakeReset(topic, group string, queue int32) (int64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.resets) == 0 {
		return 0, false
	}
	k := key{topic, group}
	v, ok := t.resets[k][queue]
	if ok {
		if delete(t.resets[k], queue); len(t.resets[k]) == 0 {
			delete(t.resets, k)
		}
	}
	return v, ok
}

// Groups returns the groups that have an offset in the topic, sorted.
func (t *Table) Groups(topic string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for k := range t.offsets {
		if k.topic == topic {
			out = append(out, k.group)
		}
	}
	sort.Strings(out)
	return out
}

// Topics returns the topics in which the group has an offset, sorted.
func (t *Table) Topics(group string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for k := range t.offsets {
		if k.group == group {
			out = append(out, k.topic)
		}
	}
	sort.Strings(out)
	return out
}

// Clone copies a group's offsets in a topic to another group.
func (t *Table) Clone(from, to, topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for q, v := range t.offsets[key{topic, from}] {
		set(t.offsets, key{topic, to}, q, v)
		t.dirty = true
	}
}

// RemoveTopic forgets all groups' offsets in a topic; RemoveGroup a group's in all topics.
func (t *Table) RemoveTopic(topic string) { t.remove(func(k key) bool { return k.topic == topic }) }

// RemoveGroup see RemoveTopic.
func (t *Table) RemoveGroup(group string) { t.remove(func(k key) bool { return k.group == group }) }

func (t *Table) remove(which func(key) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.open {
		if which(k) {
			delete(t.open, k)
			t.openDirty = true
		}
	}
	for _, m := range []map[key]map[int32]int64{t.offsets, t.pulled, t.resets} {
		for k := range m {
			if which(k) {
				delete(m, k)
				t.dirty = true
			}
		}
	}
}

// Encode returns the table as the file and GET_ALL_CONSUMER_OFFSET have it.
func (t *Table) Encode() ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := file{DataVersion: t.version, GroupTopicMap: map[string][]string{}, OffsetTable: make(map[string]map[int32]int64, len(t.offsets))}
	for k, queues := range t.offsets {
		f.OffsetTable[k.String()] = queues
		f.GroupTopicMap[k.group] = append(f.GroupTopicMap[k.group], k.topic)
	}
	for _, topics := range f.GroupTopicMap {
		sort.Strings(topics)
	}
	return json.Marshal(f)
}

// Save writes the files in which something changed since the last time.
func (t *Table) Save(now time.Time) error {
	t.mu.Lock()
	dirty, openDirty := t.dirty, t.openDirty
	t.dirty, t.openDirty = false, false
	if dirty {
		t.version.Timestamp = now.UnixMilli()
	}
	t.mu.Unlock()
	var errs []error
	if dirty {
		b, err := t.Encode()
		if err == nil {
			err = metafile.Save(t.fs, t.file, b)
		}
		if err != nil {
			errs = append(errs, err)
			t.mu.Lock()
			t.dirty = true
			t.mu.Unlock()
		}
	}
	if openDirty {
		b, err := t.encodeOpen()
		if err == nil {
			err = metafile.Save(t.fs, t.openFile, b)
		}
		if err != nil {
			errs = append(errs, err)
			t.mu.Lock()
			t.openDirty = true
			t.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

func (t *Table) encodeOpen() ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := make(map[string]map[int32]openNote, len(t.open))
	for k, queues := range t.open {
		f[k.String()] = queues
	}
	return json.Marshal(f)
}
