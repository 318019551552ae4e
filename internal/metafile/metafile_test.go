package metafile

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/apogeemq/apogee/internal/vfs"
)

// TestCrashAtEveryCall cuts the power in front of every call of a save: one of the two generations loads.
func TestCrashAtEveryCall(t *testing.T) {
	for stop := 0; ; stop++ {
		m := vfs.NewMem()
		_ = m.MkdirAll("/c")
		for i := range 2 {
			if err := Save(m, "/c/f.json", fmt.Appendf(nil, `{"n":%d}`, i)); err != nil {
				t.Fatal(err)
			}
		}
		calls, crashed := 0, (*vfs.Mem)(nil)
		m.FailWith(func(op, name string) error {
			if calls++; calls > stop {
				return os.ErrClosed
			}
			return nil
		})
		err := Save(m, "/c/f.json", []byte(`{"n":2}`))
		m.FailWith(nil)
		crashed = m.Crash(nil)
		var v struct{ N int }
		found, notes, lerr := Load(crashed, "/c/f.json", func(b []byte) error { return json.Unmarshal(b, &v) })
		if lerr != nil || !found || v.N < 1 || err == nil && v.N != 2 {
			t.Fatalf("stopped before call %d (%v): found %v n=%d %v %v", stop, err, found, v.N, notes, lerr)
		}
		if err == nil {
			return
		}
	}
}

// TestDamage cuts and flips the file at every byte: the older generation loads, or the same contents.
func TestDamage(t *testing.T) {
	m := vfs.NewMem()
	_ = m.MkdirAll("/c")
	for i := range 2 {
		if err := Save(m, "/c/f.json", fmt.Appendf(nil, `{"n":%d}`, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	full := []byte(`{"n":2}`)
	for cut := range full {
		f, err := m.OpenFile("/c/f.json", os.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Truncate(int64(cut))
		_, _ = f.WriteAt(full[:cut], 0)
		var v struct{ N int }
		found, notes, err := Load(m, "/c/f.json", func(b []byte) error { return json.Unmarshal(b, &v) })
		if err != nil || !found || v.N != 1 || len(notes) != 2 {
			t.Fatalf("cut at %d: found %v n=%d %v %v", cut, found, v.N, notes, err)
		}
	}
	if found, _, err := Load(m, "/c/none.json", func([]byte) error { return nil }); found || err != nil {
		t.Fatal(found, err)
	}
}
