// Package testkit holds what tests of several packages need: recorded bytes, waiting with deadlines.
package testkit

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Frame is one recorded remoting frame.
type Frame struct {
	Dir    string      `json:"dir"` // sender 2 receiver: c client, b broker, n name server, p proxy, s slave
	Conn   int         `json:"conn"`
	Type   string      `json:"type"` // JSON or ROCKETMQ
	Header FrameHeader `json:"header"`
	Hex    string      `json:"frame"`
	Raw    []byte      `json:"-"` // the whole frame, from the 4-byte length
}

// FrameHeader is the decoded header of a recorded frame.
type FrameHeader struct {
	Code      int32             `json:"code"`
	Flag      int32             `json:"flag"`
	Language  string            `json:"language"`
	Opaque    int32             `json:"opaque"`
	Version   int32             `json:"version"`
	Remark    *string           `json:"remark"`
	ExtFields map[string]string `json:"extFields"`
}

// Frames reads a recording (one JSON object a line).
func Frames(t testing.TB, path string) []Frame {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []Frame
	s := bufio.NewScanner(f)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var fr Frame
		if err := json.Unmarshal(s.Bytes(), &fr); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if fr.Raw, err = hex.DecodeString(fr.Hex); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, fr)
	}
	if err := s.Err(); err != nil || len(out) == 0 {
		t.Fatalf("%s: %d frames, %v", path, len(out), err)
	}
	return out
}

// Untar unpacks a .tar.gz below dir and returns dir. Long runs of zeros take no space.
func Untar(t testing.TB, archive, dir string) string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := writeSparse(path, r); err != nil {
			t.Fatal(err)
		}
	}
}

// writeSparse writes a file, leaving out blocks of zeros: recordings hold files of a gigabyte with little in them.
func writeSparse(path string, r io.Reader) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	block, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	size := int64(0)
	for {
		n, err := io.ReadFull(r, block)
		if !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := f.WriteAt(block[:n], size); err != nil {
				return errors.Join(err, f.Close())
			}
		}
		size += int64(n)
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return errors.Join(f.Truncate(size), f.Close())
		default:
			return errors.Join(err, f.Close())
		}
	}
}

// Eventually waits until cond holds and fails the test when it doesn't within the given time.
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		<-tick.C
	}
}
