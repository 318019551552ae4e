// Package topic keeps a broker's topics: config/topics.json, the system topics, and the rules by which topics
// come into being.
package topic

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/metafile"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/vfs"
)

// Permission bits of a topic and of a broker.
const (
	Inherit int32 = 1 // may be used as a template
	Write   int32 = 2
	Read    int32 = 4
)

const sysPrefix = "rmq_sys_"

// Config is one topic's configuration. Its Attributes must not be changed.
type Config = protocol.TopicConfig

// Writable and Readable look at a permission.
func Writable(perm int32) bool { return perm&Write != 0 }

// Readable see Writable.
func Readable(perm int32) bool { return perm&Read != 0 }

// Errors of the table.
var (
	// ErrIllegalName: the text is Java's remark.
	ErrIllegalName = errors.New("illegal name")
	// ErrNoTemplate: a topic can't be made on send: its template is missing or not inheritable.
	ErrNoTemplate = errors.New("topic can't be created on send")
)

type nameError string

func (e nameError) Error() string     { return string(e) }
func (e nameError) Is(err error) bool { return err == ErrIllegalName }

func legalName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '%' || c == '|') {
			return false
		}
	}
	return true
}

// ValidateName refuses a topic name with Java's remark: characters of [%|a-zA-Z0-9_-], at most 127 of them.
func ValidateName(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return nameError("The specified topic is blank.")
	case !legalName(name):
		return nameError("The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")
	case len(name) > 127:
		return nameError("The specified topic is longer than topic max length 127.")
	}
	return nil
}

// ValidateGroup refuses a group name with Java's remark: the same characters, at most 120.
func ValidateGroup(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return nameError("The specified group is blank.")
	case len(name) > 120:
		return nameError("The specified group is longer than group max length 120.")
	case !legalName(name):
		return nameError("The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")
	}
	return nil
}

// Options are a table's settings.
type Options struct {
	FS            vfs.FS
	Dir           string // the config folder
	Cluster       string
	Broker        string
	AutoCreate    bool   // autoCreateTopicEnable
	DefaultQueues int32  // defaultTopicQueueNums: of the template
	ClusterTopic  bool   // clusterTopicEnable
	BrokerTopic   bool   // brokerTopicEnable
	TraceTopic    string // msgTraceTopicName when traceTopicEnable, else ""
	DelayLevels   int32
	// Changed is called after topics changed, outside the table's lock, with the changed ones. Calls don't overlap.
	Changed func(changed []Config, version protocol.DataVersion)
}

// Table is the topic table. It is safe for concurrent use.
type Table struct {
	o    Options
	file string

	mu      sync.RWMutex
	topics  map[string]Config
	version protocol.DataVersion

	saveMu sync.Mutex // one change at a time: table, file, listener
	system map[string]bool
}

// Open loads the table and makes the system topics that miss. notes says what was passed over while loading.
func Open(o Options, now time.Time) (t *Table, notes []string, err error) {
	t = &Table{o: o, file: path.Join(o.Dir, "topics.json"), topics: map[string]Config{}, system: map[string]bool{}}
	_, notes, err = metafile.Load(o.FS, t.file, func(b []byte) error {
		var w protocol.TopicConfigWrapper
		if err := fastjson.Unmarshal(b, &w); err != nil {
			return err
		}
		if w.TopicConfigTable == nil {
			return errors.New("it has no topicConfigTable")
		}
		for name, c := range w.TopicConfigTable {
			if c.TopicName == "" {
				c.TopicName = name
			}
			t.topics[name] = c
		}
		t.version = w.DataVersion
		return nil
	})
	if err != nil {
		return nil, notes, err
	}
	changed := false
	for _, c := range t.systemTopics() {
		t.system[c.TopicName] = true
		if _, ok := t.topics[c.TopicName]; !ok {
			t.topics[c.TopicName] = c
			changed = true
		}
	}
	if t.version.Timestamp == 0 {
		t.version.Timestamp = now.UnixMilli()
	}
	if changed {
		err = t.save()
	}
	return t, notes, err
}

func config(name string, queues, perm int32) Config {
	return Config{TopicName: name, ReadQueueNums: queues, WriteQueueNums: queues, Perm: perm, TopicFilterType: "SINGLE_TAG", Attributes: map[string]string{}}
}

