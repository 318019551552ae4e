package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOrderAndNotes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broker.conf")
	if err := os.WriteFile(file, []byte("brokerName=from-file\nlistenPort=1234\nregionId=${x}\nflushDiskTyp=ASYNC_FLUSH\nsendMessageThreadPoolNums=4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := New()
	if err := c.LoadFile(file); err != nil {
		t.Fatal(err)
	}
	if err := c.LoadEnv([]string{"APOGEE_LISTEN_PORT=2345", "OTHER=1", "APOGEE_BROKER_IP1=10.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Set("brokerName", "from-flag", "--set"); err != nil {
		t.Fatal(err)
	}
	if c.Text("brokerName") != "from-flag" || c.Int("listenPort") != 2345 || c.Text("regionId") != "${x}" || c.Text("brokerIP1") != "10.0.0.1" {
		t.Errorf("%s", c.Render())
	}
	notes := strings.Join(c.Notes, "\n")
	if len(c.Notes) != 2 || !strings.Contains(notes, "did you mean flushDiskType?") || !strings.Contains(notes, "sendMessageThreadPoolNums is RocketMQ's") {
		t.Errorf("notes: %s", notes)
	}
}

func TestBadValues(t *testing.T) {
	for key, value := range map[string]string{"listenPort": "70000", "flushDiskType": "MAYBE", "traceOn": "yes", "maxMessageSize": "big"} {
		err := New().Set(key, value, "here")
		if err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s=%s: %v", key, value, err)
		}
	}
}

func TestDefaultsAreLegal(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Settings() {
		if err := s.check(s.Default); err != nil || s.Meaning == "" || seen[s.Key] {
			t.Errorf("%s: %v", s.Key, err)
		}
		seen[s.Key] = true
	}
}
