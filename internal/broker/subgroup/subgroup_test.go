package subgroup

import (
	"errors"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/broker/topic"
	"github.com/apogeemq/apogee/internal/metafile"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/vfs"
)

const name = "/c/subscriptionGroup.json"

func open(t *testing.T, fs vfs.FS, auto bool) *Table {
	t.Helper()
	tb, notes, err := Open(Options{FS: fs, Dir: "/c", AutoCreate: auto}, time.UnixMilli(1))
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	return tb
}

// golden is the config folder of a Java broker.
func golden(t *testing.T) *vfs.Mem {
	t.Helper()
	b, err := os.ReadFile("testdata/subscriptionGroup.json")
	if err != nil {
		t.Fatal(err)
	}
	fs := vfs.NewMem()
	if err := errors.Join(fs.MkdirAll("/c"), metafile.Save(fs, name, b)); err != nil {
		t.Fatal(err)
	}
	return fs
}

func same(t *testing.T, got, want *Table) {
	t.Helper()
	if !reflect.DeepEqual(got.groups, want.groups) || !reflect.DeepEqual(got.forbidden, want.forbidden) || got.version != want.version {
		t.Errorf("got %+v %v %+v\nwant %+v %v %+v", got.groups, got.forbidden, got.version, want.groups, want.forbidden, want.version)
	}
}

func TestGoldenFile(t *testing.T) {
	fs := golden(t)
	tb := open(t, fs, true)
	if tb.version.Counter != 3 || tb.version.Timestamp != 1796098541792 {
		t.Errorf("%+v", tb.version)
	}
	if !tb.Forbidden("golden_store_fifo", "StoreNormal") || tb.Forbidden("golden_store_fifo", "StoreOrder") || tb.Forbidden("golden_store_c", "StoreNormal") {
		t.Errorf("%v", tb.forbidden)
	}
	if c, ok := tb.GetBytes([]byte("SELF_TEST_C_GROUP")); !ok || !reflect.DeepEqual(c, protocol.DefaultSubscriptionGroup("SELF_TEST_C_GROUP")) {
		t.Errorf("%+v %v", c, ok)
	}
	if err := tb.save(); err != nil {
		t.Fatal(err)
	}
	same(t, open(t, fs.Crash(nil), true), tb)
}

func TestDamagedFile(t *testing.T) {
	for what, contents := range map[string]string{"empty": "", "cut": `{"subscriptionGroupTable":{"A`, "no table": "{}"} {
		t.Run(what, func(t *testing.T) {
			fs := golden(t)
			tb := open(t, fs, true)
			if err := errors.Join(tb.save(), tb.save()); err != nil {
				t.Fatal(err)
			}
			f, err := fs.OpenFile(name, os.O_RDWR|os.O_TRUNC)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte(contents), 0); err != nil {
				t.Fatal(err)
			}
			again, notes, err := Open(Options{FS: fs, Dir: "/c"}, time.UnixMilli(2))
			if err != nil || len(notes) == 0 {
				t.Fatal(notes, err)
			}
			same(t, again, tb)
		})
	}
}

func TestEnsure(t *testing.T) {
	now := time.UnixMilli(5)
	fs := golden(t)
	tb := open(t, fs, true)
	c, ok, err := tb.Ensure("new", now)
	if err != nil || !ok || !reflect.DeepEqual(c, protocol.DefaultSubscriptionGroup("new")) || tb.version.Counter != 4 {
		t.Errorf("%+v %v %v, version %+v", c, ok, err, tb.version)
	}
	if _, ok, err := tb.Ensure("new", now); !ok || err != nil || tb.version.Counter != 4 {
		t.Errorf("again: %v %v, version %+v", ok, err, tb.version)
	}
	if _, ok, err := tb.Ensure("a b", now); ok || !errors.Is(err, topic.ErrIllegalName) {
		t.Errorf("%v %v", ok, err)
	}
	same(t, open(t, fs.Crash(nil), true), tb)

	off := open(t, golden(t), false)
	if _, ok, err := off.Ensure("new", now); ok || err != nil {
		t.Errorf("autoCreateSubscriptionGroup=false: %v %v", ok, err)
	}
	if _, ok, err := off.Ensure("golden_store_c", now); !ok || err != nil {
		t.Errorf("a group that is there: %v %v", ok, err)
	}
	if _, ok, err := off.Ensure("CID_RMQ_SYS_x", now); !ok || err != nil {
		t.Errorf("a group of the system: %v %v", ok, err)
	}
}

