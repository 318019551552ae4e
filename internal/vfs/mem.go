package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
	"sync"
	"time"
)

// Mem is a file system in memory. Crash returns it as it would be after a power cut: what was flushed, and of the
// rest as much as the test decides, in whichever order: an unflushed write may be there while an older one is not.
//
// It is stricter than file systems are in two ways: names are durable only after SyncDir (or SyncAll), and so are
// removals. It is kinder in one: a folder is durable as soon as it is made.
type Mem struct {
	mu    sync.Mutex
	dirs  map[string]bool
	files map[string]*memFile // as seen now
	named map[string]*memFile // names that are durable
	locks map[string]bool
	fail  func(op, name string) error
	free  int64 // what Usage answers; < 0: half of it
}

const memTotal = 1 << 40

// NewMem returns an empty file system.
func NewMem() *Mem {
	return &Mem{dirs: map[string]bool{"/": true, ".": true}, files: map[string]*memFile{}, named: map[string]*memFile{}, locks: map[string]bool{}, free: memTotal / 2}
}

// FailWith installs a hook that is asked before every call that changes or reads something (open, read, load, write,
// truncate, zero, sync, datasync, syncdir, syncall, rename, remove, mkdir, readdir); its error is returned instead.
// A Short error lets a part of a write through before it. nil removes the hook.
func (m *Mem) FailWith(f func(op, name string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = f
}

// Short is an injected error of a write that was done in part.
type Short struct {
	Part func(size int) int // bytes that are written, of size
	Err  error
}

func (s *Short) Error() string { return s.Err.Error() }
func (s *Short) Unwrap() error { return s.Err }

// SetFree sets what Usage reports as free, of 1 TiB.
func (m *Mem) SetFree(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free = bytes
}

func (m *Mem) check(op, name string) error {
	m.mu.Lock()
	f := m.fail
	m.mu.Unlock()
	if f != nil {
		if err := f(op, name); err != nil {
			return &fs.PathError{Op: op, Path: name, Err: err}
		}
	}
	return nil
}

type memFile struct {
	mu      sync.RWMutex
	data    []byte
	durable []byte   // contents at the last flush
	ops     []change // since then, in order
	mtime   time.Time
}

// change is one change of a file that isn't flushed yet.
type change struct {
	kind changeKind
	at   int64 // truncated: the new size
	n    int64 // zeroed
	data []byte
}

type changeKind int

const (
	wrote changeKind = iota
	truncated
	zeroed
)

// apply does c to b, a write up to its first part bytes only.
func (c change) apply(b []byte, part int) []byte {
	switch c.kind {
	case truncated:
		if c.at <= int64(len(b)) {
			return b[:c.at:c.at]
		}
		return append(b, make([]byte, c.at-int64(len(b)))...)
	case zeroed:
		if c.at < int64(len(b)) {
			clear(b[c.at:min(c.at+c.n, int64(len(b)))])
		}
		return b
	}
	if end := c.at + int64(part); end > int64(len(b)) && part > 0 {
		b = append(b, make([]byte, end-int64(len(b)))...)
	}
	if part > 0 {
		copy(b[c.at:], c.data[:part])
	}
	return b
}

// do makes a change; the caller holds f.mu.
func (f *memFile) do(c change) {
	f.data = c.apply(f.data, len(c.data))
	f.ops = append(f.ops, c)
	f.mtime = time.Now()
}

func (f *memFile) flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.ops {
		f.durable = c.apply(f.durable, len(c.data))
	}
	f.ops = nil
}

// Crash returns the file system after a power cut. Of each unflushed write keep says how many bytes reached the
// disk, of each other unflushed change of a file (asked with size 1) whether it did; nil keeps nothing. Names whose
// folder was not flushed are gone, removed ones are back.
func (m *Mem) Crash(keep func(name string, size int) int) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := NewMem()
	c.free = m.free
	for d := range m.dirs {
		c.dirs[d] = true
	}
	names := make([]string, 0, len(m.named))
	for name := range m.named {
		names = append(names, name)
	}
	sort.Strings(names) // keep is asked in an order that a seed repeats
	for _, name := range names {
		f := m.named[name]
		f.mu.RLock()
		data := append([]byte(nil), f.durable...)
		for _, op := range f.ops {
			if keep == nil {
				break
			}
			size := max(len(op.data), 1)
			if n := min(max(keep(name, size), 0), size); n > 0 {
				data = op.apply(data, min(n, len(op.data)))
			}
		}
		g := &memFile{data: data, durable: append([]byte(nil), data...), mtime: f.mtime}
		f.mu.RUnlock()
		c.files[name], c.named[name] = g, g
		for d := path.Dir(name); d != "/" && d != "."; d = path.Dir(d) {
			c.dirs[d] = true
		}
	}
	return c
}

