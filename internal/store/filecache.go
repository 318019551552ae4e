package store

import (
	"os"
	"sort"
	"sync"

	"github.com/apogeemq/apogee/internal/vfs"
)

// fileCache keeps a bounded number of consume-queue files open.
type fileCache struct {
	fs    vfs.FS
	limit int

	mu     sync.Mutex
	open   map[queueFileKey]*cachedFile
	clock  uint64
	closed bool
}

// queueFileKey is one file of a queue, by its start offset.
type queueFileKey struct {
	q     *queue
	start int64
}

type cachedFile struct {
	c    *fileCache
	f    vfs.File
	refs int
	used uint64
	gone bool // not in the cache any more: closed by its last user
}

func newFileCache(fs vfs.FS, limit int) *fileCache {
	return &fileCache{fs: fs, limit: limit, open: make(map[queueFileKey]*cachedFile)}
}

// get returns an open file; the caller calls done.
func (c *fileCache) get(s *Store, q *queue, start int64) (*cachedFile, error) {
	key := queueFileKey{q, start}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	if f, ok := c.open[key]; ok {
		f.refs++
		f.used = c.clock
		return f, nil
	}
	if c.closed {
		return nil, ErrClosed
	}
	if len(c.open) >= c.limit {
		c.evict()
	}
	file, err := c.fs.OpenFile(s.queueFile(q, start), os.O_RDWR)
	if err != nil {
		return nil, err
	}
	f := &cachedFile{c: c, f: file, refs: 1, used: c.clock}
	c.open[key] = f
	return f, nil
}

// evict closes the older half of what nobody uses.
func (c *fileCache) evict() {
	type idleFile struct {
		key queueFileKey
		f   *cachedFile
	}
	var idle []idleFile
	for key, f := range c.open {
		if f.refs == 0 {
			idle = append(idle, idleFile{key, f})
		}
	}
	sort.Slice(idle, func(i, j int) bool { return idle[i].f.used < idle[j].f.used })
	for _, i := range idle[:(len(idle)+1)/2] {
		delete(c.open, i.key)
		_ = i.f.f.Close()
	}
}

func (f *cachedFile) done() {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.refs--; f.refs == 0 && f.gone {
		_ = f.f.Close()
	}
}

// forget drops a file from the cache; who uses it still may.
func (c *fileCache) forget(key queueFileKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetLocked(key)
}

func (c *fileCache) forgetLocked(key queueFileKey) {
	if f, ok := c.open[key]; ok {
		delete(c.open, key)
		if f.gone = true; f.refs == 0 {
			_ = f.f.Close()
		}
	}
}

// closeAll drops all files and gives no more.
func (c *fileCache) closeAll() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.forgetAll()
}

func (c *fileCache) forgetAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.open {
		c.forgetLocked(key)
	}
}