// systemTopics are the topics a Java broker makes at start.
func (t *Table) systemTopics() []Config {
	rw := Read | Write
	perm := func(open bool) int32 {
		if open {
			return Inherit | rw
		}
		return Inherit
	}
	list := []Config{
		config("SELF_TEST_TOPIC", 1, rw),
		config("BenchmarkTest", 1024, rw),
		config(t.o.Cluster, 16, perm(t.o.ClusterTopic)),
		config(t.o.Broker, 1, perm(t.o.BrokerTopic)),
		config("OFFSET_MOVED_EVENT", 1, rw),
		config(message.ScheduleTopic, t.o.DelayLevels, rw),
		config(t.o.Cluster+"_REPLY_TOPIC", 1, rw),
		config(sysPrefix+"REVIVE_LOG_"+t.o.Cluster, 8, rw),
		config(sysPrefix+"SYNC_BROKER_MEMBER_"+t.o.Broker, 1, Inherit),
		config(message.HalfTopic, 1, rw),
		config(message.OpHalfTopic, 1, rw),
		config(sysPrefix+"wheel_timer", 1, rw),
	}
	if t.o.AutoCreate {
		list = append(list, config(message.TemplateTopic, t.o.DefaultQueues, Inherit|rw))
	}
	if t.o.TraceTopic != "" {
		list = append(list, config(t.o.TraceTopic, 1, rw))
	}
	return list
}

// IsSystem reports whether a topic is the broker's own.
func (t *Table) IsSystem(name string) bool {
	if strings.HasPrefix(name, sysPrefix) || t.system[name] {
		return true
	}
	switch name {
	case message.TemplateTopic, message.CheckMaxTopic, "CHECKPOINT_TOPIC", message.TraceTopic:
		return true
	}
	return false
}

// Get returns a topic's configuration.
func (t *Table) Get(name string) (Config, bool) {
	t.mu.RLock()
	c, ok := t.topics[name]
	t.mu.RUnlock()
	return c, ok
}

// GetBytes is Get without making a string of the name.
func (t *Table) GetBytes(name []byte) (Config, bool) {
	t.mu.RLock()
	c, ok := t.topics[string(name)]
	t.mu.RUnlock()
	return c, ok
}

// All returns a copy of the table and its version.
func (t *Table) All() (map[string]Config, protocol.DataVersion) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	m := make(map[string]Config, len(t.topics))
	for k, v := range t.topics {
		m[k] = v
	}
	return m, t.version
}

// SystemTopics returns the names of the broker's own topics.
func (t *Table) SystemTopics() []string {
	out := []string{message.CheckMaxTopic, "CHECKPOINT_TOPIC"}
	for name := range t.system {
		out = append(out, name)
	}
	return out
}

func (t *Table) save() error {
	t.mu.RLock()
	b, err := json.MarshalIndent(protocol.TopicConfigWrapper{DataVersion: t.version, TopicConfigTable: t.topics}, "", "\t")
	t.mu.RUnlock()
	if err != nil {
		return err
	}
	return metafile.Save(t.o.FS, t.file, b)
}

// change applies edit to the table under its lock, and when it changed something (it returns those topics) raises
// the version, writes the file and tells the listener. An error of the file leaves the table as it was.
func (t *Table) change(now time.Time, edit func(topics map[string]Config) ([]Config, error)) error {
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	t.mu.Lock()
	next := make(map[string]Config, len(t.topics)+1)
	for k, v := range t.topics {
		next[k] = v
	}
	changed, err := edit(next)
	if err != nil || changed == nil {
		t.mu.Unlock()
		return err
	}
	old, oldVersion := t.topics, t.version
	t.topics, t.version = next, t.version.Advance(now.UnixMilli())
	version := t.version
	t.mu.Unlock()
	if err := t.save(); err != nil {
		t.mu.Lock()
		t.topics, t.version = old, oldVersion
		t.mu.Unlock()
		return err
	}
	if t.o.Changed != nil {
		t.o.Changed(changed, version)
	}
	return nil
}

// ensure returns the topic, making it by create when it is missing.
func (t *Table) ensure(name string, now time.Time, create func(topics map[string]Config) (Config, error)) (Config, error) {
	if c, ok := t.Get(name); ok {
		return c, nil
	}
	var out Config
	err := t.change(now, func(topics map[string]Config) ([]Config, error) {
		if c, ok := topics[name]; ok {
			out = c
			return nil, nil
		}
		c, err := create(topics)
		if err != nil {
			return nil, err
		}
		topics[name], out = c, c
		return []Config{c}, nil
	})
	return out, err
}

// CreateOnSend makes a topic that a producer sends to, from the template it names: as many queues as the client
// wants and the template has at most, its permission without the right to inherit. A %RETRY% topic without a
// template gets one queue.
func (t *Table) CreateOnSend(name, template string, clientQueues int32, now time.Time) (Config, error) {
	if err := ValidateName(name); err != nil {
		return Config{}, err
	}
	return t.ensure(name, now, func(topics map[string]Config) (Config, error) {
		d, ok := topics[template]
		if ok && d.Perm&Inherit != 0 && (t.o.AutoCreate || template != message.TemplateTopic) {
			c := config(name, max(min(clientQueues, d.WriteQueueNums), 0), d.Perm&^Inherit)
			c.TopicFilterType, c.TopicSysFlag = d.TopicFilterType, d.TopicSysFlag
			if c.WriteQueueNums > 0 {
				return c, nil
			}
		}
		if strings.HasPrefix(name, message.RetryPrefix) {
			return config(name, 1, Read|Write), nil
		}
		return Config{}, fmt.Errorf("%w: %s from template %s", ErrNoTemplate, name, template)
	})
}

