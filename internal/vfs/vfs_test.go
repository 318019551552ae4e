package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"testing"
)

// both runs a test on the operating system's file system and on the one in memory.
func both(t *testing.T, f func(t *testing.T, fsys FS, dir string)) {
	t.Run("os", func(t *testing.T) { f(t, OS(), t.TempDir()) })
	t.Run("mem", func(t *testing.T) {
		m := NewMem()
		if err := m.MkdirAll("/d"); err != nil {
			t.Fatal(err)
		}
		f(t, m, "/d")
	})
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func contents(t *testing.T, fsys FS, name string) []byte {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_RDWR)
	must(t, err)
	defer f.Close()
	n, err := f.Size()
	must(t, err)
	b := make([]byte, n)
	if k, err := f.ReadAt(b, 0); k != len(b) || err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("read %d of %d: %v", k, n, err)
	}
	return b
}

func TestFiles(t *testing.T) {
	both(t, func(t *testing.T, fsys FS, dir string) {
		name := path.Join(dir, "sub", "f")
		if _, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("create in a folder that isn't there: %v", err)
		}
		must(t, fsys.MkdirAll(path.Dir(name)))
		f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE)
		must(t, err)
		must(t, f.Truncate(100_000))
		m, err := f.Map(100_000, false)
		must(t, err)
		for _, at := range []int64{0, 50_000, 99_995} {
			_, err = f.WriteAt([]byte("hello"), at)
			must(t, err)
		}
		if !bytes.Equal(m.Bytes()[50_000:50_005], []byte("hello")) {
			t.Error("a write doesn't show in the mapping")
		}
		must(t, f.Zero(50_001, 49_000), f.Sync(), f.Datasync(), fsys.SyncDir(path.Dir(name)), fsys.SyncAll(dir))
		want := make([]byte, 100_000)
		copy(want, "hello")
		copy(want[50_000:], "h")
		copy(want[99_995:], "hello")
		if got := contents(t, fsys, name); !bytes.Equal(got, want) || !bytes.Equal(m.Bytes(), want) {
			t.Error("wrong contents after Zero")
		}
		must(t, m.Load(0, 1), m.Load(5000, 7), m.Load(99_999, 1), m.Load(0, 100_000), m.Close())
		if n, err := f.ReadAt(make([]byte, 10), 99_995); n != 5 || !errors.Is(err, io.EOF) {
			t.Errorf("read over the end: %d, %v", n, err)
		}
		_, err = fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("exclusive: %v", err)
		}
		must(t, f.Close())

		other := path.Join(dir, "sub", "g")
		must(t, fsys.Rename(name, other))
		if _, err := fsys.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("stat of the old name: %v", err)
		}
		entries, err := fsys.ReadDir(path.Dir(other))
		must(t, err)
		if len(entries) != 1 || entries[0].Name() != "g" {
			t.Errorf("%v", entries)
		}
		if info, err := entries[0].Info(); err != nil || info.Size() != 100_000 {
			t.Errorf("%v, %v", info, err)
		}
		f, err = fsys.OpenFile(other, os.O_RDWR|os.O_TRUNC)
		must(t, err, f.Close())
		if got := contents(t, fsys, other); len(got) != 0 {
			t.Errorf("%d bytes after O_TRUNC", len(got))
		}
		must(t, fsys.Remove(other))
		if err := fsys.Remove(other); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("removed twice: %v", err)
		}
		must(t, fsys.RemoveAll(path.Join(dir, "sub")), fsys.RemoveAll(path.Join(dir, "sub")))
		if _, err := fsys.ReadDir(path.Join(dir, "sub")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("folder is still there: %v", err)
		}
		if total, free, err := fsys.Usage(dir); err != nil || total == 0 || free > total {
			t.Errorf("usage %d of %d, %v", free, total, err)
		}
	})
}

func TestLockIsExclusiveInOneProcess(t *testing.T) {
	both(t, func(t *testing.T, fsys FS, dir string) {
		name := path.Join(dir, "lock")
		l, err := fsys.Lock(name)
		must(t, err)
		if _, err := fsys.Lock(name); !errors.Is(err, ErrLocked) {
			t.Errorf("second lock: %v", err)
		}
		must(t, l.Close())
		l, err = fsys.Lock(name)
		must(t, err, l.Close())
	})
}

// TestOverwrite is the way Zero goes on file systems that can't free a range.
func TestOverwrite(t *testing.T) {
	m := NewMem()
	f, err := m.OpenFile("/f", os.O_RDWR|os.O_CREATE)
	must(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte("x"), 1<<20), 0)
	must(t, err, overwrite(f, 10, 700_000), overwrite(f, 1<<20-5, 100))
	want := bytes.Repeat([]byte("x"), 1<<20)
	clear(want[10:700_010])
	clear(want[1<<20-5:])
	if !bytes.Equal(contents(t, m, "/f"), want) {
		t.Error("wrong contents")
	}
}