// Kill returns the file system as it is after the process was killed: everything written is there, flushed or not,
// and what wasn't flushed can still be lost to a power cut.
func (m *Mem) Kill() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := NewMem()
	c.free = m.free
	for d := range m.dirs {
		c.dirs[d] = true
	}
	copies := map[*memFile]*memFile{}
	copyOf := func(f *memFile) *memFile {
		if g := copies[f]; g != nil {
			return g
		}
		f.mu.RLock()
		defer f.mu.RUnlock()
		g := &memFile{data: append([]byte(nil), f.data...), durable: append([]byte(nil), f.durable...), ops: append([]change(nil), f.ops...), mtime: f.mtime}
		copies[f] = g
		return g
	}
	for name, f := range m.files {
		c.files[name] = copyOf(f)
	}
	for name, f := range m.named {
		c.named[name] = copyOf(f)
	}
	return c
}

// OpenFile implements FS.
func (m *Mem) OpenFile(name string, flag int) (File, error) {
	name = path.Clean(name)
	if err := m.check("open", name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.files[name]
	switch {
	case !ok && (flag&os.O_CREATE == 0 || !m.dirs[path.Dir(name)]):
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	case !ok:
		f = &memFile{mtime: time.Now()}
		m.files[name] = f
	case flag&os.O_EXCL != 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrExist}
	case flag&os.O_TRUNC != 0:
		f.mu.Lock()
		f.do(change{kind: truncated})
		f.mu.Unlock()
	}
	return &memHandle{m: m, name: name, f: f}, nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	name = path.Clean(name)
	if err := m.check("remove", name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.files[name]; ok {
		delete(m.files, name)
		return nil
	}
	if m.dirs[name] {
		delete(m.dirs, name)
		return nil
	}
	return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
}

// RemoveAll implements FS.
func (m *Mem) RemoveAll(name string) error {
	name = path.Clean(name)
	if err := m.check("remove", name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for f := range m.files {
		if below(f, name) {
			delete(m.files, f)
		}
	}
	for d := range m.dirs {
		if below(d, name) {
			delete(m.dirs, d)
		}
	}
	return nil
}

// below reports whether name is dir or lies in it.
func below(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// Rename implements FS.
func (m *Mem) Rename(oldName, newName string) error {
	oldName, newName = path.Clean(oldName), path.Clean(newName)
	if err := m.check("rename", oldName); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.files[oldName]
	if !ok || !m.dirs[path.Dir(newName)] {
		return &fs.PathError{Op: "rename", Path: oldName, Err: fs.ErrNotExist}
	}
	delete(m.files, oldName)
	m.files[newName] = f
	return nil
}

// MkdirAll implements FS. Folders are durable at once.
func (m *Mem) MkdirAll(dir string) error {
	if err := m.check("mkdir", path.Clean(dir)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for d := path.Clean(dir); d != "/" && d != "."; d = path.Dir(d) {
		m.dirs[d] = true
	}
	return nil
}

// ReadDir implements FS.
func (m *Mem) ReadDir(dir string) ([]fs.DirEntry, error) {
	dir = path.Clean(dir)
	if err := m.check("readdir", dir); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dirs[dir] {
		return nil, &fs.PathError{Op: "readdir", Path: dir, Err: fs.ErrNotExist}
	}
	var out []fs.DirEntry
	for d := range m.dirs {
		if d != dir && path.Dir(d) == dir {
			out = append(out, fs.FileInfoToDirEntry(memInfo{name: path.Base(d), dir: true}))
		}
	}
	for name, f := range m.files {
		if path.Dir(name) == dir {
			out = append(out, fs.FileInfoToDirEntry(f.info(name)))
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name() < out[j].Name() })
	return out, nil
}

// Stat implements FS.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	name = path.Clean(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if f, ok := m.files[name]; ok {
		return f.info(name), nil
	}
	if m.dirs[name] {
		return memInfo{name: path.Base(name), dir: true}, nil
	}
	return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
}

// SyncDir implements FS. With the removal of a folder that of all in it becomes durable.
func (m *Mem) SyncDir(dir string) error {
	dir = path.Clean(dir)
	if err := m.check("syncdir", dir); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dirs[dir] {
		return &fs.PathError{Op: "sync", Path: dir, Err: fs.ErrNotExist}
	}
	for name := range m.named {
		if path.Dir(name) == dir && m.files[name] == nil || below(name, dir) && m.lostFolderLocked(name, dir) {
			delete(m.named, name)
		}
	}
	for name, f := range m.files {
		if path.Dir(name) == dir {
			m.named[name] = f
		}
	}
	return nil
}

// lostFolderLocked reports whether the folder of dir that leads to name is gone.
func (m *Mem) lostFolderLocked(name, dir string) bool {
	child := name
	for path.Dir(child) != dir {
		child = path.Dir(child)
	}
	return child != name && !m.dirs[child]
}

// SyncAll implements FS.
func (m *Mem) SyncAll(dir string) error {
	if err := m.check("syncall", path.Clean(dir)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.named)
	for name, f := range m.files {
		f.flush()
		m.named[name] = f
	}
	return nil
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	name = path.Clean(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks[name] {
		return nil, ErrLocked
	}
	m.locks[name] = true
	return memLock{m, name}, nil
}

// Locked implements FS.
func (m *Mem) Locked(name string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.locks[path.Clean(name)], nil
}

type memLock struct {
	m    *Mem
	name string
}

func (l memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.locks, l.name)
	return nil
}

// Usage implements FS.
func (m *Mem) Usage(string) (total, free uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return memTotal, uint64(m.free), nil
}

type memInfo struct {
	name string
	size int64
	time time.Time
	dir  bool
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) ModTime() time.Time { return i.time }
func (i memInfo) IsDir() bool        { return i.dir }
func (i memInfo) Sys() any           { return nil }
func (i memInfo) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o755
	}
	return 0o644
}

