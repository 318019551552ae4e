package client_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// TestRequestsAreJavas: a request is what Java's client sends, and Java's reply to it is understood.
func TestRequestsAreJavas(t *testing.T) {
	rec := recording(t, "request_reply")
	ask, push := rec.requests(protocol.SendMessageV2)[0], rec.requests(protocol.PushReplyMessageToClient)[0]
	f := startFake(t, 1, "golden-a")
	b := f.brokers[0]
	b.do(func(n int, r fakeRequest) *remoting.Response {
		fields := maps.Clone(push.Header.ExtFields)
		old := fakeProps(fields["properties"])["CORRELATION_ID"]
		fields["properties"] = strings.Replace(fields["properties"], old, r.props["CORRELATION_ID"], 1)
		b.push(t, protocol.PushReplyMessageToClient, fields, frameBody(push))
		return rec.answer(t, ask)
	})
	c := newClient(t, f.names, client.WithClientID("127.0.0.1@golden-requester"))
	p, err := c.NewProducer("golden_requester")
	if err != nil {
		t.Fatal(err)
	}
	x := ask.Header.ExtFields
	props := fakeProps(x["i"])
	m := &client.Message{Topic: x["b"], Tags: props["TAGS"], ID: props["UNIQ_KEY"], Body: frameBody(ask)}
	reply, err := p.Request(short(t), m)
	if err != nil || string(reply.Body) != "the reply" {
		t.Fatalf("%+v %v", reply, err)
	}
	got := b.requests()[0]
	if len(got.props["CORRELATION_ID"]) != len(props["CORRELATION_ID"]) || got.props["TTL"] == "" {
		t.Errorf("properties %v", got.props)
	}
	got.props["CORRELATION_ID"], got.props["TTL"] = props["CORRELATION_ID"], props["TTL"]
	sameFields(t, got, ask, "g", "d")
}

// TestRepliesAreJavas: what a Go consumer replies to Java's request is what a Java consumer replied.
func TestRepliesAreJavas(t *testing.T) {
	rec := recording(t, "request_reply")
	ask, reply := rec.requests(protocol.SendMessageV2)[0], rec.requests(protocol.SendReplyMessageV2)[0]
	f := startFake(t, 1, "golden-a")
	c := newClient(t, f.names)
	p, err := c.NewProducer("golden_reply_producer")
	if err != nil {
		t.Fatal(err)
	}
	properties := ask.Header.ExtFields["i"] + "CLUSTER\x01GoldenCluster\x02"
	request := client.MessageForTesting(c, ask.Header.ExtFields["b"], "golden-a", properties, frameBody(ask))
	if err := p.Reply(short(t), request, []byte("the reply")); err != nil {
		t.Fatal(err)
	}
	got := f.brokers[0].requests()[0]
	if got.code != protocol.SendReplyMessageV2 {
		t.Fatalf("code %v", got.code)
	}
	want := fakeProps(reply.Header.ExtFields["i"])
	got.props["UNIQ_KEY"] = want["UNIQ_KEY"]
	delete(got.props, "WAIT") // true, which is what its absence means
	sameFields(t, got, reply, "g", "d")

	if err := p.Reply(short(t), msg(""), []byte("x")); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "no request") {
		t.Errorf("not a request: %v", err)
	}
	gone := "push reply message fail, channel of <nobody@x> not found."
	f.brokers[0].do(func(int, fakeRequest) *remoting.Response { return refuse(protocol.SystemError, gone) })
	if err := p.Reply(short(t), request, []byte("x")); err == nil || !strings.Contains(err.Error(), gone) {
		t.Errorf("nobody there: %v", err)
	}
}