func TestCrashForgetsWhatWasNotFlushed(t *testing.T) {
	m := NewMem()
	must(t, m.MkdirAll("/d/sub"))
	create := func(name, text string, sync bool) File {
		f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE)
		must(t, err)
		_, err = f.WriteAt([]byte(text), 0)
		must(t, err)
		if sync {
			must(t, f.Sync())
		}
		return f
	}
	a := create("/d/a", "flushed", true)
	create("/d/b", "unflushed", false)
	create("/d/sub/c", "flushed", true)
	must(t, m.SyncDir("/d"), m.SyncDir("/d/sub"))
	create("/d/unnamed", "flushed", true)
	_, err := a.WriteAt([]byte("FLU"), 0)
	must(t, err)
	_, err = a.WriteAt([]byte("!!"), 7)
	must(t, err)

	c := m.Crash(nil)
	if got := contents(t, c, "/d/a"); string(got) != "flushed" {
		t.Errorf("a: %q", got)
	}
	if got := contents(t, c, "/d/b"); len(got) != 0 {
		t.Errorf("b: %q", got)
	}
	if _, err := c.Stat("/d/unnamed"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file whose folder wasn't flushed: %v", err)
	}
	// Torn, and in another order than written.
	c = m.Crash(func(name string, size int) int {
		if name == "/d/a" && size == 3 {
			return 0
		}
		return 1
	})
	if got := contents(t, c, "/d/a"); string(got) != "flushed!" {
		t.Errorf("torn a: %q", got)
	}
	if got := contents(t, c, "/d/b"); string(got) != "u" {
		t.Errorf("torn b: %q", got)
	}
	// A killed process loses nothing, but a power cut after it does.
	k := m.Kill()
	if got := contents(t, k, "/d/a"); string(got) != "FLUshed!!" {
		t.Errorf("killed a: %q", got)
	}
	if got := contents(t, k.Crash(nil), "/d/a"); string(got) != "flushed" {
		t.Errorf("killed, then crashed a: %q", got)
	}
	// Removals come back until the folder is flushed.
	must(t, m.Remove("/d/a"), m.RemoveAll("/d/sub"))
	if got := contents(t, m.Crash(nil), "/d/sub/c"); string(got) != "flushed" {
		t.Errorf("c: %q", got)
	}
	must(t, m.SyncDir("/d"))
	for _, name := range []string{"/d/a", "/d/sub/c"} {
		if _, err := m.Crash(nil).Stat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s came back: %v", name, err)
		}
	}
	// Sizes and zeroed ranges are forgotten, too.
	f := create("/d/e", "0123456789", true)
	must(t, m.SyncDir("/d"), f.Truncate(4), f.Zero(0, 2))
	if got := contents(t, m, "/d/e"); string(got) != "\x00\x0023" {
		t.Errorf("e: %q", got)
	}
	if got := contents(t, m.Crash(nil), "/d/e"); string(got) != "0123456789" {
		t.Errorf("crashed e: %q", got)
	}
	must(t, m.SyncAll("/d"))
	if got := contents(t, m.Crash(nil), "/d/e"); string(got) != "\x00\x0023" {
		t.Errorf("flushed e: %q", got)
	}
}

func TestInjectedErrors(t *testing.T) {
	m := NewMem()
	f, err := m.OpenFile("/f", os.O_RDWR|os.O_CREATE)
	must(t, err)
	m.FailWith(func(op, name string) error {
		switch op {
		case "write":
			return &Short{Part: func(n int) int { return n / 2 }, Err: syscall.ENOSPC}
		case "datasync":
			return syscall.EIO
		}
		return nil
	})
	if n, err := f.WriteAt([]byte("abcd"), 0); n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("short write: %d, %v", n, err)
	}
	if err := f.Datasync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("flush: %v", err)
	}
	m.FailWith(nil)
	must(t, f.Datasync(), m.SyncDir("/"))
	if got := contents(t, m, "/f"); string(got) != "ab" {
		t.Errorf("%q", got)
	}
	if got := contents(t, m.Crash(nil), "/f"); len(got) != 0 {
		t.Errorf("what a flush failed for came to the disk without being written again: %q", got)
	}
	_, err = f.WriteAt([]byte("ab"), 0)
	must(t, err, f.Sync())
	if got := contents(t, m.Crash(nil), "/f"); string(got) != "ab" {
		t.Errorf("written again: %q", got)
	}
}
