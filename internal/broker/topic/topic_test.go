package topic

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/vfs"
)

func open(t *testing.T, fs vfs.FS, auto bool, changed func([]Config, protocol.DataVersion)) *Table {
	t.Helper()
	_ = fs.MkdirAll("/c")
	tb, notes, err := Open(Options{FS: fs, Dir: "/c", Cluster: "C", Broker: "b", AutoCreate: auto, DefaultQueues: 8, DelayLevels: 18, Changed: changed}, time.UnixMilli(1))
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	return tb
}

func TestCreateOnSend(t *testing.T) {
	fs, now := vfs.NewMem(), time.UnixMilli(5)
	told := 0
	tb := open(t, fs, true, func(c []Config, _ protocol.DataVersion) { told += len(c) })
	c, err := tb.CreateOnSend("T", message.TemplateTopic, 4, now)
	if err != nil || c.WriteQueueNums != 4 || c.Perm != Read|Write || told != 1 {
		t.Errorf("%+v %v, told %d", c, err, told)
	}
	if c, err := tb.CreateOnSend("Many", message.TemplateTopic, 100, now); err != nil || c.ReadQueueNums != 8 {
		t.Errorf("%+v %v", c, err)
	}
	if _, err := tb.CreateOnSend("X", "NoTemplate", 4, now); !errors.Is(err, ErrNoTemplate) {
		t.Error(err)
	}
	if c, err := tb.CreateOnSend("%RETRY%g", "NoTemplate", 4, now); err != nil || c.WriteQueueNums != 1 {
		t.Errorf("%+v %v", c, err)
	}
	again := open(t, fs.Crash(nil), true, nil)
	if c, ok := again.Get("Many"); !ok || c.ReadQueueNums != 8 {
		t.Errorf("after a power cut: %+v %v", c, ok)
	}
	off := open(t, vfs.NewMem(), false, nil)
	if _, err := off.CreateOnSend("T", message.TemplateTopic, 4, now); !errors.Is(err, ErrNoTemplate) {
		t.Errorf("autoCreateTopicEnable=false: %v", err)
	}
}

func TestUpdateAndDelete(t *testing.T) {
	tb := open(t, vfs.NewMem(), true, nil)
	now := time.UnixMilli(5)
	c := Config{TopicName: "T", ReadQueueNums: 2, WriteQueueNums: 2, Perm: 6}
	if err := tb.Update(c, "+message.type=FIFO", now); err != nil {
		t.Fatal(err)
	}
	_, before := tb.All()
	if err := tb.Update(c, "+message.type=FIFO", now); err != nil {
		t.Fatal(err)
	}
	if _, after := tb.All(); after != before {
		t.Error("an equal configuration raised the version")
	}
	for attributes, want := range map[string]string{"+nope=1": "unsupported key", "+queue.type=BatchCQ": "unchangeable", "message.type=FIFO": "want +key=value", "+message.type=ODD": "not in set"} {
		if err := tb.Update(c, attributes, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", attributes, err)
		}
	}
	for _, name := range []string{message.ScheduleTopic, "rmq_sys_x", "", "b"} {
		if err := tb.Delete(name, now); !errors.Is(err, ErrIllegalName) {
			t.Errorf("delete %q: %v", name, err)
		}
	}
	if err := tb.Delete("T", now); err != nil {
		t.Fatal(err)
	}
	if _, ok := tb.Get("T"); ok {
		t.Error("still there")
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{"T-1_%|": true, "": false, "a b": false, "tøpic": false, strings.Repeat("a", 127): true, strings.Repeat("a", 128): false} {
		if err := ValidateName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}
