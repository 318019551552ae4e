package testkit

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestUntarKeepsHoles: a file that is mostly zeros keeps its size and contents, and takes little space; a name that
// points out of the folder stays in it.
func TestUntarKeepsHoles(t *testing.T) {
	large := make([]byte, 8<<20+5)
	copy(large[3<<20:], "in the middle")
	large[len(large)-1] = 'z'
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	files := map[string][]byte{"store/a/large": large, "store/empty": nil, "../../outside": []byte("x"), "store/small": []byte("small")}
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "a.tar.gz")
	if err := os.WriteFile(archive, buf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := Untar(t, archive, t.TempDir())
	for name, data := range files {
		path := filepath.Join(dir, filepath.Clean("/"+name))
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, "store/a/large"), &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("the large file takes %d bytes, %v", st.Blocks*512, err)
	}
}

func TestFrames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.jsonl")
	line := `{"dir":"c2b","conn":1,"type":"JSON","header":{"code":10,"flag":0,"opaque":3,"extFields":{"a":"b"}},"frame":"0000000400000000"}` + "\n"
	if err := os.WriteFile(file, []byte(line+line), 0o600); err != nil {
		t.Fatal(err)
	}
	frames := Frames(t, file)
	if len(frames) != 2 || frames[0].Header.Code != 10 || frames[1].Header.ExtFields["a"] != "b" || !bytes.Equal(frames[0].Raw, []byte{0, 0, 0, 4, 0, 0, 0, 0}) {
		t.Errorf("%+v", frames)
	}
}

func TestEventuallyLooksAgain(t *testing.T) {
	looks := 0
	Eventually(t, time.Minute, "the third look", func() bool {
		looks++
		return looks == 3
	})
	if looks != 3 {
		t.Errorf("%d looks", looks)
	}
}
