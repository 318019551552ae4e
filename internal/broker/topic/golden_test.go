package topic

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/metafile"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/vfs"
)

// golden is the config folder of a Java broker, and the options that go with it.
func golden(t *testing.T) (*vfs.Mem, Options) {
	t.Helper()
	b, err := os.ReadFile("testdata/topics.json")
	if err != nil {
		t.Fatal(err)
	}
	fs := vfs.NewMem()
	if err := errors.Join(fs.MkdirAll("/c"), metafile.Save(fs, "/c/topics.json", b)); err != nil {
		t.Fatal(err)
	}
	return fs, Options{FS: fs, Dir: "/c", Cluster: "GoldenCluster", Broker: "golden-broker", AutoCreate: true, DefaultQueues: 8, DelayLevels: 18}
}

func TestGoldenFile(t *testing.T) {
	fs, o := golden(t)
	tb, notes, err := Open(o, time.UnixMilli(1))
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	want := config("StoreNormal", 4, Read|Write)
	if c, ok := tb.Get("StoreNormal"); !ok || !reflect.DeepEqual(c, want) {
		t.Errorf("%+v %v, want %+v", c, ok, want)
	}
	all, version := tb.All()
	if version.Counter != 11 || version.Timestamp != 1796098524670 {
		t.Errorf("version %+v", version)
	}
	if err := tb.save(); err != nil {
		t.Fatal(err)
	}
	o.FS = fs.Crash(nil)
	again, _, err := Open(o, time.UnixMilli(2))
	if err != nil {
		t.Fatal(err)
	}
	if got, v := again.All(); !reflect.DeepEqual(got, all) || v != version {
		t.Errorf("after writing and reading: %+v %+v", v, got)
	}
}

