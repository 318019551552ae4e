package smallfs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/apogeemq/apogee/bench/drive"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	senders = 4
	topic   = "small"
	ballast = 24 << 20
)

// disk is a tmpfs of 64 MB in a mount namespace of its own, which a process holds.
type disk struct {
	holder *exec.Cmd
	inside string // its folder, as processes in the namespace see it
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a file system can only be mounted as root: run this test as root")
	}
	d := &disk{inside: t.TempDir()}
	d.holder = exec.Command("unshare", "-m", "sh", "-c", `mount --make-rprivate / && mount -t tmpfs -o size=64m none "$0" && echo mounted && exec sleep 600`, d.inside)
	out, err := d.holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.holder.Start(); err != nil {
		t.Skipf("no mount namespace can be made here: %v", err)
	}
	t.Cleanup(func() {
		_ = d.holder.Process.Kill()
		_ = d.holder.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "mounted\n" {
		t.Skipf("no file system can be mounted in a namespace of its own here: %q, %v", line, err)
	}
	return d
}

// path is where a file of the disk is seen from outside.
func (d *disk) path(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", d.holder.Process.Pid), d.inside, name)
}

// serve starts a server in the namespace, with the disk as its data folder.
func (d *disk) serve(t *testing.T, bin string) *drive.Process {
	t.Helper()
	p, err := drive.Ours("nsenter", "-t", fmt.Sprint(d.holder.Process.Pid), "-m", bin, "server", "--data", d.inside, "--namesrv-port", "0", "--broker-port", "0", "--http-port", "0",
		"--log-level", "warn", "--set", "mappedFileSizeCommitLog=4194304", "--set", "mappedFileSizeConsumeQueue=20000", "--set", "maxHashSlotNum=10000", "--set", "maxIndexNum=40000",
		"--set", "cleanFileForciblyEnable=false")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// world is what was acknowledged, by sender, who has a queue each.
type world struct {
	t     *testing.T
	mu    sync.Mutex
	acked [senders][]string // by offset
	n     [senders]int
	// refusals by text without figures
	refusals map[string]int
}

// fill sends until each sender was refused some times in a row, or it has sent limit messages.
func (w *world) fill(p *drive.Process, limit int) {
	w.t.Helper()
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() { w.send(p, s, limit) })
	}
	wg.Wait()
}

func (w *world) send(p *drive.Process, s, limit int) {
	c, err := drive.Dial(p.Addr)
	if err != nil {
		w.t.Error(err)
		return
	}
	defer drive.CloseConn(c)
	for inARow := 0; inARow < 50 && limit > 0; limit-- {
		w.mu.Lock()
		w.n[s]++
		body := fmt.Sprintf("sender %d message %d %s", s, w.n[s], strings.Repeat("x", 1000))
		w.mu.Unlock()
		m := message.Message{Body: []byte(body), Properties: message.AppendProperty(nil, message.PropertyKeys, fmt.Sprint("k", w.n[s]))}
		at, err := drive.Send(c, topic, int32(s), m)
		w.mu.Lock()
		switch {
		case err == nil:
			inARow = 0
			if at != int64(len(w.acked[s])) {
				w.t.Errorf("sender %d: offset %d, want %d: a refused message took a place", s, at, len(w.acked[s]))
			}
			w.acked[s] = append(w.acked[s], body)
		case drive.IsCode(err, protocol.ServiceNotAvailable):
			inARow++
			var r *drive.Refused
			errors.As(err, &r)
			text := strings.Map(func(c rune) rune {
				if c >= '0' && c <= '9' {
					return -1
				}
				return c
			}, r.Remark)
			w.refusals[text]++
		default:
			w.t.Errorf("sender %d: %v", s, err)
			limit = 0
		}
		w.mu.Unlock()
	}
}

// verify reads everything.
func (w *world) verify(p *drive.Process) {
	w.t.Helper()
	c, err := drive.Dial(p.Addr)
	if err != nil {
		w.t.Fatal(err)
	}
	defer drive.CloseConn(c)
	for s, want := range w.acked {
		var got []string
		for at := int64(0); ; {
			next, moved, err := drive.Pull(c, "g", topic, int32(s), at, func(m *message.Message) error {
				got = append(got, string(m.Body))
				return nil
			})
			if err != nil {
				w.t.Fatal(err)
			}
			if !moved {
				break
			}
			at = next
		}
		if !slices.Equal(got, want) {
			w.t.Fatalf("queue %d holds %d messages, %d were acknowledged, or others", s, len(got), len(want))
		}
	}
}

func (w *world) count() int {
	n := 0
	for _, a := range w.acked {
		n += len(a)
	}
	return n
}

// TestFullDisk fills a file system of 64 MB under load and frees it again: errors say what is wrong, nothing acknowledged is lost,
// nothing refused is there, reads go on, and so do sends as soon as there is room. Filled for good, the server is killed, and
// starts and reads all the same.
func TestFullDisk(t *testing.T) {
	d := newDisk(t)
	bin := filepath.Join(t.TempDir(), "apogee")
	build := exec.Command("go", "build", "-o", bin, "./cmd/apogee")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(d.path("ballast"), make([]byte, ballast), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, refusals: map[string]int{}}
	p := d.serve(t, bin)
	defer func() { p.Kill() }()
	const plenty = 60_000
	w.fill(p, plenty)
	first := w.count()
	w.verify(p)
	if len(w.refusals) == 0 || first < 10_000 {
		t.Fatalf("%d messages were taken, refusals: %v", first, w.refusals)
	}
	for text := range w.refusals {
		if !strings.Contains(text, "disk is full") {
			t.Errorf("a refusal says %q", text)
		}
	}
	w.fill(p, 100) // it goes on refusing
	if w.count() > first+senders*100/2 {
		t.Errorf("%d messages were taken by a full disk", w.count()-first)
	}

	if err := os.Remove(d.path("ballast")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, "sends go on when there is room", func() bool {
		before := w.count()
		w.fill(p, 1)
		return w.count() == before+senders
	})
	w.fill(p, plenty) // and it fills up again
	w.verify(p)
	t.Logf("%d messages until the disk was full, %d more when %d MB came free; refusals: %v", first, w.count()-first, ballast>>20, w.refusals)
	if more := w.count() - first; more < 5_000 {
		t.Errorf("only %d messages were taken when there was room again", more)
	}

	p.Kill()
	p = d.serve(t, bin)
	w.verify(p)
	w.fill(p, 100)
	w.verify(p)
	if err := p.Stop(); err != nil {
		t.Errorf("a stop on a full disk: %v", err)
	}
	p = d.serve(t, bin)
	w.verify(p)
	if out, err := exec.Command("nsenter", "-t", fmt.Sprint(d.holder.Process.Pid), "-m", bin, "store", "check", d.inside).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
