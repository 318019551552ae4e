package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// server is a running system.
type server struct {
	system      string
	names, addr string // name server, broker (or NATS server)
	cmd         *exec.Cmd
	aside       []*exec.Cmd // processes that aren't measured: Java's name server
	log         *os.File
	began       time.Time // just before its process was started
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// Ports of the servers: fixed, so that a start can be timed by who answers there, and below those that the kernel gives
// to outgoing connections.
const (
	namesPort  = 29876
	brokerPort = 30911
	natsPort   = 24222
)

// startWithin bounds a start, a JVM's with a big store included.
const startWithin = 3 * time.Minute

// begin starts a system's processes and doesn't wait for them to serve. settings are RocketMQ's, or sync for NATS.
func (b *bench) begin(system, dir string, settings ...string) (*server, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(b.c.dir, system+".log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, err
	}
	s := &server{system: system, names: fmt.Sprint("127.0.0.1:", namesPort), addr: fmt.Sprint("127.0.0.1:", brokerPort), log: log}
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // none outlives this program
		return cmd
	}
	switch system {
	case "apogee":
		args := []string{"server", "--data", dir, "--namesrv-port", fmt.Sprint(namesPort), "--broker-port", fmt.Sprint(brokerPort), "--http-port", "0", "--log-level", "warn"}
		for _, kv := range settings {
			args = append(args, "--set", kv)
		}
		s.cmd = command(b.c.bin, args...)
	case "java":
		names := command(b.c.javaPeer, "namesrv", fmt.Sprint(namesPort))
		if err := names.Start(); err != nil {
			return nil, err
		}
		s.aside = append(s.aside, names)
		if err := await(s.names, names); err != nil {
			return nil, errors.Join(fmt.Errorf("Java name server: %w", err), s.stop())
		}
		s.cmd = command(b.c.javaPeer, append([]string{"broker", dir, fmt.Sprint(brokerPort), s.names}, settings...)...)
		s.cmd.Env = append(os.Environ(), "HEAP="+b.c.heap)
	case "nats":
		s.addr = fmt.Sprint("127.0.0.1:", natsPort)
		conf := fmt.Sprintf("listen: %q\njetstream { store_dir: %q\n%s }\n", s.addr, dir, strings.Join(settings, "\n"))
		file := filepath.Join(dir, "nats.conf")
		if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
			return nil, err
		}
		s.cmd = command(b.c.nats, "-c", file)
	}
	s.began = time.Now()
	return s, s.cmd.Start()
}

