package metafile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/apogeemq/apogee/internal/vfs"
)

const name = "/c/f.json"

func contents(n int) []byte { return fmt.Appendf(nil, "{\n\t\"n\":%d\n}", n) }

// load returns the number in the file, 0 without one. Like a real table it takes only what has everything in it.
func load(fsys vfs.FS) (n int, found bool, notes []string, err error) {
	found, notes, err = Load(fsys, name, func(b []byte) error {
		var v struct{ N *int }
		if err := json.Unmarshal(b, &v); err != nil {
			return err
		}
		if v.N == nil {
			return errors.New("it has no n")
		}
		n = *v.N
		return nil
	})
	return n, found, notes, err
}

func newMem(t testing.TB, saves int) *vfs.Mem {
	t.Helper()
	m := vfs.NewMem()
	if err := m.MkdirAll("/c"); err != nil {
		t.Fatal(err)
	}
	for i := range saves {
		if err := Save(m, name, contents(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func write(t testing.TB, m vfs.FS, name string, data []byte) {
	t.Helper()
	f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(data, 0)
	if err = errors.Join(err, f.Sync(), f.Close(), m.SyncDir("/c")); err != nil {
		t.Fatal(err)
	}
}

func exists(m vfs.FS, name string) bool {
	_, err := m.Stat(name)
	return err == nil
}

// TestStopAtEveryCall lets a save fail at every call it makes, and cuts the power there: one of the two generations
// loads, and the next save works.
func TestStopAtEveryCall(t *testing.T) {
	for stop := 0; ; stop++ {
		m := newMem(t, 2)
		calls := 0
		m.FailWith(func(string, string) error {
			if calls++; calls > stop {
				return os.ErrClosed
			}
			return nil
		})
		saved := Save(m, name, contents(3))
		m.FailWith(nil)
		if saved != nil && (!errors.Is(saved, os.ErrClosed) || !strings.Contains(saved.Error(), name)) {
			t.Fatalf("stopped before call %d: %v", stop, saved)
		}
		for _, after := range []*vfs.Mem{m, m.Crash(nil)} {
			n, found, notes, err := load(after)
			if err != nil || !found || n < 2 || saved == nil && n != 3 {
				t.Fatalf("stopped before call %d (%v): found %v n=%d %v %v", stop, saved, found, n, notes, err)
			}
			if !exists(after, name) && (len(notes) != 1 || !strings.Contains(notes[0], "is missing; the older f.json.bak was taken instead")) {
				t.Fatalf("stopped before call %d: the file is missing, and the notes are %q", stop, notes)
			}
			if err := Save(after, name, contents(4)); err != nil {
				t.Fatalf("saved again: %v", err)
			}
			if n, _, notes, err := load(after); n != 4 || len(notes) != 0 || err != nil {
				t.Fatalf("saved again: n=%d %q %v", n, notes, err)
			}
		}
		if saved == nil {
			return
		}
	}
}

// TestDamage cuts the file at every byte, fills it with zeros, and puts other things into it: the older generation
// loads, what happened is said, and the next save doesn't put the damaged one into its place.
func TestDamage(t *testing.T) {
	full := Seal(contents(2))
	bad := map[string][]byte{"zeros": make([]byte, len(full)), "zeros behind": append(Seal(contents(2)), 0, 0, 0), "another file's": []byte(`{"offsetTable":{}}`), "text": []byte("hello")}
	for cut := range full {
		bad[fmt.Sprintf("cut at %d", cut)] = full[:cut]
		for bit := range 8 {
			b := bytes.Clone(full)
			b[cut] ^= 1 << bit
			bad[fmt.Sprintf("bit %d of byte %d flipped", bit, cut)] = b
		}
	}
	for what, data := range bad {
		m := newMem(t, 2)
		write(t, m, name, data)
		n, found, notes, err := load(m)
		if n == 2 && len(notes) == 0 && err == nil && strings.Contains(what, "flipped") && bytes.HasPrefix(data, full[:len(full)-sealSize]) {
			continue // the seal's name was hit: the contents are whole
		}
		if err != nil || !found || n != 1 || len(notes) != 1 || !strings.HasPrefix(notes[0], name+" is damaged (") || !strings.HasSuffix(notes[0], ") and was moved to /c/f.json.damaged; the older f.json.bak was taken instead") {
			t.Fatalf("%s: found %v n=%d %q %v", what, found, n, notes, err)
		}
		kept, err := read(m, name+".damaged")
		if err != nil || string(kept) != string(data) {
			t.Fatalf("%s: the damaged file was not kept: %q, %v", what, kept, err)
		}
		if n, found, _, err := load(m.Crash(nil)); n != 1 || !found || err != nil {
			t.Fatalf("%s, power cut: found %v n=%d %v", what, found, n, err)
		}
		if err := Save(m, name, contents(3)); err != nil {
			t.Fatal(err)
		}
		if n, _, notes, err := load(m); n != 3 || len(notes) != 0 || err != nil {
			t.Fatalf("%s, saved: n=%d %q %v", what, n, notes, err)
		}
		write(t, m, name, data)
		if n, found, _, err := load(m); n != 1 || !found || err != nil {
			t.Fatalf("%s, damaged again: found %v n=%d %v", what, found, n, err)
		}
	}
}

func TestNothingSound(t *testing.T) {
	m := newMem(t, 0)
	if n, found, notes, err := load(m); n != 0 || found || len(notes) != 0 || err != nil {
		t.Errorf("no file: found %v n=%d %q %v", found, n, notes, err)
	}
	write(t, m, name, []byte("{"))
	write(t, m, name+".bak", nil)
	if n, found, notes, err := load(m); n != 0 || found || len(notes) != 2 || err != nil {
		t.Errorf("both damaged: found %v n=%d %q %v", found, n, notes, err)
	}
	if exists(m, name) || exists(m, name+".bak") || !exists(m, name+".damaged") || !exists(m, name+".bak.damaged") {
		t.Error("the damaged files are not out of the way")
	}
	// What a Java broker leaves between its two steps.
	write(t, m, name+".bak", contents(7))
	if n, found, notes, err := load(m); n != 7 || !found || len(notes) != 1 || err != nil {
		t.Errorf("only the older: found %v n=%d %q %v", found, n, notes, err)
	}
}

// TestReadErrors: an error of the disk is no damage; nothing is moved, nothing is taken for missing.
func TestReadErrors(t *testing.T) {
	m := newMem(t, 2)
	m.FailWith(func(op, n string) error {
		if op == "read" && n == name {
			return os.ErrPermission
		}
		return nil
	})
	if n, found, _, err := load(m); !errors.Is(err, os.ErrPermission) || found || n != 0 {
		t.Errorf("found %v n=%d %v", found, n, err)
	}
	m.FailWith(nil)
	if n, found, notes, err := load(m); n != 2 || !found || len(notes) != 0 || err != nil {
		t.Errorf("afterwards: found %v n=%d %q %v", found, n, notes, err)
	}
	m.FailWith(func(op, _ string) error {
		if op == "rename" {
			return fs.ErrPermission
		}
		return nil
	})
	write(t, m, name, []byte("{"))
	if n, found, _, err := load(m); !errors.Is(err, fs.ErrPermission) || !found || n != 1 {
		t.Errorf("can't be moved: found %v n=%d %v", found, n, err)
	}
}

// TestOnDisk does the same on the operating system's files.
func TestOnDisk(t *testing.T) {
	dir := t.TempDir()
	file := dir + "/f.json"
	for _, text := range []string{"1", "2", "3"} {
		if err := Save(vfs.OS(), file, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var got string
	found, notes, err := Load(vfs.OS(), file, func(b []byte) error { got = string(b); return nil })
	if !found || got != "2" || len(notes) != 1 || err != nil {
		t.Errorf("found %v %q %q %v", found, got, notes, err)
	}
	if err := Save(vfs.OS(), dir+"/none/f.json", []byte("1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that isn't there: %v", err)
	}
}

// TestModel mixes saves, saves that fail anywhere, power cuts and damage. What loads is never older than the last
// save that was acknowledged, or than the one before it when the last was damaged.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := vfs.NewMem()
		_ = m.MkdirAll("/c")
		var (
			last    int // the last value that a save was given
			acked   int // the last acknowledged
			before  int // what loads at least when the file is damaged; it has one while mayHurt
			mayHurt bool
		)
		check := func() int {
			n, found, notes, err := load(m)
			if err != nil || n < acked || n > last || found != (n > 0) {
				t.Fatalf("found %v n=%d of %d…%d %q %v", found, n, acked, last, notes, err)
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"save": func(t *rapid.T) {
				last++
				was := acked
				if err := Save(m, name, contents(last)); err != nil {
					t.Fatal(err)
				}
				acked, before, mayHurt = last, was, was > 0
			},
			"failing save": func(t *rapid.T) {
				last++
				left := rapid.IntRange(0, 9).Draw(t, "calls")
				m.FailWith(func(string, string) error {
					if left--; left < 0 {
						return os.ErrClosed
					}
					return nil
				})
				was, err := acked, Save(m, name, contents(last))
				m.FailWith(nil)
				if mayHurt = false; err == nil {
					acked, before, mayHurt = last, was, was > 0
				}
			},
			"power cut": func(t *rapid.T) {
				keep := rapid.IntRange(0, 100).Draw(t, "percent")
				m = m.Crash(func(_ string, size int) int { return size * keep / 100 })
				check()
			},
			"damage": func(t *rapid.T) {
				if !mayHurt || check() != acked {
					t.Skip("there is no older generation that is known")
				}
				f, err := m.OpenFile(name, os.O_RDWR)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(f.Truncate(int64(rapid.IntRange(0, len(contents(1))-1).Draw(t, "size"))), f.Sync(), f.Close()); err != nil {
					t.Fatal(err)
				}
				acked, mayHurt = before, false
				check()
			},
			"": func(*rapid.T) { check() },
		})
	})
}
