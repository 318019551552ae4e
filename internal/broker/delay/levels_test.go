package delay

import (
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/message"
)

func TestLevels(t *testing.T) {
	l, err := ParseLevels(DefaultLevels)
	if err != nil || l.Max() != 18 || l.Delay(1) != time.Second || l.Delay(18) != 2*time.Hour || l.Delay(99) != 2*time.Hour {
		t.Errorf("%v %v", l, err)
	}
	for _, bad := range []string{"", "1x", "s", "-1s", "1s two"} {
		if _, err := ParseLevels(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	m := message.Message{Topic: "T", QueueID: 3, Properties: []byte("DELAY\x0199\x02K\x01v\x02WAIT\x01true\x02")}
	l.Schedule(nil, &m, 99)
	if m.Topic != "SCHEDULE_TOPIC_XXXX" || m.QueueID != 17 {
		t.Errorf("%+v", m)
	}
	if err := Delivered(&m); err != nil {
		t.Fatal(err)
	}
	p := message.PropertyMap(m.Properties)
	if m.Topic != "T" || m.QueueID != 3 || p["K"] != "v" || p["WAIT"] != "false" || p["DELAY"] != "18" || p["REAL_TOPIC"] != "T" {
		t.Errorf("%+v %v", m, p)
	}
	if err := Delivered(&message.Message{}); err == nil {
		t.Error("a message without a target was delivered")
	}
}

func TestDue(t *testing.T) {
	now := time.UnixMilli(10_000)
	for at, want := range map[int64]time.Duration{9_000: 0, 10_000: 0, 10_500: 500 * time.Millisecond, 11_000: time.Second, 11_001: 0} {
		if got := Due(at, time.Second, now); got != want {
			t.Errorf("%d: %v, want %v", at, got, want)
		}
	}
}
