package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestFewKills is the short version of `make crash`: a real server, killed a few times under load.
func TestFewKills(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "apogee")
	build := exec.Command("go", "build", "-o", bin, "./cmd/apogee")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r, err := run(options{bin: bin, dir: filepath.Join(dir, "data"), rounds: 4, topics: 20, senders: 6, life: time.Second, messages: 20_000, seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	r.print(testWriter{t})
	if r.violations() > 0 {
		t.Error("see above")
	}
	if r.acked == 0 || r.commits == 0 {
		t.Errorf("%d messages were acknowledged, %d offsets committed: nothing was tested", r.acked, r.commits)
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", b)
	return len(b), nil
}
