package offset

import (
	"errors"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/metafile"
	"github.com/apogeemq/apogee/internal/vfs"
)

// golden is the config folder of a Java broker, and its table.
func golden(t *testing.T) (*vfs.Mem, *Table) {
	t.Helper()
	b, err := os.ReadFile("testdata/consumerOffset.json")
	if err != nil {
		t.Fatal(err)
	}
	fs := vfs.NewMem()
	if err := errors.Join(fs.MkdirAll("/c"), metafile.Save(fs, "/c/consumerOffset.json", b)); err != nil {
		t.Fatal(err)
	}
	tb, notes, err := Open(fs, "/c")
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	return fs, tb
}

func TestGoldenFile(t *testing.T) {
	fs, tb := golden(t)
	want := map[int32]int64{0: 14, 1: 15, 2: 15, 3: 14}
	if got := tb.offsets[key{"StoreNormal", "golden_store_c"}]; !reflect.DeepEqual(got, want) || len(tb.offsets) != 5 {
		t.Errorf("%v of %d", got, len(tb.offsets))
	}
	if got := tb.Topics("golden_store_c"); !reflect.DeepEqual(got, []string{"StoreFilter", "StoreNormal"}) {
		t.Error(got)
	}
	tb.Commit("StoreBig", "g", 2, 7)
	if err := tb.Save(time.UnixMilli(9)); err != nil {
		t.Fatal(err)
	}
	again, notes, err := Open(fs.Crash(nil), "/c")
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	if !reflect.DeepEqual(again.offsets, tb.offsets) || again.version != tb.version || again.version.Timestamp != 9 {
		t.Errorf("%v %+v", again.offsets, again.version)
	}
}

func TestDamagedFile(t *testing.T) {
	for what, contents := range map[string]string{"empty": "", "cut": `{"offsetTable":{"A@g":{0:`, "no table": "{}"} {
		t.Run(what, func(t *testing.T) {
			fs, tb := golden(t)
			for i := range int64(2) {
				tb.Commit("T", "g", 0, i+1)
				if err := tb.Save(time.UnixMilli(9)); err != nil {
					t.Fatal(err)
				}
			}
			f, err := fs.OpenFile("/c/consumerOffset.json", os.O_RDWR|os.O_TRUNC)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte(contents), 0); err != nil {
				t.Fatal(err)
			}
			again, notes, err := Open(fs, "/c")
			if err != nil || len(notes) == 0 {
				t.Fatal(notes, err)
			}
			if v, ok := again.Peek("T", "g", 0); !ok || v != 1 { // one generation older
				t.Errorf("%d %v", v, ok)
			}
			if v, _ := again.Peek("StoreNormal", "golden_store_c", 1); v != 15 {
				t.Error(v)
			}
		})
	}
}

func TestReset(t *testing.T) {
	_, tb := golden(t)
	const topic, group = "StoreNormal", "golden_store_c"
	tb.Reset(topic, group, 0, 3)
	if v, _ := tb.Peek(topic, group, 0); v != 3 || !tb.ResetPending(topic, group, 0) {
		t.Errorf("%d", v)
	}
	if tb.ResetPending(topic, group, 1) || tb.ResetPending(topic, "other", 0) || tb.ResetPending("Other", group, 0) {
		t.Error("a reset of another queue waits")
	}
	// While it waits the broker passes over the group's commits; the reset is told once, the next query is plain.
	if v, ok := tb.TakeReset(topic, group, 0); !ok || v != 3 {
		t.Errorf("%d %v", v, ok)
	}
	if _, ok := tb.TakeReset(topic, group, 0); ok || tb.ResetPending(topic, group, 0) || len(tb.resets) != 0 {
		t.Errorf("told twice: %v", tb.resets)
	}
	if tb.Commit(topic, group, 0, 5) {
		t.Error("a commit above the reset goes back")
	}
	if v, ok := tb.Query(topic, group, 0); !ok || v != 5 {
		t.Errorf("%d %v", v, ok)
	}
	tb.Reset(topic, group, 0, 1)
	tb.Reset(topic, group, 0, 2)
	if v, _ := tb.Query(topic, group, 0); v != 2 {
		t.Errorf("the older of two resets: %d", v)
	}
	tb.Reset(topic, group, 2, 4)
	tb.RemoveGroup(group)
	if _, ok := tb.Query(topic, group, 2); ok || len(tb.Topics(group)) != 0 {
		t.Error("a removed group has a reset")
	}
}

func TestPulledCloneAndSteps(t *testing.T) {
	_, tb := golden(t)
	const topic, group = "StoreNormal", "golden_store_c"
	if v := tb.Pulled(topic, group, 1); v != 15 {
		t.Error(v)
	}
	tb.SetPulled(topic, group, 1, 40)
	if v := tb.Pulled(topic, group, 1); v != 40 {
		t.Error(v)
	}
	if v, _ := tb.Peek(topic, group, 1); v != 15 {
		t.Errorf("a pull moved the offset: %d", v)
	}
	tb.Clone(group, "copy", topic)
	tb.Commit(topic, "copy", 1, 16)
	if v, _ := tb.Peek(topic, group, 1); v != 15 {
		t.Errorf("the copy is the original: %d", v)
	}
	if got := tb.Groups(topic); !reflect.DeepEqual(got, []string{"copy", group}) {
		t.Error(got)
	}
	tb.RemoveTopic(topic)
	if v := tb.Pulled(topic, group, 1); v != 0 || len(tb.Groups(topic)) != 0 {
		t.Errorf("%d %v", v, tb.Groups(topic))
	}
	before := tb.version.Counter
	for i := range int64(2 * versionStep) {
		tb.Commit("T", "g", 0, i+1)
	}
	if got := tb.version.Counter - before; got != 2 {
		t.Errorf("the version rose by %d", got)
	}
}

func TestSave(t *testing.T) {
	fs, tb := golden(t)
	bad := errors.New("disk")
	fs.FailWith(func(op, _ string) error {
		if op == "write" {
			return bad
		}
		return nil
	})
	if err := tb.Save(time.UnixMilli(1)); err != nil {
		t.Errorf("nothing changed: %v", err)
	}
	tb.Commit("T", "g", 0, 1)
	if err := tb.Save(time.UnixMilli(1)); !errors.Is(err, bad) {
		t.Error(err)
	}
	fs.FailWith(nil)
	if err := tb.Save(time.UnixMilli(2)); err != nil {
		t.Fatal(err)
	}
	again, _, err := Open(fs.Crash(nil), "/c")
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := again.Peek("T", "g", 0); !ok || v != 1 {
		t.Errorf("a failed save was not done again: %d %v", v, ok)
	}
}
