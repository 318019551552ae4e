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

// Save replaces the file: new contents, sealed, are written beside it and flushed, the present file becomes NAME.bak, the
// new one takes its name, and the folder is flushed. After a crash in the middle Load finds the one or the other.
// Saves of one file must not overlap.
//
// Java renames the present file first and writes the new one in its place; a crash there leaves half a file beside
// NAME.bak. Either side reads what the other left.
func Save(fsys vfs.FS, name string, data []byte) error {
	if err := save(fsys, name, Seal(data)); err != nil {
		return fmt.Errorf("save %s: %w", name, err)
	}
	return nil
}

func save(fsys vfs.FS, name string, data []byte) error {
	tmp := name + ".tmp"
	f, err := fsys.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(data, 0); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(name, name+".bak"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	return fsys.SyncDir(path.Dir(name))
}

// Load reads the newest sound generation: the file, else NAME.bak. decode must return an error for contents that
// are damaged, and leave nothing behind then; it isn't shown what fails its checksum. found is false when there is no sound
// one; notes says, in one line a file, what was passed over and what was taken instead. err is an error of the file system
// itself.
//
// A damaged generation is moved out of the way, to NAME.damaged: were it left, the next Save would put it in the place
// of the sound one. (Java deletes it.)
func Load(fsys vfs.FS, name string, decode func([]byte) error) (found bool, notes []string, err error) {
	var damaged []string
	missing := false
	for _, n := range []string{name, name + ".bak"} {
		data, err := read(fsys, n)
		if errors.Is(err, fs.ErrNotExist) {
			missing = missing || n == name
			continue
		}
		if err != nil {
			return false, notes, fmt.Errorf("load %s: %w", n, err)
		}
		if err = errEmpty; len(data) > 0 {
			if data, err = Unseal(data); err == nil {
				err = decode(data)
			}
		}
		if err != nil {
			damaged = append(damaged, n)
			notes = append(notes, fmt.Sprintf("%s is damaged (%v) and was moved to %s.damaged", n, err, n))
			continue
		}
		if found = true; n != name && missing {
			notes = append(notes, fmt.Sprintf("%s is missing", name))
		}
		if n != name {
			notes[len(notes)-1] += fmt.Sprintf("; the older %s was taken instead", path.Base(n))
		}
		break
	}
	if len(damaged) == 0 {
		return found, notes, nil
	}
	if !found {
		notes[len(notes)-1] += "; there is no sound older one"
	}
	for _, n := range damaged {
		if err := fsys.Rename(n, n+".damaged"); err != nil {
			return found, notes, fmt.Errorf("move %s, which is damaged, out of the way: %w", n, err)
		}
	}
	if err := fsys.SyncDir(path.Dir(name)); err != nil {
		return found, notes, fmt.Errorf("move damaged files out of the way: %w", err)
	}
	return found, notes, nil
}

// errEmpty is what is wrong with a file of no bytes: a crash of a Java broker leaves one.
var errEmpty = errors.New("it is empty")

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
