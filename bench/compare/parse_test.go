package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRmqloadLinesAreRead(t *testing.T) {
	x, err := parseRmqload("send conns=4 depth=16 size=1024 n=500000: 21600 msg/s  p50=2500us p99=13000us p99.9=20000us max=40000us  fails=3  server_cpu=64.00us/msg rss=5500MB <nil>\n")
	if err != nil || x["per_second"] != 21600 || x["p50"] != 2500 || x["p99"] != 13000 || x["p99_9"] != 20000 || x["cpu"] != 64 || x["fails"] != 3 {
		t.Errorf("%v, %v", x, err)
	}
	x, err = parseRmqload("e2e rate=2000 secs=6.2 size=1024 sent=12000 got=12000 fails=0  ack p50=620 p99=3700 p99.9=11000 max=20000 us | end-to-end p50=1300 p99=5000 p99.9=11500 max=30000 us  server_cpu=507.0us/msg rss=470MB\n")
	if err != nil || x["ack_p50"] != 620 || x["ack_p99_9"] != 11000 || x["p50"] != 1300 || x["p99_9"] != 11500 || x["cpu"] != 507 {
		t.Errorf("%v, %v", x, err)
	}
	if _, err := parseRmqload("rmqload: connection refused"); err == nil {
		t.Error("an error was taken for a result")
	}
}

func TestMedianAndRange(t *testing.T) {
	r := &results{Samples: map[string]map[string][]sample{"row": {"apogee": {{"x": 5}, {"x": 1}, {"x": 2000}, {"y": 1}}, "java": {{"x": 2}, {"x": 4}}}}}
	if s := r.stat("row", "apogee", "x"); s.String() != "5.00 (1.00–2,000)" {
		t.Error(s)
	}
	if s := r.stat("row", "java", "x"); s.med != 3 {
		t.Error(s)
	}
	if s := r.stat("row", "nats", "x"); s.String() != "not measured" {
		t.Error(s)
	}
	for x, want := range map[float64]string{1234567.8: "1,234,568", 999.6: "1,000", 12.34: "12.3", -3.2: "-3.20"} {
		if got := number(x); got != want {
			t.Errorf("%g: %s, want %s", x, got, want)
		}
	}
}

func TestVerdicts(t *testing.T) {
	for want, c := range map[string]check{
		"a 2.00, goal ≥ 3.00: **33 % short**": {"a", 2, 3, false, true},
		"a 3.00, goal ≥ 3.00: met":            {"a", 3, 3, false, true},
		"a 20.0, goal ≤ 16.0: **25 % over**":  {"a", 20, 16, true, true},
		"a: **not measured**, goal ≥ 3.00":    {"a", 0, 3, false, false},
	} {
		if c.String() != want {
			t.Errorf("%s, want %s", c, want)
		}
	}
}

// TestPageHasEveryRow: without a sample a row says so; it is never left out.
func TestPageHasEveryRow(t *testing.T) {
	dir := t.TempDir()
	r, err := loadResults(filepath.Join(dir, "none.json"))
	if err != nil {
		t.Fatal(err)
	}
	r.Samples["send-1x1"] = map[string][]sample{"apogee": {{"per_second": 20000, "p50": 50}}, "java": {{"per_second": 5000, "p50": 190}}}
	if err := writePage(filepath.Join(dir, "page.md"), r); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "page.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines() {
		if !strings.Contains(string(raw), "| "+l.work) {
			t.Errorf("no row %s", l.work)
		}
	}
	if n := strings.Count(string(raw), "not measured yet"); n < 20 {
		t.Errorf("%d rows say that they aren't measured", n)
	}
	if !strings.Contains(string(raw), "messages/s by Java's 4.00, goal ≥ 3.00: met<br>p50, µs 50.0, goal ≤ 70.0: met") {
		t.Error(string(raw))
	}
}