// serve starts a system and waits until it serves.
func (b *bench) serve(ctx context.Context, system, dir string, settings ...string) (*server, error) {
	s, err := b.begin(system, dir, settings...)
	if err != nil {
		return nil, err
	}
	if err := await(s.addr, s.cmd); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w; its log is %s", system, err, s.log.Name()), s.stop())
	}
	if system != "nats" {
		// Registered with its name server: the template topic has a route.
		for deadline := time.Now().Add(startWithin); ; {
			out, err := exec.CommandContext(ctx, b.c.bin, "produce", "--namesrv", s.names, "--topic", "compare-ready", "--timeout", "2s").CombinedOutput()
			if err == nil {
				break
			}
			if time.Now().After(deadline) || ctx.Err() != nil {
				return nil, errors.Join(fmt.Errorf("%s serves no send: %s", system, bytes.TrimSpace(out)), s.stop())
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	return s, nil
}

// await waits until somebody listens, or the process that should has ended.
func await(addr string, by *exec.Cmd) error {
	deadline := time.Now().Add(startWithin)
	for {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			return c.Close()
		}
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", by.Process.Pid)); err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return errors.New("it ended at once")
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("nobody listens on %s after %v", addr, startWithin)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// stop ends a server cleanly.
func (s *server) stop() error { return s.end(syscall.SIGTERM) }

// kill ends a server as kill -9 does.
func (s *server) kill() error { return s.end(syscall.SIGKILL) }

func (s *server) end(sig syscall.Signal) error {
	var err error
	if s.cmd != nil && s.cmd.Process != nil {
		err = endProcess(s.cmd, sig)
	}
	for _, a := range s.aside {
		err = errors.Join(err, endProcess(a, syscall.SIGTERM))
	}
	_ = s.log.Close()
	return err
}

// stopWithin is how long a clean stop may take: Java's writes its consume queues.
const stopWithin = 2 * time.Minute

func endProcess(cmd *exec.Cmd, sig syscall.Signal) error {
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	t := time.AfterFunc(stopWithin, func() { _ = cmd.Process.Kill() })
	defer t.Stop()
	_ = cmd.Wait() // a JVM ends with 143
	return nil
}

// clear removes a store and lets the disk come to rest, so that the next turn begins as this one did.
func clear(dir string) error {
	err := os.RemoveAll(dir)
	unix.Sync()
	return err
}

// use is what a process has used.
type use struct {
	cpu       time.Duration
	rss, anon float64 // MB
}

func (s *server) use() (use, error) { return useOf(s.pid()) }

func useOf(pid int) (u use, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	u.cpu = time.Duration(user+system) * 10 * time.Millisecond
	if b, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err != nil {
		return u, err
	}
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		kb, _ := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "VmRSS:":
			u.rss = kb / 1024
		case "RssAnon:":
			u.anon = kb / 1024
		}
	}
	return u, nil
}

var modelName = regexp.MustCompile(`(?m)^model name\s*: (.*)$`)

// describe notes the machine and the versions.
func (b *bench) describe(ctx context.Context) error {
	output := func(name string, args ...string) string {
		out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
		if err != nil {
			return "unknown"
		}
		line, _ := bufio.NewReader(bytes.NewReader(out)).ReadString('\n')
		return strings.TrimSpace(line)
	}
	t := taken{Date: time.Now().UTC().Format("2006-01-02"), Commit: output("git", "rev-parse", "--short", "HEAD"), Go: output("go", "env", "GOVERSION"),
		NATS: output(b.c.nats, "--version"), Client: "apogee bench", Kernel: output("uname", "-r")}
	if b.c.javaPeer != "" {
		t.Java = "RocketMQ 5.3.3 on " + output("java", "-version")
		t.JavaSettings = "heap " + b.c.heap + ", G1, 4 GiB of direct memory, everything else as released, but for autoCreateTopicEnable=true, enablePropertyFilter=true and diskMaxUsedSpaceRatio=95"
	}
	if b.c.rmqload != "" {
		t.Client = "rmqload where it can, apogee bench otherwise"
	}
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := modelName.FindSubmatch(raw); m != nil {
			t.CPU = fmt.Sprintf("%s, %d processors, shared by server and client", m[1], bytes.Count(raw, []byte("processor\t")))
		}
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		t.Memory = fmt.Sprintf("%d GiB", (info.Totalram*uint64(info.Unit)+1<<29)>>30)
	}
	if raw, err := os.ReadFile("/proc/loadavg"); err == nil {
		t.Load, _, _ = strings.Cut(string(raw), " ")
	}
	var err error
	t.Disk = b.disk()
	t.Fdatasync, err = fdatasyncs(b.c.dir)
	b.taken = t
	return err
}

// disk says which file system the stores are on.
func (b *bench) disk() string {
	raw, _ := os.ReadFile("/proc/mounts")
	best, text := "", "unknown"
	for l := range strings.Lines(string(raw)) {
		f := strings.Fields(l)
		if len(f) > 3 && len(f[1]) >= len(best) && (f[1] == "/" || b.c.dir == f[1] || strings.HasPrefix(b.c.dir, f[1]+"/")) {
			best, text = f[1], fmt.Sprintf("%s on %s (%s)", f[2], f[0], f[3])
		}
	}
	return text
}

// fdatasyncs counts how many writes of 4 KiB followed by fdatasync the disk takes in a second.
func fdatasyncs(dir string) (string, error) {
	f, err := os.Create(filepath.Join(dir, "fdatasync"))
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	buf := make([]byte, 4096)
	n := 0
	began := time.Now()
	for ; time.Since(began) < time.Second; n++ {
		if _, err := f.WriteAt(buf, int64(n%1024)*4096); err != nil {
			return "", err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d writes of 4 KiB with fdatasync a second, one after the other", n), nil
}