func (f *memFile) info(name string) memInfo {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return memInfo{name: path.Base(name), size: int64(len(f.data)), time: f.mtime}
}

type memHandle struct {
	m    *Mem
	name string
	f    *memFile
}

func (h *memHandle) ReadAt(b []byte, at int64) (int, error) {
	if err := h.m.check("read", h.name); err != nil {
		return 0, err
	}
	h.f.mu.RLock()
	defer h.f.mu.RUnlock()
	if at >= int64(len(h.f.data)) {
		return 0, io.EOF
	}
	n := copy(b, h.f.data[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (h *memHandle) WriteAt(b []byte, at int64) (int, error) {
	err := h.m.check("write", h.name)
	n := len(b)
	if err != nil {
		n = 0
		var s *Short
		if errors.As(err, &s) {
			n = min(max(s.Part(len(b)), 0), len(b))
		}
	}
	if n > 0 {
		h.f.mu.Lock()
		defer h.f.mu.Unlock()
		h.f.do(change{kind: wrote, at: at, data: append([]byte(nil), b[:n]...)})
	}
	return n, err
}

func (h *memHandle) Close() error { return nil }

func (h *memHandle) Size() (int64, error) {
	h.f.mu.RLock()
	defer h.f.mu.RUnlock()
	return int64(len(h.f.data)), nil
}

func (h *memHandle) Truncate(size int64) error {
	if err := h.m.check("truncate", h.name); err != nil {
		return err
	}
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	h.f.do(change{kind: truncated, at: size})
	return nil
}

func (h *memHandle) Zero(off, n int64) error {
	if err := h.m.check("zero", h.name); err != nil {
		return err
	}
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	h.f.do(change{kind: zeroed, at: off, n: n})
	return nil
}

// sync flushes. One that fails leaves the file as a kernel does: what it should have flushed is seen still, but counts
// as flushed from then on, and a later flush that succeeds says nothing of it. Only writing it again helps.
func (h *memHandle) sync(op string) error {
	if err := h.m.check(op, h.name); err != nil {
		h.f.mu.Lock()
		h.f.ops = nil
		h.f.mu.Unlock()
		return err
	}
	h.f.flush()
	return nil
}

func (h *memHandle) Sync() error     { return h.sync("sync") }
func (h *memHandle) Datasync() error { return h.sync("datasync") }

// Map returns the contents themselves. What is written through a mapping is durable after its Sync only: a crash
// keeps all of it or nothing.
func (h *memHandle) Map(length int64, _ bool) (Mapping, error) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	if int64(len(h.f.data)) < length {
		return nil, &fs.PathError{Op: "map", Path: h.name, Err: fmt.Errorf("%d bytes of a file of %d", length, len(h.f.data))}
	}
	return &memMapping{h, h.f.data[:length:length]}, nil
}

type memMapping struct {
	h *memHandle
	b []byte
}

func (m *memMapping) Bytes() []byte { return m.b }
func (m *memMapping) Close() error  { return nil }
func (m *memMapping) Load(int64, int64) error {
	return m.h.m.check("load", m.h.name)
}
func (m *memMapping) Sync() error {
	if err := m.h.m.check("sync", m.h.name); err != nil {
		return err
	}
	f := m.h.f
	f.mu.Lock()
	defer f.mu.Unlock()
	f.durable, f.ops = append(f.durable[:0], f.data...), nil
	return nil
}
