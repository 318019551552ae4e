package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/internal/config"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startServer(t *testing.T, dir string, settings ...string) (s *server.Server, stop func()) {
	t.Helper()
	c := config.New()
	for _, kv := range append([]string{"storePathRootDir=" + dir, "namesrvPort=0", "listenPort=0", "httpPort=0", "brokerName=broker-t"}, settings...) {
		k, v, _ := strings.Cut(kv, "=")
		if err := c.Set(k, v, "test"); err != nil {
			t.Fatal(err)
		}
	}
	s, err := server.Start(c, server.Roles{NameServer: true, Broker: true}, slog.New(slog.DiscardHandler), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return s, stop
}

func timeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// sendMessage sends with the producer of the command line.
func sendMessage(t *testing.T, c *client.Client, m *client.Message) (*client.SendResult, error) {
	t.Helper()
	p, err := c.NewProducer(toolGroup)
	if err != nil {
		return nil, err
	}
	defer p.Close(timeout(t))
	return p.Send(timeout(t), m)
}

func connectTo(t *testing.T, s *server.Server) *client.Client {
	t.Helper()
	c, err := client.New(client.WithNameServers(s.NamesrvAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeClient(c) })
	return c
}

// TestMessagesSurviveARestart sends, stops the server, starts it again on the same folder, and reads.
func TestMessagesSurviveARestart(t *testing.T) {
	for _, mode := range []string{"SYNC_FLUSH", "ASYNC_FLUSH"} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			s, stop := startServer(t, dir, "flushDiskType="+mode)
			c := connectTo(t, s)
			for i := range 20 {
				m := &client.Message{Topic: "Restart", Tags: "even", Keys: []string{fmt.Sprint("k", i)}, Properties: map[string]string{"n": fmt.Sprint(i)}, Body: fmt.Appendf(nil, "body %d", i)}
				if i%2 == 1 {
					m.Tags = "odd"
				}
				if _, err := sendMessage(t, c, m); err != nil {
					t.Fatal(err)
				}
			}
			stop()
			s, _ = startServer(t, dir, "flushDiskType="+mode)
			c = connectTo(t, s)
			r, err := c.Read(timeout(t), "Restart", "odd", client.Earliest)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			seen := map[string]bool{}
			for range 10 {
				m, err := r.Next(timeout(t))
				if err != nil {
					t.Fatal(err)
				}
				if m.Tags != "odd" || string(m.Body) != "body "+m.Properties["n"] || m.Keys[0] != "k"+m.Properties["n"] || seen[m.ID] {
					t.Errorf("%+v", m)
				}
				seen[m.ID] = true
			}
			// A parked read is woken by what arrives.
			if _, err := sendMessage(t, c, &client.Message{Topic: "Restart", Tags: "odd", Body: []byte("new"), Properties: map[string]string{"n": "new"}}); err != nil {
				t.Fatal(err)
			}
			if m, err := r.Next(timeout(t)); err != nil || string(m.Body) != "new" {
				t.Errorf("%v, %v", m, err)
			}
		})
	}
}

func TestSecondInstanceIsRefused(t *testing.T) {
	dir := t.TempDir()
	startServer(t, dir)
	c := config.New()
	for k, v := range map[string]string{"storePathRootDir": dir, "namesrvPort": "0", "listenPort": "0", "httpPort": "0"} {
		if err := c.Set(k, v, "test"); err != nil {
			t.Fatal(err)
		}
	}
	_, err := server.Start(c, server.Roles{NameServer: true, Broker: true}, slog.New(slog.DiscardHandler), time.Now())
	if err == nil || !strings.Contains(err.Error(), "another broker has the data folder") {
		t.Errorf("%v", err)
	}
}

