package offset

import (
	"os"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/vfs"
)

func TestTable(t *testing.T) {
	fs := vfs.NewMem()
	_ = fs.MkdirAll("/c")
	f, err := fs.OpenFile("/c/consumerOffset.json", os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	// As a Java broker writes it: unquoted keys.
	if _, err := f.WriteAt([]byte("{\n\t\"dataVersion\":{\"counter\":0},\n\t\"offsetTable\":{\"T@G\":{0:14,1:15\n\t\t}\n\t}\n}"), 0); err != nil {
		t.Fatal(err)
	}
	tb, notes, err := Open(fs, "/c")
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	if v, ok := tb.Query("T", "G", 1); !ok || v != 15 {
		t.Errorf("%d %v", v, ok)
	}
	if tb.Commit("T", "G", 1, 20) || !tb.Commit("T", "G", 1, 18) {
		t.Error("backward commits are not told apart")
	}
	tb.Reset("T", "G", 0, 3)
	if !tb.ResetPending("T", "G", 0) || tb.ResetPending("T", "G", 1) {
		t.Error("pending")
	}
	if v, _ := tb.Query("T", "G", 0); v != 3 || tb.ResetPending("T", "G", 0) {
		t.Errorf("%d", v)
	}
	tb.Clone("G", "H", "T")
	tb.Commit("U", "G", 0, 1)
	if err := tb.Save(time.UnixMilli(9)); err != nil {
		t.Fatal(err)
	}
	tb, _, err = Open(fs.Crash(nil), "/c")
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := tb.Query("T", "H", 1); !ok || v != 18 {
		t.Errorf("after a power cut: %d %v", v, ok)
	}
	tb.RemoveTopic("T")
	if g := tb.Topics("G"); len(g) != 1 || g[0] != "U" || len(tb.Groups("T")) != 0 {
		t.Error(g)
	}
}

func TestOpen(t *testing.T) {
	fs, tb := golden(t)
	const topic, group = "StoreNormal", "golden_store_c"
	tb.Commit(topic, group, 0, 20)
	tb.SetOpen(topic, group, 0, 20, "30:20-21")
	tb.Commit(topic, group, 1, 20)
	tb.SetOpen(topic, group, 1, 20, "40:20-22,30-31")
	tb.Commit(topic, group, 1, 20) // by one that says nothing
	if err := tb.Save(time.UnixMilli(9)); err != nil {
		t.Fatal(err)
	}
	again, notes, err := Open(fs.Crash(nil), "/c")
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	for _, x := range []*Table{tb, again} {
		if got := x.Open(topic, group, 0); got != "30:20-21" {
			t.Errorf("%q", got)
		}
		if got := x.Open(topic, group, 1); got != "" {
			t.Errorf("a commit without it left %q", got)
		}
	}
	again.Reset(topic, group, 0, 3)
	if got := again.Open(topic, group, 0); got != "" {
		t.Errorf("a reset left %q", got)
	}
	again.Commit(topic, group, 0, 20)
	again.SetOpen(topic, group, 0, 20, "30:20-21")
	again.RemoveTopic(topic)
	again.Commit(topic, group, 0, 20)
	if got := again.Open(topic, group, 0); got != "" {
		t.Errorf("a removed topic left %q", got)
	}
}
