package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// OS returns the operating system's file system.
func OS() FS { return osFS{} }

// ErrLocked: somebody else holds the lock.
var ErrLocked = errors.New("locked by another process")

type osFS struct{}

func (osFS) OpenFile(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, 0o644)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}
func (osFS) Remove(name string) error                  { return os.Remove(name) }
func (osFS) RemoveAll(name string) error               { return os.RemoveAll(name) }
func (osFS) Rename(oldName, newName string) error      { return os.Rename(oldName, newName) }
func (osFS) MkdirAll(dir string) error                 { return os.MkdirAll(dir, 0o755) }
func (osFS) ReadDir(dir string) ([]fs.DirEntry, error) { return os.ReadDir(dir) }
func (osFS) Stat(name string) (fs.FileInfo, error)     { return os.Stat(name) }

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}

func (osFS) SyncAll(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err = unix.Syncfs(int(d.Fd())); err != nil {
		err = fmt.Errorf("flush the file system of %s: %w", dir, err)
	}
	return errors.Join(err, d.Close())
}

// Lock uses an open-file-description lock: it conflicts with the POSIX lock that Java's FileLock is, and, unlike
// that one, with a second lock of the same process.
func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: 0, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return f, nil // closing it frees the lock
}

func (osFS) Locked(name string) (bool, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: 0, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, errors.Join(fmt.Errorf("ask for the lock of %s: %w", name, err), f.Close())
	}
	return l.Type != unix.F_UNLCK, f.Close()
}

func (osFS) Usage(dir string) (total, free uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, fmt.Errorf("file system of %s: %w", dir, err)
	}
	return s.Blocks * uint64(s.Bsize), s.Bavail * uint64(s.Bsize), nil
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	i, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return i.Size(), nil
}

func (f osFile) Zero(off, n int64) error {
	if n <= 0 {
		return nil
	}
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	if err == nil {
		return nil
	}
	return overwrite(f, off, n)
}

// overwrite is Zero for file systems that can't free a range: it writes zeros where there is something else.
func overwrite(f File, off, n int64) error {
	buf, zeros := make([]byte, 256<<10), make([]byte, 256<<10)
	for end := off + n; off < end; {
		k, err := f.ReadAt(buf[:min(int64(len(buf)), end-off)], off)
		if k > 0 && !bytes.Equal(buf[:k], zeros[:k]) {
			if _, err := f.WriteAt(zeros[:k], off); err != nil {
				return err
			}
		}
		if off += int64(k); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (f osFile) Datasync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (f osFile) Map(length int64, writable bool) (Mapping, error) {
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(length), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	return osMapping(b), nil
}

type osMapping []byte

func (m osMapping) Bytes() []byte { return m }
func (m osMapping) Load(off, n int64) error {
	page := int64(os.Getpagesize())
	first := off - off%page
	err := unix.Madvise(m[first:min(off+n, int64(len(m)))], unix.MADV_POPULATE_READ)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.14
		return nil
	}
	return err
}
func (m osMapping) Sync() error  { return unix.Msync(m, unix.MS_SYNC) }
func (m osMapping) Close() error { return unix.Munmap(m) }
