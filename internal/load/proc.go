package load

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// userHz is the number of clock ticks a second in /proc, on every Linux that Go runs on.
const userHz = 100

// serverUsage reads a process's CPU time and resident memory from /proc.
func serverUsage(pid int) (u usage, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return u, fmt.Errorf("CPU time of process %d: /proc/%d/stat has %d fields", pid, pid, len(f))
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	u.cpu = time.Duration(user+system) * time.Second / userHz
	if b, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err != nil {
		return u, fmt.Errorf("memory of process %d: %w", pid, err)
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