func TestARequestWithoutReplyEndsWithItsContext(t *testing.T) {
	f := startFake(t, 1, "a")
	p := newProducer(t, newClient(t, f.names))
	var err error
	for d := 100 * time.Millisecond; len(f.brokers[0].requests()) == 0; d *= 2 { // long enough for the request to arrive
		ctx, cancel := context.WithTimeout(context.Background(), d)
		_, err = p.Request(ctx, msg(""))
		cancel()
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	// A reply that comes too late is refused and harms nobody.
	late := f.brokers[0].requests()[0].props["CORRELATION_ID"]
	f.brokers[0].push(t, protocol.PushReplyMessageToClient, map[string]string{"topic": "X_REPLY_TOPIC", "properties": "CORRELATION_ID\x01" + late + "\x02"}, []byte("late"))
	if _, err := p.Send(short(t), msg("")); err != nil {
		t.Error(err)
	}
}

func TestRequestAndReplyOnJava(t *testing.T) {
	onlyJava(t, "request-reply")
	addr := nameServer(t)
	c := newClient(t, addr)
	topic := unique(t, "t")
	p := newProducer(t, c)
	warm(t, p, topic)
	replier := newClient(t, addr)
	answers := newProducer(t, replier)
	r, err := replier.Read(short(t), topic, "*", client.Latest)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			m, err := r.Next(context.Background())
			if err != nil {
				return
			}
			if err := answers.Reply(short(t), m, append([]byte("re: "), m.Body...)); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 3 {
		reply, err := p.Request(short(t), &client.Message{Topic: topic, Body: []byte("question")})
		if err != nil || string(reply.Body) != "re: question" {
			t.Errorf("%+v %v", reply, err)
		}
	}
	r.Close()
	<-done
}

func TestRecallIsJavas(t *testing.T) {
	rec := recording(t, "recall")
	recalls := rec.requests(protocol.RecallMessage)
	f := startFake(t, 1, "golden-a")
	p, err := newClient(t, f.names).NewProducer("golden_producer")
	if err != nil {
		t.Fatal(err)
	}
	for i, q := range recalls[:4] { // recalled, unknown id, too late, wrong topic
		f.brokers[0].do(func(int, fakeRequest) *remoting.Response { return rec.answer(t, q) })
		x := q.Header.ExtFields
		id, err := p.Recall(short(t), x["topic"], x["recallHandle"])
		sameFields(t, f.brokers[0].requests()[i], q)
		var refused *client.Error
		switch i {
		case 0:
			if err != nil || id != "7F00000143814E0E2F2A00E4F5DB0000" {
				t.Errorf("%q %v", id, err)
			}
		case 2, 3:
			if !errors.As(err, &refused) || refused.Code != 604 {
				t.Errorf("%v", err)
			}
		}
	}
	for _, bad := range []string{"", "!!!", "djEg"} {
		if _, err := p.Recall(short(t), "GoldenRecall", bad); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("handle %q: %v", bad, err)
		}
	}
}

func TestTimersAndRecallOnJava(t *testing.T) {
	onlyJava(t, "timers and recall")
	c := newClient(t, nameServer(t))
	p := newProducer(t, c)
	topic := unique(t, "t")
	warm(t, p, topic)
	at := time.Now().Add(4 * time.Second)
	keep, err := p.Send(short(t), &client.Message{Topic: topic, DeliverAt: at, Body: []byte("keep")})
	if err != nil || keep.RecallHandle == "" {
		t.Fatalf("%+v %v", keep, err)
	}
	back, err := p.Send(short(t), &client.Message{Topic: topic, DeliverAt: at, Body: []byte("back")})
	if err != nil {
		t.Fatal(err)
	}
	if id, err := p.Recall(short(t), topic, back.RecallHandle); err != nil || id != back.ID {
		t.Errorf("recall: %q %v", id, err)
	}
	for _, m := range readAll(t, c, topic, 2) {
		if string(m.Body) == "back" {
			t.Error("a recalled message came")
		}
	}
	if early := time.Until(at); early > time.Second {
		t.Errorf("delivered %s too early", early)
	}
}
