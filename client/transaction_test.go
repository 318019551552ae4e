package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/testkit"
)

func never(context.Context, *client.Message) client.Resolution { return client.Unknown }

// TestTransactionsAreJavas: what is sent for a commit, a rollback and an unknown one, and for the broker's questions,
// is what Java's client sent.
func TestTransactionsAreJavas(t *testing.T) {
	rec := recording(t, "transaction")
	halves, ends, checks := rec.requests(protocol.SendMessageV2), rec.requests(protocol.EndTransaction), rec.requests(protocol.CheckTransactionState)
	f := startFake(t, 1, "golden-a")
	b := f.brokers[0]
	next := 0
	b.do(func(_ int, r fakeRequest) *remoting.Response {
		if r.code == protocol.SendMessageV2 {
			next++
			return rec.answer(t, halves[next-1])
		}
		return &remoting.Response{}
	})
	// What Java's listener said to each question, in the order of the recording.
	answers := map[string]client.Resolution{}
	for _, e := range ends {
		if x := e.Header.ExtFields; x["fromTransactionCheck"] == "true" {
			answers[x["commitLogOffset"]] = map[string]client.Resolution{"0": client.Unknown, "8": client.Commit, "12": client.Rollback}[x["commitOrRollback"]]
		}
	}
	asked := make(chan *client.Message, len(checks))
	var answer client.Resolution
	c := newClient(t, f.names)
	p, err := c.NewProducer("golden_tran", client.WithTransactionCheck(func(_ context.Context, m *client.Message) client.Resolution {
		asked <- m
		return answer
	}))
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	for i, h := range halves {
		x := h.Header.ExtFields
		props := fakeProps(x["i"])
		m := &client.Message{Topic: x["b"], Tags: props["TAGS"], Keys: []string{props["KEYS"]}, ID: props["UNIQ_KEY"], Body: frameBody(h)}
		want := map[string]client.Resolution{"0": client.Unknown, "8": client.Commit, "12": client.Rollback}[ends[i].Header.ExtFields["commitOrRollback"]]
		res, err := p.SendInTransaction(short(t), m, func(context.Context, *client.Message) (client.Resolution, error) { return want, nil })
		if err != nil || res.Resolution != want || res.TransactionID != m.ID {
			t.Fatalf("%+v %v", res, err)
		}
		sent += 2
		testkit.Eventually(t, 10*time.Second, "the end of the transaction", func() bool { return len(b.requests()) == sent })
		seen := b.requests()
		sameFields(t, seen[sent-2], h, "g", "d")
		sameFields(t, seen[sent-1], ends[i])
	}
	for _, q := range checks {
		answer = answers[q.Header.ExtFields["commitLogOffset"]]
		b.push(t, protocol.CheckTransactionState, q.Header.ExtFields, frameBody(q))
		m := <-asked
		if m.Topic != "GoldenTran" || m.ID != q.Header.ExtFields["msgId"] || !strings.HasPrefix(string(m.Body), "check me") {
			t.Errorf("asked about %+v", m)
		}
		sent++
		testkit.Eventually(t, 10*time.Second, "the answer to a check", func() bool { return len(b.requests()) == sent })
		got := b.requests()[sent-1]
		for _, e := range ends {
			if x := e.Header.ExtFields; x["fromTransactionCheck"] == "true" && x["commitLogOffset"] == got.fields["commitLogOffset"] {
				sameFields(t, got, e)
			}
		}
	}
}

func fakeProps(s string) map[string]string {
	out := map[string]string{}
	for _, kv := range strings.Split(s, "\x02") {
		if k, v, ok := strings.Cut(kv, "\x01"); ok {
			out[k] = v
		}
	}
	return out
}

