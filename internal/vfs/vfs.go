// Package vfs is the file system as the store and the metadata files see it: the operating system's, or one in
// memory that forgets what was not flushed and fails where a test wants it to.
package vfs

import (
	"io"
	"io/fs"
)

// FS is a file system. Names are slash paths. It is safe for concurrent use.
type FS interface {
	// OpenFile opens a file with the flags of package os. Its entry in the folder is durable after SyncDir.
	OpenFile(name string, flag int) (File, error)
	Remove(name string) error
	RemoveAll(name string) error
	// Rename replaces newName atomically; durable after SyncDir.
	Rename(oldName, newName string) error
	MkdirAll(dir string) error
	// ReadDir returns the entries sorted by name.
	ReadDir(dir string) ([]fs.DirEntry, error)
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the entries of a folder durable.
	SyncDir(dir string) error
	// SyncAll makes everything durable that the file system which holds dir knows of: contents, sizes, names. One
	// call for thousands of files is cheaper than thousands of calls.
	SyncAll(dir string) error
	// Lock takes an exclusive lock on the first byte of a file, creating it; it fails at once when another process
	// (a Java broker among them) or another part of this one holds it.
	Lock(name string) (io.Closer, error)
	// Locked reports whether somebody holds that lock. It changes nothing; a file that isn't there is not locked.
	Locked(name string) (bool, error)
	// Usage returns the size and the free space of the file system that holds dir, in bytes.
	Usage(dir string) (total, free uint64, err error)
}

// File is an open file.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	// Truncate sets the size; what it adds reads as zeros.
	Truncate(size int64) error
	// Zero makes n bytes from off on read as zeros. It changes no size, needs no room where the file system can free
	// it, and is durable after Sync.
	Zero(off, n int64) error
	// Sync makes contents and metadata durable.
	Sync() error
	// Datasync makes contents durable, and of the metadata what is needed to read them.
	Datasync() error
	// Map maps the first length bytes, shared. Writes through WriteAt show in it.
	Map(length int64, writable bool) (Mapping, error)
}

// Mapping is a mapped part of a file.
type Mapping interface {
	Bytes() []byte
	// Load brings n bytes from off on into memory, as a read would: it waits for the disk in a system call, where a
	// page that is touched stops the processor, and where the disk fails it returns an error, where touching the page
	// ends the process. A system that can't do that does nothing.
	Load(off, n int64) error
	Sync() error
	Close() error
}
