// Package metafile replaces small metadata files whole, the way a Java broker does: a reader finds the new
// contents or the old ones, and one older generation beside them (NAME.bak).
package metafile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/apogeemq/apogee/internal/vfs"
)

// Save replaces the file: new contents are written beside it and flushed, the present file becomes NAME.bak, the
// new one takes its name, and the folder is flushed.
func Save(fsys vfs.FS, name string, data []byte) error {
	tmp := name + ".tmp"
	f, err := fsys.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return fmt.Errorf("save %s: %w", name, err)
	}
	_, err = f.WriteAt(data, 0)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("save %s: %w", name, err)
	}
	if err := fsys.Rename(name, name+".bak"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("save %s: %w", name, err)
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return fmt.Errorf("save %s: %w", name, err)
	}
	if err := fsys.SyncDir(path.Dir(name)); err != nil {
		return fmt.Errorf("save %s: %w", name, err)
	}
	return nil
}

// Load reads the newest sound generation: the file, else NAME.bak. decode must return an error for contents that
// are damaged, and leave nothing behind then. found is false when there is no sound one; notes says in one line
// each what was passed over. err is an error of the file system itself.
func Load(fsys vfs.FS, name string, decode func([]byte) error) (found bool, notes []string, err error) {
	for _, n := range []string{name, name + ".bak"} {
		data, err := read(fsys, n)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, notes, fmt.Errorf("load %s: %w", n, err)
		}
		if len(data) == 0 {
			notes = append(notes, fmt.Sprintf("%s is empty, passed over", n))
			continue
		}
		if err := decode(data); err != nil {
			notes = append(notes, fmt.Sprintf("%s is damaged, passed over: %v", n, err))
			continue
		}
		if len(notes) > 0 {
			notes = append(notes, fmt.Sprintf("%s was taken instead", n))
		}
		return true, notes, nil
	}
	return false, notes, nil
}

// maxSize bounds a metadata file: 1 GiB.
const maxSize = 1 << 30

func read(fsys vfs.FS, name string) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxSize {
		return nil, fmt.Errorf("%d bytes are more than the %d a metadata file may have", size, maxSize)
	}
	b := make([]byte, size)
	if size > 0 {
		if _, err := f.ReadAt(b, 0); err != nil {
			return nil, err
		}
	}
	return b, nil
}