func TestTransactionsThatGoWrong(t *testing.T) {
	f := startFake(t, 1, "a")
	c := newClient(t, f.names)
	ok := func(context.Context, *client.Message) (client.Resolution, error) { return client.Commit, nil }
	plain := newProducer(t, c)
	if _, err := plain.SendInTransaction(short(t), msg(""), ok); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "WithTransactionCheck") {
		t.Errorf("without a check: %v", err)
	}
	p, err := c.NewProducer("tx", client.WithTransactionCheck(never))
	if err != nil {
		t.Fatal(err)
	}
	m := msg("")
	m.DelayLevel = 1
	if _, err := p.SendInTransaction(short(t), m, ok); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "delayed") {
		t.Errorf("delayed: %v", err)
	}
	last := func() string { seen := f.brokers[0].requests(); return seen[len(seen)-1].fields["commitOrRollback"] }
	for what, local := range map[string]func(context.Context, *client.Message) (client.Resolution, error){
		"an error": func(context.Context, *client.Message) (client.Resolution, error) {
			return client.Commit, errors.New("an error")
		},
		"a panic": func(context.Context, *client.Message) (client.Resolution, error) { panic("a panic") },
	} {
		n := len(f.brokers[0].requests())
		res, err := p.SendInTransaction(short(t), msg(""), local)
		if err == nil || !strings.Contains(err.Error(), what) || res == nil || res.Resolution != client.Unknown {
			t.Errorf("%s: %+v %v", what, res, err)
		}
		testkit.Eventually(t, 10*time.Second, "the end of the transaction", func() bool { return len(f.brokers[0].requests()) == n+2 })
		if last() != "0" {
			t.Errorf("%s: the broker was told %s", what, last())
		}
	}
	// A half message that isn't safe: local isn't called, the transaction rolled back.
	f.brokers[0].do(func(n int, r fakeRequest) *remoting.Response {
		a := accepted(n, r)
		if r.code == protocol.SendMessageV2 {
			a.Code = protocol.FlushDiskTimeout
		}
		return a
	})
	called := false
	res, err := p.SendInTransaction(short(t), msg(""), func(context.Context, *client.Message) (client.Resolution, error) {
		called = true
		return client.Commit, nil
	})
	if err != nil || res.Resolution != client.Rollback || called || last() != "12" {
		t.Errorf("%+v %v, called %v, told %s", res, err, called, last())
	}
	// The broker refuses the commit: the caller learns it.
	f.brokers[0].do(func(n int, r fakeRequest) *remoting.Response {
		if r.code == protocol.EndTransaction {
			return refuse(protocol.SystemError, "find prepared transaction message failed")
		}
		return accepted(n, r)
	})
	if res, err := p.SendInTransaction(short(t), msg(""), ok); err == nil || res == nil || !strings.Contains(err.Error(), "will ask") || !strings.Contains(err.Error(), "find prepared") {
		t.Errorf("%+v %v", res, err)
	}
}

func TestApogeeRefusesTransactionsClearly(t *testing.T) {
	onlyApogee(t, "a Java broker serves transactions")
	c := newClient(t, nameServer(t))
	p := newProducer(t, c, client.WithTransactionCheck(never))
	called := false
	_, err := p.SendInTransaction(short(t), &client.Message{Topic: unique(t, "t"), Body: []byte("x")}, func(context.Context, *client.Message) (client.Resolution, error) {
		called = true
		return client.Commit, nil
	})
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Code != int(protocol.NoPermission) || !strings.Contains(err.Error(), "does not serve transactions") || called {
		t.Errorf("%v, local called: %v", err, called)
	}
}

// TestTransactionsOnJava: committed ones arrive, rolled-back ones don't, undecided ones are asked about.
func TestTransactionsOnJava(t *testing.T) {
	onlyJava(t, "transactions")
	c := newClient(t, nameServer(t))
	topic := unique(t, "t")
	asked := make(chan string, 10)
	p := newProducer(t, c, client.WithTransactionCheck(func(_ context.Context, m *client.Message) client.Resolution {
		asked <- m.ID
		return client.Commit
	}))
	warm(t, p, topic)
	want := map[string]bool{}
	var undecided string
	for _, r := range []client.Resolution{client.Commit, client.Rollback, client.Unknown} {
		m := &client.Message{Topic: topic, Body: []byte(r.String())}
		res, err := p.SendInTransaction(short(t), m, func(context.Context, *client.Message) (client.Resolution, error) { return r, nil })
		if err != nil || res.Resolution != r {
			t.Fatalf("%s: %+v %v", r, res, err)
		}
		want[m.ID] = r != client.Rollback
		if r == client.Unknown {
			undecided = m.ID
		}
	}
	select {
	case id := <-asked:
		if id != undecided {
			t.Errorf("asked about %s, want %s", id, undecided)
		}
	case <-time.After(90 * time.Second):
		t.Fatal("the broker doesn't ask")
	}
	for _, m := range readAll(t, c, topic, 3) {
		if string(m.Body) != "warm" && !want[m.ID] {
			t.Errorf("%s arrived: %q", m.ID, m.Body)
		}
		delete(want, m.ID)
	}
}

func commit(context.Context, *client.Message) (client.Resolution, error) { return client.Commit, nil }