// EnsureRetry returns a group's %RETRY% topic, making it.
func (t *Table) EnsureRetry(group string, queues int32, now time.Time) (Config, error) {
	name := message.RetryPrefix + group
	return t.ensure(name, now, func(map[string]Config) (Config, error) { return config(name, queues, Read|Write), nil })
}

// EnsureDLQ returns a group's %DLQ% topic, making it with one queue.
func (t *Table) EnsureDLQ(group string, now time.Time) (Config, error) {
	name := message.DLQPrefix + group
	return t.ensure(name, now, func(map[string]Config) (Config, error) { return config(name, 1, Read|Write), nil })
}

// Update creates a topic or replaces its configuration. attributes is the admin's text (+key=value,-key); it is
// merged into what the topic has. An equal configuration changes nothing.
func (t *Table) Update(c Config, attributes string, now time.Time) error {
	if err := ValidateName(c.TopicName); err != nil {
		return err
	}
	if t.IsSystem(c.TopicName) {
		return nameError(fmt.Sprintf("The topic[%s] is conflict with system topic.", c.TopicName))
	}
	return t.change(now, func(topics map[string]Config) ([]Config, error) {
		old, exists := topics[c.TopicName]
		merged, err := mergeAttributes(old.Attributes, attributes, !exists)
		if err != nil {
			return nil, err
		}
		c.Attributes = merged
		if c.TopicFilterType == "" {
			c.TopicFilterType = "SINGLE_TAG"
		}
		if exists && fmt.Sprint(old) == fmt.Sprint(c) {
			return nil, nil
		}
		topics[c.TopicName] = c
		return []Config{c}, nil
	})
}

// SetOrder sets the order flag of the topics in the name server's table, and clears no other.
func (t *Table) SetOrder(names []string, now time.Time) error {
	return t.change(now, func(topics map[string]Config) (changed []Config, err error) {
		for _, n := range names {
			if c, ok := topics[n]; ok && !c.Order {
				c.Order = true
				topics[n] = c
				changed = append(changed, c)
			}
		}
		return changed, nil
	})
}

// Delete removes a topic; a missing one is no error.
func (t *Table) Delete(name string, now time.Time) error {
	if strings.TrimSpace(name) == "" {
		return nameError("The specified topic is blank.")
	}
	if t.IsSystem(name) {
		return nameError(fmt.Sprintf("The topic[%s] is conflict with system topic.", name))
	}
	return t.change(now, func(topics map[string]Config) ([]Config, error) {
		if _, ok := topics[name]; !ok {
			return nil, nil
		}
		delete(topics, name)
		return []Config{}, nil
	})
}

// attribute is one topic attribute: its legal values, and whether it may change.
type attribute struct {
	values  []string // nil: a whole number
	mutable bool
}

func attributeOf(key string) (attribute, bool) {
	switch key {
	case "message.type":
		return attribute{[]string{"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}, true}, true
	case "cleanup.policy":
		return attribute{[]string{"DELETE", "COMPACTION"}, false}, true
	case "queue.type":
		return attribute{[]string{"SimpleCQ", "BatchCQ"}, false}, true
	case "reserve.time":
		return attribute{nil, true}, true
	}
	return attribute{}, false
}

// mergeAttributes applies "+key=value,-key" to what a topic has; on creation only + is legal.
func mergeAttributes(old map[string]string, text string, create bool) (map[string]string, error) {
	out := map[string]string{}
	for k, v := range old {
		out[k] = v
	}
	seen := map[string]bool{}
	for _, item := range strings.Split(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		op := item[0]
		key, value, _ := strings.Cut(item[1:], "=")
		def, known := attributeOf(key)
		switch {
		case op != '+' && op != '-':
			return nil, fmt.Errorf("attribute %q: want +key=value or -key", item)
		case !known:
			return nil, fmt.Errorf("unsupported key: %s", key)
		case seen[key]:
			return nil, fmt.Errorf("alter duplication key. key: %s", key)
		case create && op == '-':
			return nil, fmt.Errorf("only add attribute is supported while creating topic. key: %s", key)
		case !create && !def.mutable:
			return nil, fmt.Errorf("attempt to update an unchangeable attribute. key: %s", key)
		}
		seen[key] = true
		if op == '-' {
			delete(out, key)
			continue
		}
		if !def.allows(value) {
			return nil, fmt.Errorf("value is not in set, attribute %s: %q", key, value)
		}
		if value == "BatchCQ" || value == "COMPACTION" {
			return nil, fmt.Errorf("attribute %s=%s is not supported by this broker", key, value)
		}
		out[key] = value
	}
	return out, nil
}

func (a attribute) allows(v string) bool {
	if a.values == nil {
		_, err := strconv.ParseInt(v, 10, 64)
		return err == nil
	}
	for _, x := range a.values {
		if x == v {
			return true
		}
	}
	return false
}