// TestBadRequests: each gets an answer that names what was wrong, and the connection goes on.
func TestBadRequests(t *testing.T) {
	s, _ := startServer(t, t.TempDir())
	cl := connectTo(t, s)
	if _, err := sendMessage(t, cl, &client.Message{Topic: "Bad", Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	c, err := remoting.Dial(timeout(t), s.BrokerAddr, remoting.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Close(nil); c.Wait() }()
	send := func(topic string, queue int32, props string) *protocol.SendMessageRequest {
		return &protocol.SendMessageRequest{ProducerGroup: []byte("P"), Topic: []byte(topic), DefaultTopic: []byte("TBW102"), DefaultTopicQueueNums: 4, QueueID: queue, Properties: []byte(props)}
	}
	pull := func(topic string, queue int32, offset int64) *protocol.PullMessageRequest {
		return &protocol.PullMessageRequest{ConsumerGroup: []byte("G"), Topic: []byte(topic), QueueID: queue, QueueOffset: offset, MaxMsgNums: 1, SysFlag: protocol.PullSubscription}
	}
	field := func(kv ...string) protocol.Fields {
		var f protocol.Fields
		for i := 0; i < len(kv); i += 2 {
			f = append(f, protocol.Field{Key: []byte(kv[i]), Value: []byte(kv[i+1])})
		}
		return f
	}
	long := "K\x01" + strings.Repeat("v", 40_000) + "\x02"
	for _, x := range []struct {
		what   string
		code   protocol.RequestCode
		header any
		extra  protocol.Fields
		body   string
		want   protocol.ResponseCode
		remark string
	}{
		{"unknown code", 9999, nil, nil, "", protocol.RequestCodeNotSupported, " request type 9999 not supported"},
		{"no topic", protocol.SendMessageV2, nil, field("a", "P", "e", "0"), "x", protocol.InvalidParameter, "topic"},
		{"no queue", protocol.SendMessageV2, nil, field("b", "Bad"), "x", protocol.InvalidParameter, "queueId"},
		{"bad number", protocol.SendMessageV2, nil, field("b", "Bad", "e", "one"), "x", protocol.InvalidParameter, "one"},
		{"illegal topic name", protocol.SendMessageV2, send("no spaces", 0, ""), nil, "x", protocol.InvalidParameter, "The specified topic contains illegal characters"},
		{"long topic name", protocol.SendMessageV2, send(strings.Repeat("t", 128), 0, ""), nil, "x", protocol.InvalidParameter, "longer than topic max length"},
		{"queue out of range", protocol.SendMessageV2, send("Bad", 99, ""), nil, "x", protocol.InvalidParameter, "request queueId[99] is illegal"},
		{"schedule topic", protocol.SendMessageV2, send("SCHEDULE_TOPIC_XXXX", 0, ""), nil, "x", protocol.NoPermission, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."},
		{"no body", protocol.SendMessageV2, send("Bad", 0, ""), nil, "", protocol.MessageIllegal, "body is empty"},
		{"properties too long", protocol.SendMessageV2, send("Bad", 0, long), nil, "x", protocol.MessageIllegal, "properties"},
		{"body too long", protocol.SendMessageV2, send("Bad", 0, ""), nil, strings.Repeat("b", 5<<20), protocol.MessageIllegal, "maxMessageSize"},
		{"transaction", protocol.SendMessageV2, send("Bad", 0, "TRAN_MSG\x01true\x02"), nil, "x", protocol.NoPermission, "transaction"},
		{"timer", protocol.SendMessageV2, send("Bad", 0, "TIMER_DELAY_SEC\x0110\x02"), nil, "x", protocol.SystemError, "timer"},
		{"delay that is no number", protocol.SendMessageV2, send("Bad", 0, "DELAY\x01soon\x02"), nil, "x", protocol.SystemError, "DELAY"},
		{"torn batch", protocol.SendBatchMessage, send("Bad", 0, ""), nil, "torn", protocol.MessageIllegal, "batch"},
		{"pull of no topic", protocol.PullMessage, pull("Nowhere", 0, 0), nil, "", protocol.TopicNotExist, "Nowhere"},
		{"pull of no queue", protocol.PullMessage, pull("Bad", 99, 0), nil, "", protocol.InvalidParameter, "queueId[99] is illegal"},
		{"pull beyond the end", protocol.PullMessage, pull("Bad", 1, 1000), nil, "", protocol.PullOffsetMoved, ""},
		{"pull before the beginning", protocol.PullMessage, pull("Bad", 1, -5), nil, "", protocol.PullOffsetMoved, ""},
		{"commit of no group", protocol.UpdateConsumerOffset, nil, field("consumerGroup", "Nobody", "topic", "Bad", "queueId", "0", "commitOffset", "1"), "", protocol.SubscriptionGroupNotExist, "Nobody"},
		{"heartbeat that is no JSON", protocol.HeartBeat, nil, nil, "{", protocol.SystemError, "heartbeat"},
		{"lock by nobody", protocol.LockBatchMQ, nil, nil, `{"consumerGroup":"G","mqSet":[]}`, protocol.InvalidParameter, "clientId is missing"},
		{"unlock for no group", protocol.UnlockBatchMQ, nil, nil, `{"clientId":"c"}`, protocol.InvalidParameter, "consumerGroup is missing"},
		{"message that isn't there", protocol.ViewMessageByID, nil, field("offset", "123456789"), "", protocol.SystemError, "123456789"},
		{"send back of what isn't there", protocol.ConsumerSendMsgBack, nil, field("offset", "99999999", "group", "G", "delayLevel", "0"), "", protocol.SystemError, "99999999"},
		{"topic with a million queues", protocol.UpdateAndCreateTopic, &protocol.CreateTopicRequest{Topic: "Many", ReadQueueNums: 1_000_000, WriteQueueNums: 1, Perm: 6}, nil, "", protocol.InvalidParameter, "1000000 queues"},
		{"config over the wire", protocol.UpdateBrokerConfig, nil, nil, "flushDiskType=ASYNC_FLUSH\n", protocol.NoPermission, "Can not update config in black list."},
	} {
		a, err := c.Invoke(timeout(t), &remoting.Request{Code: x.code, Header: x.header, Extra: x.extra, Body: []byte(x.body)})
		if err != nil {
			t.Fatalf("%s: %v", x.what, err)
		}
		if a.Code != int32(x.want) || !strings.Contains(a.Remark, x.remark) {
			t.Errorf("%s: code %d, remark %q; want %d with %q", x.what, a.Code, a.Remark, x.want, x.remark)
		}
	}
	if _, err := sendMessage(t, cl, &client.Message{Topic: "Bad", Body: []byte("still here")}); err != nil {
		t.Error(err)
	}
}

func TestHealthPage(t *testing.T) {
	s, _ := startServer(t, t.TempDir())
	for path, want := range map[string]string{"/healthz": `"status":"ok"`, "/readyz": `"status":"ok"`, "/metrics": "apogee_parked_pulls 0"} {
		r, err := http.Get("http://" + s.HTTPAddr + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(b), want) {
			t.Errorf("%s: %d %.200s, %v", path, r.StatusCode, b, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestNewGroupStartsAtZero: a queue that never held a message answers offset 0, and a new group's %RETRY% topic has a
// route at the first look-up.
func TestNewGroupStartsAtZero(t *testing.T) {
	s, _ := startServer(t, t.TempDir())
	cl := connectTo(t, s)
	if _, err := sendMessage(t, cl, &client.Message{Topic: "Young", Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	names, err := remoting.Dial(timeout(t), s.NamesrvAddr, remoting.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { names.Close(nil); names.Wait() }()
	a, err := names.Invoke(timeout(t), &remoting.Request{Code: protocol.GetRouteInfoByTopic, Header: &protocol.RouteRequest{Topic: "%RETRY%brand-new"}})
	if err != nil || a.Code != 0 {
		t.Fatalf("%+v, %v", a, err)
	}
	var route protocol.TopicRouteData
	if err := json.Unmarshal(a.Body, &route); err != nil || len(route.QueueDatas) != 1 || route.BrokerDatas[0].BrokerAddrs[0] != s.BrokerAddr {
		t.Errorf("%s, %v", a.Body, err)
	}
	c, err := remoting.Dial(timeout(t), s.BrokerAddr, remoting.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Close(nil); c.Wait() }()
	no := false
	for _, x := range []struct {
		h    protocol.QueryConsumerOffsetRequest
		want protocol.ResponseCode
	}{
		{protocol.QueryConsumerOffsetRequest{ConsumerGroup: "G", Topic: "Young", QueueID: 0}, protocol.Success},
		{protocol.QueryConsumerOffsetRequest{ConsumerGroup: "G", Topic: "Young", QueueID: 3}, protocol.Success},
		{protocol.QueryConsumerOffsetRequest{ConsumerGroup: "G", Topic: "Young", QueueID: 3, SetZeroIfNotFound: &no}, protocol.QueryNotFound},
		{protocol.QueryConsumerOffsetRequest{ConsumerGroup: "G", Topic: "Nowhere", QueueID: 0}, protocol.QueryNotFound},
	} {
		a, err := c.Invoke(timeout(t), &remoting.Request{Code: protocol.QueryConsumerOffset, Header: &x.h})
		if err != nil || a.Code != int32(x.want) {
			t.Errorf("%+v: %+v, %v", x.h, a, err)
		}
		if v, _ := a.Fields.Get("offset"); x.want == protocol.Success && string(v) != "0" {
			t.Errorf("%+v: offset %s", x.h, v)
		}
	}
}
