package namesrv

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/protocol"
)

func report(name, addr string, version int64, topics ...string) Report {
	r := Report{Cluster: "C", Name: name, Addr: addr, Conn: 7, Topics: protocol.TopicConfigWrapper{DataVersion: protocol.DataVersion{Counter: version, Timestamp: 1}, TopicConfigTable: map[string]protocol.TopicConfig{}}}
	for _, t := range topics {
		r.Topics.TopicConfigTable[t] = protocol.TopicConfig{TopicName: t, ReadQueueNums: 4, WriteQueueNums: 4, Perm: 6}
	}
	return r
}

func TestRegistration(t *testing.T) {
	now := time.Unix(1000, 0)
	tb := NewTable()
	if _, err := tb.Register(report("b", "1.1.1.1:1", 1, "only"), now); !errors.Is(err, ErrRefused) {
		t.Errorf("a first report of one topic: %v", err)
	}
	if _, err := tb.Register(report("b", "1.1.1.1:1", 1, "T", "U"), now); err != nil {
		t.Fatal(err)
	}
	r, ok := tb.Route("T", Asker{})
	if !ok || len(r.QueueDatas) != 1 || r.QueueDatas[0].WriteQueueNums != 4 || r.BrokerDatas[0].BrokerAddrs[0] != "1.1.1.1:1" {
		t.Errorf("%+v", r)
	}
	same := report("b", "1.1.1.1:1", 1, "T", "V")
	same.Topics.TopicConfigTable["T"] = protocol.TopicConfig{ReadQueueNums: 9, WriteQueueNums: 9, Perm: 6}
	if _, err := tb.Register(same, now); err != nil {
		t.Fatal(err)
	}
	if r, _ := tb.Route("T", Asker{}); r.QueueDatas[0].ReadQueueNums != 4 {
		t.Error("an unchanged data version changed a known topic")
	}
	if _, ok := tb.Route("V", Asker{}); !ok {
		t.Error("a new topic was not taken")
	}
	if _, err := tb.Register(report("b", "1.1.1.1:1", 2, "W"), now); err != nil {
		t.Errorf("an increment of one topic: %v", err)
	}
	if _, ok := tb.Route("U", Asker{}); !ok {
		t.Error("a report is an addition: U is gone")
	}
	if n := tb.SetPerm("b", func(p int32) int32 { return p &^ permWrite }); n != 4 {
		t.Errorf("wiped %d topics", n)
	}
	tb.DeleteTopic("U", "other")
	if _, ok := tb.Route("U", Asker{}); !ok {
		t.Error("deleted in another cluster")
	}
	tb.DeleteTopic("U", "")
	if _, ok := tb.Route("U", Asker{}); ok {
		t.Error("not deleted")
	}
}

func TestWhoGoes(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		what string
		do   func(tb *Table) int
		gone bool
	}{
		{"silent for 120 s", func(tb *Table) int { return len(tb.Expire(now.Add(120 * time.Second))) }, false},
		{"silent for longer", func(tb *Table) int { return len(tb.Expire(now.Add(121 * time.Second))) }, true},
		{"silent but touched", func(tb *Table) int {
			tb.Touch("b", "1.1.1.1:1", now.Add(100*time.Second))
			return len(tb.Expire(now.Add(121 * time.Second)))
		}, false},
		{"its connection ended", func(tb *Table) int { return len(tb.ConnClosed(7)) }, true},
		{"another's connection ended", func(tb *Table) int { return len(tb.ConnClosed(8)) }, false},
		{"unregistered", func(tb *Table) int { tb.Unregister("b", "1.1.1.1:1", 0); return 1 }, true},
		{"another address unregistered", func(tb *Table) int { tb.Unregister("b", "2.2.2.2:1", 0); return 0 }, false},
	} {
		tb := NewTable()
		if _, err := tb.Register(report("b", "1.1.1.1:1", 1, "T", "U"), now); err != nil {
			t.Fatal(err)
		}
		n := c.do(tb)
		if _, ok := tb.Route("T", Asker{}); ok == c.gone || (n > 0) != c.gone {
			t.Errorf("%s: gone %v, named %d", c.what, !ok, n)
		}
	}
}

func TestAddressByClientAndRetryRoute(t *testing.T) {
	tb := NewTable()
	r := report("b", "0.0.0.0:10911", 1, "T", "U")
	r.ByClient, r.RetryQueues, r.Conn = true, 1, 0
	if _, err := tb.Register(r, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	a := Asker{Local: netip.MustParseAddr("10.1.2.3")}
	got, ok := tb.Route("%RETRY%new-group", a)
	if !ok || got.BrokerDatas[0].BrokerAddrs[0] != "10.1.2.3:10911" || got.QueueDatas[0].ReadQueueNums != 1 {
		t.Errorf("%+v %v", got, ok)
	}
	if _, ok := tb.Route("%RETRY%", a); ok {
		t.Error("a route for a group without a name")
	}
	if _, ok := tb.Route("Unknown", a); ok {
		t.Error("a route for an unknown topic")
	}
	if len(tb.Expire(time.Unix(1<<30, 0))) != 0 {
		t.Error("a broker of this process expired")
	}
}
