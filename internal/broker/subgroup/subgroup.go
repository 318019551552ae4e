// Package subgroup keeps a broker's subscription groups: config/subscriptionGroup.json, the predefined groups and
// the rules by which groups come into being.
package subgroup

import (
	"encoding/json"
	"errors"
	"maps"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/broker/topic"
	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/metafile"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/vfs"
)

// Config is one group's configuration.
type Config = protocol.SubscriptionGroupConfig

// Options are a table's settings.
type Options struct {
	FS         vfs.FS
	Dir        string // the config folder
	AutoCreate bool   // autoCreateSubscriptionGroup
}

// Table is the group table. It is safe for concurrent use.
type Table struct {
	o    Options
	file string

	mu        sync.RWMutex
	groups    map[string]Config
	forbidden map[string]map[string]int32 // group → topic → permission bits taken away
	version   protocol.DataVersion

	saveMu sync.Mutex // one change at a time: table, then file
}

// predefined are the groups a Java broker makes at start.
func predefined() []string {
	return []string{"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
		"CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS"}
}

// Open loads the table. notes says what was passed over while loading.
func Open(o Options, now time.Time) (t *Table, notes []string, err error) {
	t = &Table{o: o, file: path.Join(o.Dir, "subscriptionGroup.json"), groups: map[string]Config{}, forbidden: map[string]map[string]int32{}}
	found, notes, err := metafile.Load(o.FS, t.file, func(b []byte) error {
		var w protocol.SubscriptionGroupWrapper
		if err := fastjson.Unmarshal(b, &w); err != nil {
			return err
		}
		if w.SubscriptionGroupTable == nil {
			return errors.New("it has no subscriptionGroupTable")
		}
		for name, c := range w.SubscriptionGroupTable {
			if c.GroupName == "" {
				c.GroupName = name
			}
			t.groups[name] = c
		}
		if w.ForbiddenTable != nil {
			t.forbidden = w.ForbiddenTable
		}
		t.version = w.DataVersion
		return nil
	})
	if err != nil {
		return nil, notes, err
	}
	for _, name := range predefined() {
		if _, ok := t.groups[name]; !ok {
			c := protocol.DefaultSubscriptionGroup(name)
			c.ConsumeBroadcastEnable = true
			t.groups[name] = c
			found = false
		}
	}
	if t.version.Timestamp == 0 {
		t.version.Timestamp = now.UnixMilli()
	}
	if !found {
		err = t.save()
	}
	return t, notes, err
}

func (t *Table) save() error {
	t.mu.RLock()
	b, err := json.MarshalIndent(protocol.SubscriptionGroupWrapper{DataVersion: t.version, ForbiddenTable: t.forbidden, SubscriptionGroupTable: t.groups}, "", "\t")
	t.mu.RUnlock()
	if err != nil {
		return err
	}
	return metafile.Save(t.o.FS, t.file, b)
}

// change applies edit under the lock and, when it reports a change, raises the version and writes the file. An error
// of the file leaves the table as it was: a change that is tried again must find something to write.
func (t *Table) change(now time.Time, edit func() bool) error {
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	t.mu.Lock()
	groups, forbidden, version := maps.Clone(t.groups), make(map[string]map[string]int32, len(t.forbidden)), t.version
	for group, topics := range t.forbidden {
		forbidden[group] = maps.Clone(topics)
	}
	if !edit() {
		t.mu.Unlock()
		return nil
	}
	t.version = t.version.Advance(now.UnixMilli())
	t.mu.Unlock()
	err := t.save()
	if err != nil {
		t.mu.Lock()
		t.groups, t.forbidden, t.version = groups, forbidden, version
		t.mu.Unlock()
	}
	return err
}

// Get returns a group's configuration.
func (t *Table) Get(name string) (Config, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	c, ok := t.groups[name]
	return c, ok
}

// GetBytes is Get without making a string of the name.
func (t *Table) GetBytes(name []byte) (Config, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	c, ok := t.groups[string(name)]
	return c, ok
}

// Ensure returns a group, making it with Java's defaults where groups are made by themselves (all of them with
// autoCreateSubscriptionGroup, the system's own always).
func (t *Table) Ensure(name string, now time.Time) (Config, bool, error) {
	if c, ok := t.Get(name); ok {
		return c, true, nil
	}
	if !t.o.AutoCreate && !strings.HasPrefix(name, "CID_RMQ_SYS_") {
		return Config{}, false, nil
	}
	if err := topic.ValidateGroup(name); err != nil {
		return Config{}, false, err
	}
	err := t.change(now, func() bool {
		if _, ok := t.groups[name]; ok {
			return false
		}
		t.groups[name] = protocol.DefaultSubscriptionGroup(name)
		return true
	})
	if err != nil {
		return Config{}, false, err
	}
	c, ok := t.Get(name)
	return c, ok, nil
}

// Update creates groups or replaces their configurations, all or none.
func (t *Table) Update(now time.Time, groups ...Config) error {
	for _, c := range groups {
		if err := topic.ValidateGroup(c.GroupName); err != nil {
			return err
		}
	}
	return t.change(now, func() bool {
		for _, c := range groups {
			t.groups[c.GroupName] = c
		}
		return len(groups) > 0
	})
}

// Delete removes a group; a missing one is no error.
func (t *Table) Delete(name string, now time.Time) error {
	return t.change(now, func() bool {
		_, ok := t.groups[name]
		_, forbids := t.forbidden[name]
		delete(t.groups, name)
		delete(t.forbidden, name)
		return ok || forbids
	})
}

// Forbidden reports whether the group may not read the topic.
func (t *Table) Forbidden(group, topicName string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.forbidden[group][topicName]&topic.Read != 0
}

// SetForbidden forbids the group to read the topic, or allows it again. Other topics of the group stay as they are
// (Java's clears the whole group with its last topic's bit).
func (t *Table) SetForbidden(group, topicName string, forbid bool, now time.Time) error {
	return t.change(now, func() bool {
		old := t.forbidden[group][topicName]
		bits := old &^ topic.Read
		if forbid {
			bits = old | topic.Read
		}
		if bits == old {
			return false
		}
		if t.forbidden[group] == nil {
			t.forbidden[group] = map[string]int32{}
		}
		if t.forbidden[group][topicName] = bits; bits == 0 {
			delete(t.forbidden[group], topicName)
		}
		if len(t.forbidden[group]) == 0 {
			delete(t.forbidden, group)
		}
		return true
	})
}

// Encode returns the whole table as its file and the admin answer have it.
func (t *Table) Encode() ([]byte, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return json.Marshal(protocol.SubscriptionGroupWrapper{DataVersion: t.version, ForbiddenTable: t.forbidden, SubscriptionGroupTable: t.groups})
}
