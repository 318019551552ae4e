package client_test

import (
	"strings"
	"testing"

	"github.com/apogeemq/apogee/client"
)

// TestTracingWritesARecordForEachSend, found by the message's id and keys; Close sends what waits.
func TestTracingWritesARecordForEachSend(t *testing.T) {
	addr := nameServer(t)
	trace := unique(t, "trace")
	traced, err := client.New(client.WithNameServers(addr), client.WithTracing(trace))
	if err != nil {
		t.Fatal(err)
	}
	p, err := traced.NewProducer("traced_group")
	if err != nil {
		t.Fatal(err)
	}
	topic := unique(t, "t")
	ids := map[string]bool{}
	for range 25 {
		m := &client.Message{Topic: topic, Tags: "Tag", Keys: []string{"key1"}, Body: []byte("body")}
		res, err := p.Send(short(t), m)
		if err != nil {
			t.Fatal(err)
		}
		ids[res.ID+" "+res.OffsetID] = true
	}
	if err := traced.Close(short(t)); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, addr)
	r, err := c.Read(short(t), trace, "*", client.Earliest)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for len(ids) > 0 {
		m, err := r.Next(short(t))
		if err != nil {
			t.Fatalf("%d messages without a trace: %v", len(ids), err)
		}
		for rec := range strings.SplitSeq(strings.TrimSuffix(string(m.Body), "\x02"), "\x02") {
			f := strings.Split(rec, "\x01")
			if len(f) != 14 || f[0] != "Pub" || f[3] != "traced_group" || f[4] != topic || f[6] != "Tag" || f[7] != "key1" || f[9] != "4" || f[11] != "0" || f[13] != "true" {
				t.Fatalf("record %q", f)
			}
			if !ids[f[5]+" "+f[12]] || !strings.Contains(strings.Join(m.Keys, " "), f[5]) {
				t.Errorf("record of message %s at %s, keys %q", f[5], f[12], m.Keys)
			}
			delete(ids, f[5]+" "+f[12])
		}
	}
}

func TestTransactionsAndRecallsAreTraced(t *testing.T) {
	f := startFake(t, 1, "a")
	c, err := client.New(client.WithNameServers(f.names), client.WithTracing(""))
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.NewProducer("g", client.WithTransactionCheck(never))
	if err != nil {
		t.Fatal(err)
	}
	m := msg("")
	if _, err := p.SendInTransaction(short(t), m, commit); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Recall(short(t), "T", "djEgVCBhIDE3OTYwOTgyMTAwMDEgSUQ="); err != nil { // v1 T a 1796098210001 ID
		t.Fatal(err)
	}
	if err := c.Close(short(t)); err != nil {
		t.Fatal(err)
	}
	var records []string
	for _, r := range f.brokers[0].requests() {
		if r.fields["b"] == "RMQ_SYS_TRACE_TOPIC" {
			records = append(records, strings.Split(strings.TrimSuffix(string(r.body), "\x02"), "\x02")...)
		}
	}
	want := map[string]func(f []string) bool{
		"Pub": func(f []string) bool { return len(f) == 14 && f[5] == m.ID && f[11] == "1" },
		"EndTransaction": func(f []string) bool {
			return len(f) == 13 && f[5] == m.ID && f[9] == "2" && f[11] == "COMMIT_MESSAGE" && f[12] == "false"
		},
		"Recall": func(f []string) bool { return len(f) == 7 && f[4] == "T" && f[6] == "true" },
	}
	for _, rec := range records {
		f := strings.Split(rec, "\x01")
		if ok := want[f[0]]; ok == nil || !ok(f) {
			t.Errorf("record %q", f)
		}
		delete(want, f[0])
	}
	if len(want) != 0 {
		t.Errorf("records %q, missing %d", records, len(want))
	}
}