func TestDamagedFile(t *testing.T) {
	for name, contents := range map[string]string{"empty": "", "cut": `{"topicConfigTable":{"A`, "no table": "{}"} {
		t.Run(name, func(t *testing.T) {
			fs, o := golden(t)
			tb, _, err := Open(o, time.UnixMilli(1))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(tb.save(), tb.save()); err != nil { // the second leaves the first as .bak
				t.Fatal(err)
			}
			f, err := fs.OpenFile("/c/topics.json", os.O_RDWR|os.O_TRUNC)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte(contents), 0); err != nil {
				t.Fatal(err)
			}
			again, notes, err := Open(o, time.UnixMilli(2))
			if err != nil || len(notes) == 0 {
				t.Fatal(notes, err)
			}
			want, _ := tb.All()
			if got, _ := again.All(); !reflect.DeepEqual(got, want) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestNameRemarks(t *testing.T) {
	const chars = "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
	long := strings.Repeat("a", 128)
	for _, c := range []struct {
		check      func(string) error
		name, want string
	}{
		{ValidateName, " ", "The specified topic is blank."},
		{ValidateName, "a/b", "The specified topic " + chars},
		{ValidateName, long, "The specified topic is longer than topic max length 127."},
		{ValidateGroup, "", "The specified group is blank."},
		{ValidateGroup, "g.h", "The specified group " + chars},
		{ValidateGroup, long[:121], "The specified group is longer than group max length 120."},
	} {
		if err := c.check(c.name); err == nil || err.Error() != c.want || !errors.Is(err, ErrIllegalName) {
			t.Errorf("%q: %v, want %s", c.name, err, c.want)
		}
	}
	if err := ValidateGroup(long[:120]); err != nil {
		t.Error(err)
	}
}

func TestTemplates(t *testing.T) {
	fs, o := golden(t)
	o.AutoCreate = false
	told := 0
	o.Changed = func([]Config, protocol.DataVersion) { told++ }
	tb, _, err := Open(o, time.UnixMilli(1))
	if err != nil {
		t.Fatal(err)
	}
	now := time.UnixMilli(5)
	// The golden file has TBW102, which counts only with autoCreateTopicEnable.
	if _, err := tb.CreateOnSend("T", message.TemplateTopic, 4, now); !errors.Is(err, ErrNoTemplate) {
		t.Error(err)
	}
	if _, err := tb.CreateOnSend("T", "StoreNormal", 4, now); !errors.Is(err, ErrNoTemplate) {
		t.Errorf("a template that may not be inherited: %v", err)
	}
	if err := tb.Update(Config{TopicName: "Mine", ReadQueueNums: 2, WriteQueueNums: 3, Perm: Inherit | Write}, "", now); err != nil {
		t.Fatal(err)
	}
	told = 0
	if c, err := tb.CreateOnSend("T", "Mine", 9, now); err != nil || c.WriteQueueNums != 3 || c.ReadQueueNums != 3 || c.Perm != Write {
		t.Errorf("%+v %v", c, err)
	}
	if c, err := tb.CreateOnSend("T", "Missing", 1, now); err != nil || c.WriteQueueNums != 3 || told != 1 {
		t.Errorf("a topic that is there: %+v %v, told %d", c, err, told)
	}
	if _, err := tb.CreateOnSend("U", "Mine", 0, now); !errors.Is(err, ErrNoTemplate) {
		t.Errorf("no queues: %v", err)
	}
	bad := errors.New("disk")
	fs.FailWith(func(op, _ string) error {
		if op == "write" {
			return bad
		}
		return nil
	})
	_, before := tb.All()
	if _, err := tb.CreateOnSend("V", "Mine", 1, now); !errors.Is(err, bad) {
		t.Error(err)
	}
	if _, ok := tb.Get("V"); ok || told != 1 {
		t.Errorf("a topic that was not written is there: %v, told %d", ok, told)
	}
	if _, after := tb.All(); after != before {
		t.Errorf("version %+v, was %+v", after, before)
	}
}

func TestAttributes(t *testing.T) {
	for _, c := range []struct {
		name, text string
		old        map[string]string
		create     bool
		want, err  string
	}{
		{name: "add", text: "+message.type=FIFO, +cleanup.policy=DELETE", create: true, want: "map[cleanup.policy:DELETE message.type:FIFO]"},
		{name: "change", text: "+message.type=DELAY", old: map[string]string{"message.type": "FIFO"}, want: "map[message.type:DELAY]"},
		{name: "remove", text: "-message.type", old: map[string]string{"message.type": "FIFO", "queue.type": "SimpleCQ"}, want: "map[queue.type:SimpleCQ]"},
		{name: "keep", old: map[string]string{"message.type": "FIFO"}, want: "map[message.type:FIFO]"},
		{name: "remove on creation", text: "-message.type", create: true, err: "only add"},
		{name: "twice", text: "+message.type=FIFO,-message.type", err: "duplication"},
		{name: "unchangeable", text: "-cleanup.policy", err: "unchangeable"},
		{name: "no number", text: "+reserve.time=soon", create: true, err: "not in set"},
		{name: "compaction", text: "+cleanup.policy=COMPACTION", create: true, err: "not supported"},
		{name: "no value", text: "+message.type", create: true, err: "not in set"},
		{name: "sign alone", text: "+", create: true, err: "unsupported key"},
	} {
		got, err := mergeAttributes(c.old, c.text, c.create)
		switch {
		case c.err == "":
			if s := fmt.Sprint(got); err != nil || s != c.want {
				t.Errorf("%s: %s %v, want %s", c.name, s, err, c.want)
			}
		case err == nil || !strings.Contains(err.Error(), c.err):
			t.Errorf("%s: %v, want %s", c.name, err, c.err)
		}
	}
}

func TestListenerAndDelete(t *testing.T) {
	_, o := golden(t)
	var versions []int64
	o.Changed = func(_ []Config, v protocol.DataVersion) { versions = append(versions, v.Counter) }
	tb, _, err := Open(o, time.UnixMilli(1))
	if err != nil {
		t.Fatal(err)
	}
	now := time.UnixMilli(5)
	for _, name := range append(tb.SystemTopics(), "rmq_sys_any", message.TemplateTopic) {
		if err := tb.Delete(name, now); !errors.Is(err, ErrIllegalName) {
			t.Errorf("delete %s: %v", name, err)
		}
		if err := tb.Update(Config{TopicName: name}, "", now); !errors.Is(err, ErrIllegalName) {
			t.Errorf("update %s: %v", name, err)
		}
	}
	if err := errors.Join(tb.Delete("StoreNormal", now), tb.Delete("StoreNormal", now), tb.SetOrder([]string{"StoreBig", "Missing"}, now), tb.SetOrder([]string{"StoreBig"}, now)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(versions, []int64{12, 13}) {
		t.Errorf("told of the versions %v", versions)
	}
	if c, _ := tb.Get("StoreBig"); !c.Order {
		t.Error("no order")
	}
}
