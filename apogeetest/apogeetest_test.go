package apogeetest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/apogeemq/apogee/apogeetest"
	"github.com/apogeemq/apogee/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func timeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// connect returns a producer of a client of its own.
func connect(t *testing.T, s *apogeetest.Server) (*client.Client, *client.Producer) {
	t.Helper()
	c, err := client.New(client.WithNameServers(s.NameServer()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	p, err := c.NewProducer("producers")
	if err != nil {
		t.Fatal(err)
	}
	return c, p
}

// sendAll sends bodies, each again until the server takes it.
func sendAll(t *testing.T, p *client.Producer, bodies ...string) {
	t.Helper()
	ctx := timeout(t)
	for _, b := range bodies {
		for {
			_, err := p.Send(ctx, &client.Message{Topic: "Orders", Body: []byte(b)})
			if err == nil {
				break
			}
			if !client.Classify(err).Retriable || ctx.Err() != nil {
				t.Fatalf("send %s: %v", b, err)
			}
		}
	}
}

// readAll reads as many messages as there are wanted bodies and compares them as a set.
func readAll(t *testing.T, c *client.Client, want ...string) {
	t.Helper()
	ctx := timeout(t)
	r, err := c.Read(ctx, "Orders", "", client.Earliest)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	missing := map[string]bool{}
	for _, b := range want {
		missing[b] = true
	}
	for len(missing) > 0 {
		m, err := r.Next(ctx)
		if err != nil {
			t.Fatalf("%v while waiting for %v", err, missing)
		}
		delete(missing, string(m.Body))
	}
}

func TestMessagesGoThrough(t *testing.T) {
	s := apogeetest.Start(t, apogeetest.WithSetting("defaultTopicQueueNums", "2"))
	c, p := connect(t, s)
	sendAll(t, p, "a", "b", "c")
	readAll(t, c, "a", "b", "c")
}

func TestServersOfOneProcessKnowNothingOfEachOther(t *testing.T) {
	for i := range 6 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			s := apogeetest.Start(t)
			c, p := connect(t, s)
			body := fmt.Sprint("of ", i)
			sendAll(t, p, body)
			r, err := c.Read(timeout(t), "Orders", "", client.Earliest)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if m, err := r.Next(timeout(t)); err != nil || string(m.Body) != body {
				t.Errorf("got %v, %v, want %q", m, err, body)
			}
		})
	}
}

func TestARestartKeepsMessagesAndAddresses(t *testing.T) {
	s := apogeetest.Start(t)
	c, p := connect(t, s)
	addresses := s.NameServer() + s.Broker() + s.HTTP()
	var sent []string
	for i := range 4 {
		sent = append(sent, fmt.Sprint("message ", i))
		sendAll(t, p, sent[i])
		s.Restart()
		if now := s.NameServer() + s.Broker() + s.HTTP(); now != addresses {
			t.Fatalf("addresses %s, want %s", now, addresses)
		}
	}
	readAll(t, c, sent...) // by the client that was there before
	fresh, _ := connect(t, s)
	readAll(t, fresh, sent...)
}

func TestAStoppedServerRefusesConnections(t *testing.T) {
	s := apogeetest.Start(t)
	s.Stop()
	s.Stop()
	s.DropConnections()
	for _, addr := range []string{s.NameServer(), s.Broker(), s.HTTP()} {
		nc, err := net.Dial("tcp", addr)
		if err == nil {
			_ = nc.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial %s: %v, want a refusal", addr, err)
		}
		// The port is kept: nobody else may listen on it for long, but a listener of ours can.
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Errorf("listen on %s: %v", addr, err)
			continue
		}
		_ = l.Close()
	}
	s.Restart()
	c, p := connect(t, s)
	sendAll(t, p, "after")
	readAll(t, c, "after")
}

func TestDroppedConnectionsCanBeMadeAnew(t *testing.T) {
	s := apogeetest.Start(t)
	for _, addr := range []string{s.NameServer(), s.Broker()} {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		// A frame that announces more than it brings shows that the server has the connection: it is not in the
		// queue of those to be accepted. Its answer to a whole one would do as well.
		request := `{"code":105,"extFields":{"topic":"none"},"flag":0,"language":"GO","opaque":1,"version":1}`
		frame := fmt.Appendf(nil, "\x00\x00\x00%c\x00\x00\x00%c%s", len(request)+4, len(request), request)
		if _, err := nc.Write(frame); err != nil {
			t.Fatal(err)
		}
		_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
		if n, err := nc.Read(make([]byte, 4096)); n == 0 {
			t.Fatalf("%s doesn't answer: %v", addr, err)
		}
		s.DropConnections()
		if _, err := io.Copy(io.Discard, nc); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v, want the end of the connection", addr, err)
		}
	}
	c, p := connect(t, s)
	sendAll(t, p, "one")
	s.DropConnections()
	sendAll(t, p, "two")
	readAll(t, c, "one", "two")
}

func TestAFolderIsKept(t *testing.T) {
	dir := t.TempDir()
	t.Run("before", func(t *testing.T) {
		s := apogeetest.Start(t, apogeetest.WithDir(dir))
		if s.Dir() != dir {
			t.Errorf("folder %s, want %s", s.Dir(), dir)
		}
		_, p := connect(t, s)
		sendAll(t, p, "kept")
	})
	t.Run("after", func(t *testing.T) {
		c, _ := connect(t, apogeetest.Start(t, apogeetest.WithDir(dir), apogeetest.WithSetting("flushDiskType", "SYNC_FLUSH")))
		readAll(t, c, "kept")
	})
}

func TestTheHealthPageAnswers(t *testing.T) {
	s := apogeetest.Start(t)
	tr := &http.Transport{DisableKeepAlives: true}
	res, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Get("http://" + s.HTTP() + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("status %s", res.Status)
	}
}

// failing is a test that notes why it failed.
type failing struct {
	testing.TB
	why string
}

func (f *failing) Helper() {}
func (f *failing) Fatal(args ...any) {
	f.why = fmt.Sprint(args...)
	runtime.Goexit()
}
func (f *failing) Fatalf(format string, args ...any) {
	f.why = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestWhatCannotStartFailsTheTest: and says why.
func TestWhatCannotStartFailsTheTest(t *testing.T) {
	running := apogeetest.Start(t)
	for want, opt := range map[string]apogeetest.Option{
		"flushDiskType=SOMETIMES":                        apogeetest.WithSetting("flushDiskType", "SOMETIMES"),
		"did you mean flushDiskType?":                    apogeetest.WithSetting("flushDiskTyp", "SYNC_FLUSH"),
		"has no meaning here":                            apogeetest.WithSetting("sendMessageThreadPoolNums", "4"),
		"another broker has the data folder":             apogeetest.WithDir(running.Dir()),
		"listen on " + running.NameServer() + ": listen": apogeetest.WithSetting("namesrvPort", running.NameServer()[strings.LastIndex(running.NameServer(), ":")+1:]),
	} {
		f := &failing{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			apogeetest.Start(f, opt)
		}()
		<-done
		if !strings.Contains(f.why, want) {
			t.Errorf("failed with %q, want %q in it", f.why, want)
		}
	}
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		apogeetest.Start(b).Stop()
	}
}
