package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/protocol"
)

// localOffsets are the offsets of a broadcasting consumer, in a file laid out as the Java client's:
//
//	<dir>/<instance>/<group>/offsets.json     {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:123}}
//	<dir>/<instance>/<group>/offsets.json.bak  the one before
//	<dir>/<instance>/<group>/lock              held while a consumer runs
type localOffsets struct {
	file string
	lock *os.File

	mu    sync.Mutex
	table map[MessageQueue]int64
	dirty bool
	stop  chan struct{}
	done  chan struct{}
}

// localFlush is how often the file is written when offsets moved (Java's persistConsumerOffsetInterval is 5 s).
const localFlush = time.Second

func openLocalOffsets(dir, instance, group string) (*localOffsets, error) {
	if dir == "" {
		dir = defaultOffsetsDir()
	}
	if instance == "" {
		instance = "DEFAULT"
	}
	dir = filepath.Join(dir, instance, group)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("folder of a broadcasting consumer's offsets: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("folder of a broadcasting consumer's offsets: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, invalid("%s: another broadcasting consumer of group %s uses this folder: give each an instance of its own (WithOffsetsDir)", dir, group)
	}
	l := &localOffsets{file: filepath.Join(dir, "offsets.json"), lock: lock, table: map[MessageQueue]int64{}, stop: make(chan struct{}), done: make(chan struct{})}
	if err := l.load(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	go l.flusher()
	return l, nil
}

// load reads the file, or the one before when it is damaged.
func (l *localOffsets) load() error {
	var last error
	for _, name := range []string{l.file, l.file + ".bak"} {
		b, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		table, err := decodeOffsets(b)
		if err == nil {
			l.table = table
			return nil
		}
		last = fmt.Errorf("%s is damaged: %w; remove it to begin as a new group does", name, err)
	}
	return last
}

func decodeOffsets(b []byte) (map[MessageQueue]int64, error) {
	var f struct {
		OffsetTable map[string]int64 `json:"offsetTable"`
	}
	if err := fastjson.Unmarshal(b, &f); err != nil {
		return nil, err
	}
	out := make(map[MessageQueue]int64, len(f.OffsetTable))
	for k, v := range f.OffsetTable {
		var q protocol.MessageQueue
		if err := json.Unmarshal([]byte(k), &q); err != nil {
			return nil, fmt.Errorf("queue %s: %w", k, err)
		}
		out[MessageQueue{q.Topic, q.BrokerName, int(q.QueueID)}] = v
	}
	return out, nil
}

func (l *localOffsets) get(q MessageQueue) (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.table[q]
	return v, ok
}

func (l *localOffsets) set(q MessageQueue, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.table[q], l.dirty = offset, true
}

func (l *localOffsets) flusher() {
	defer close(l.done)
	t := time.NewTicker(localFlush)
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-t.C:
			_ = l.flush() // tried again with the next tick; Close returns the error
		}
	}
}

// flush replaces the file when offsets moved.
func (l *localOffsets) flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.dirty {
		return nil
	}
	table := protocol.ResetOffsetBody{OffsetTable: make(map[protocol.MessageQueue]int64, len(l.table))}
	for q, v := range l.table {
		table.OffsetTable[wireQueue(q)] = v
	}
	b, err := protocol.EncodeBody(table)
	if err != nil {
		return err
	}
	if err := writeSynced(l.file+".tmp", b); err != nil {
		return err
	}
	if err := os.Rename(l.file, l.file+".bak"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(l.file+".tmp", l.file); err != nil {
		return err
	}
	l.dirty = false
	return nil
}

func writeSynced(name string, b []byte) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// close ends the flusher and frees the folder; flush comes before.
func (l *localOffsets) close() {
	close(l.stop)
	<-l.done
	_ = l.lock.Close()
}
