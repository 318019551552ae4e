package vfs

import (
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

// Mem is a file system in memory. Crash returns it as it would be after a power cut: only what was flushed, and
// of the rest as much as keep decides.
type Mem struct {
	mu    sync.Mutex
	dirs  map[string]bool
	files map[string]*memFile // as seen now
	named map[string]*memFile // names that are durable
	locks map[string]bool
	fail  func(op, name string) error
}

// NewMem returns an empty file system.
func NewMem() *Mem {
	return &Mem{dirs: map[string]bool{"/": true, ".": true}, files: map[string]*memFile{}, named: map[string]*memFile{}, locks: map[string]bool{}}
}

// FailWith installs a hook that is asked before every call that changes or reads something (open, read, write,
// truncate, sync, datasync, syncdir, rename, remove); its error is returned instead. nil removes it.
func (m *Mem) FailWith(f func(op, name string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = f
}

func (m *Mem) check(op, name string) error {
	m.mu.Lock()
	f := m.fail
	m.mu.Unlock()
	if f != nil {
		return f(op, name)
	}
	return nil
}

type memFile struct {
	mu      sync.RWMutex
	data    []byte
	durable []byte // contents at the last sync
	writes  []memWrite
	mtime   time.Time
}

// memWrite is a write that isn't flushed yet.
type memWrite struct {
	at   int64
	data []byte
}

// Crash returns the file system after a power cut. Of each unflushed write keep says how many bytes reached the
// disk; nil keeps none. Files whose folder was not flushed are gone.
func (m *Mem) Crash(keep func(name string, size int) int) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := NewMem()
	for d := range m.dirs {
		c.dirs[d] = true
	}
	for name, f := range m.named {
		f.mu.RLock()
		data := append([]byte(nil), f.durable...)
		for _, w := range f.writes {
			n := 0
			if keep != nil {
				n = min(max(keep(name, len(w.data)), 0), len(w.data))
			}
			if end := int(w.at) + n; n > 0 && end <= len(data) {
				copy(data[w.at:], w.data[:n])
			}
		}
		g := &memFile{data: data, durable: append([]byte(nil), data...), mtime: f.mtime}
		f.mu.RUnlock()
		c.files[name], c.named[name] = g, g
	}
	return c
}

// OpenFile implements FS.
func (m *Mem) OpenFile(name string, flag int) (File, error) {
	name = path.Clean(name)
	if err := m.check("open", name); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.files[name]
	if !ok {
		if flag&os.O_CREATE == 0 || !m.dirs[path.Dir(name)] {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		f = &memFile{mtime: time.Now()}
		m.files[name] = f
	} else if flag&os.O_TRUNC != 0 {
		f.mu.Lock()
		f.data, f.writes = nil, nil
		f.mu.Unlock()
	}
	return &memHandle{m: m, name: name, f: f}, nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	name = path.Clean(name)
	if err := m.check("remove", name); err != nil {
		return &fs.PathError{Op: "remove", Path: name, Err: err}
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
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for f := range m.files {
		if f == name || strings.HasPrefix(f, name+"/") {
			delete(m.files, f)
			delete(m.named, f)
		}
	}
	for d := range m.dirs {
		if d == name || strings.HasPrefix(d, name+"/") {
			delete(m.dirs, d)
		}
	}
	return nil
}

// Rename implements FS.
func (m *Mem) Rename(oldName, newName string) error {
	oldName, newName = path.Clean(oldName), path.Clean(newName)
	if err := m.check("rename", oldName); err != nil {
		return &fs.PathError{Op: "rename", Path: oldName, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.files[oldName]
	if !ok {
		return &fs.PathError{Op: "rename", Path: oldName, Err: fs.ErrNotExist}
	}
	delete(m.files, oldName)
	m.files[newName] = f
	return nil
}

// MkdirAll implements FS. Folders are durable at once.
func (m *Mem) MkdirAll(dir string) error {
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

// SyncDir implements FS.
func (m *Mem) SyncDir(dir string) error {
	dir = path.Clean(dir)
	if err := m.check("syncdir", dir); err != nil {
		return &fs.PathError{Op: "sync", Path: dir, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.named {
		if path.Dir(name) == dir && m.files[name] == nil {
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

// Usage implements FS: a disk that is always half full.
func (m *Mem) Usage(string) (total, free uint64, err error) { return 1 << 40, 1 << 39, nil }

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

func (h *memHandle) wrap(op string, err error) error {
	return &fs.PathError{Op: op, Path: h.name, Err: err}
}

func (h *memHandle) ReadAt(b []byte, at int64) (int, error) {
	if err := h.m.check("read", h.name); err != nil {
		return 0, h.wrap("read", err)
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
	if err := h.m.check("write", h.name); err != nil {
		return 0, h.wrap("write", err)
	}
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	if end := at + int64(len(b)); end > int64(len(h.f.data)) {
		h.f.data = append(h.f.data, make([]byte, end-int64(len(h.f.data)))...)
	}
	copy(h.f.data[at:], b)
	h.f.writes = append(h.f.writes, memWrite{at, append([]byte(nil), b...)})
	h.f.mtime = time.Now()
	return len(b), nil
}

func (h *memHandle) Close() error { return nil }

func (h *memHandle) Size() (int64, error) {
	h.f.mu.RLock()
	defer h.f.mu.RUnlock()
	return int64(len(h.f.data)), nil
}

// Truncate is durable at once: a file's size is what the store creates it with.
func (h *memHandle) Truncate(size int64) error {
	if err := h.m.check("truncate", h.name); err != nil {
		return h.wrap("truncate", err)
	}
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	resize := func(b []byte) []byte {
		if int64(len(b)) >= size {
			return b[:size:size]
		}
		c := make([]byte, size)
		copy(c, b)
		return c
	}
	h.f.data, h.f.durable = resize(h.f.data), resize(h.f.durable)
	kept := h.f.writes[:0]
	for _, w := range h.f.writes {
		if w.at+int64(len(w.data)) <= size {
			kept = append(kept, w)
		}
	}
	h.f.writes = kept
	return nil
}

func (h *memHandle) sync(op string) error {
	if err := h.m.check(op, h.name); err != nil {
		return h.wrap(op, err)
	}
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	if len(h.f.durable) != len(h.f.data) {
		h.f.durable = append([]byte(nil), h.f.data...)
	}
	for _, w := range h.f.writes {
		copy(h.f.durable[min(w.at, int64(len(h.f.durable))):], w.data)
	}
	h.f.writes = nil
	return nil
}

func (h *memHandle) Sync() error     { return h.sync("sync") }
func (h *memHandle) Datasync() error { return h.sync("datasync") }

// Map returns the contents themselves; Sync makes them durable.
func (h *memHandle) Map(length int64, writable bool) (Mapping, error) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	if int64(len(h.f.data)) < length {
		return nil, h.wrap("map", fmt.Errorf("%d bytes of a file of %d", length, len(h.f.data)))
	}
	return &memMapping{h.f, h.f.data[:length:length]}, nil
}

type memMapping struct {
	f *memFile
	b []byte
}

func (m *memMapping) Bytes() []byte { return m.b }
func (m *memMapping) Close() error  { return nil }
func (m *memMapping) Sync() error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.durable = append(m.f.durable[:0], m.f.data...)
	return nil
}