func TestUpdateAndDelete(t *testing.T) {
	now := time.UnixMilli(5)
	fs := golden(t)
	tb := open(t, fs, true)
	a, b := protocol.DefaultSubscriptionGroup("a"), protocol.DefaultSubscriptionGroup("b b")
	a.RetryMaxTimes = 3
	if err := tb.Update(now, a, b); !errors.Is(err, topic.ErrIllegalName) {
		t.Error(err)
	}
	if _, ok := tb.Get("a"); ok {
		t.Error("one of two was taken")
	}
	if err := tb.Update(now, a); err != nil {
		t.Fatal(err)
	}
	if c, _ := tb.Get("a"); c.RetryMaxTimes != 3 {
		t.Errorf("%+v", c)
	}
	if err := errors.Join(tb.SetForbidden("unknown", "T", true, now), tb.Delete("unknown", now), tb.Delete("golden_store_fifo", now)); err != nil {
		t.Fatal(err)
	}
	again := open(t, fs.Crash(nil), true)
	if again.Forbidden("unknown", "T") || again.Forbidden("golden_store_fifo", "StoreNormal") {
		t.Errorf("%v", again.forbidden)
	}
	same(t, again, tb)
	before := tb.version
	if err := tb.Delete("unknown", now); err != nil || tb.version != before {
		t.Errorf("%v, version %+v, was %+v", err, tb.version, before)
	}
}

func TestForbidden(t *testing.T) {
	now := time.UnixMilli(5)
	fs := golden(t)
	tb := open(t, fs, true)
	if err := errors.Join(tb.SetForbidden("g", "A", true, now), tb.SetForbidden("g", "B", true, now), tb.SetForbidden("g", "A", false, now)); err != nil {
		t.Fatal(err)
	}
	if tb.Forbidden("g", "A") || !tb.Forbidden("g", "B") || !tb.Forbidden("golden_store_fifo", "StoreNormal") {
		t.Errorf("%v", tb.forbidden)
	}
	before := tb.version
	if err := errors.Join(tb.SetForbidden("g", "B", true, now), tb.SetForbidden("g", "C", false, now)); err != nil || tb.version != before {
		t.Errorf("%v: version %+v, was %+v", err, tb.version, before)
	}
	same(t, open(t, fs.Crash(nil), true), tb)
}

// A change that could not be written is not there, and is written when it is tried again.
func TestFailedWrite(t *testing.T) {
	now := time.UnixMilli(5)
	fs := golden(t)
	tb := open(t, fs, true)
	before, _ := tb.Encode()
	bad := errors.New("disk")
	change := func() error {
		_, _, err := tb.Ensure("g", now)
		return errors.Join(err, tb.SetForbidden("golden_store_fifo", "T", true, now))
	}
	fs.FailWith(func(op, _ string) error {
		if op == "write" {
			return bad
		}
		return nil
	})
	if err := change(); !errors.Is(err, bad) {
		t.Fatal(err)
	}
	if after, _ := tb.Encode(); string(after) != string(before) {
		t.Errorf("%s", after)
	}
	fs.FailWith(nil)
	if err := change(); err != nil {
		t.Fatal(err)
	}
	again := open(t, fs.Crash(nil), true)
	if _, ok := again.Get("g"); !ok || !again.Forbidden("golden_store_fifo", "T") {
		t.Errorf("not written: %v %v", ok, again.forbidden)
	}
}
