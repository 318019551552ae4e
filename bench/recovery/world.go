package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apogeemq/apogee/bench/drive"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/store"
)

const (
	queues      = 4
	bodySize    = 1024
	segmentSize = 1 << 30
	// enlargeBy is how many commit-log files are put before the first one; the log begins there.
	enlargeBy = 90
	group     = "recovery-group"
)

// ending is how the process before the measured one ended.
type ending bool

const (
	killed  ending = true
	stopped ending = false
)

func (e ending) String() string {
	if e == killed {
		return "kill -9"
	}
	return "a clean stop"
}

type world struct {
	bin, peer, dir string
	bytes          int64
	topics         int
	load           time.Duration
	messages       int64

	now   *drive.Process // running
	who   string
	ended string // who was ended last
}

func (w *world) store() string { return filepath.Join(w.dir, "store") }

func topicName(i int) string { return fmt.Sprintf("recovery-%d", i) }

func (w *world) start(who string) (*drive.Process, error) {
	if who == "Java" {
		port, err := drive.FreePort()
		if err != nil {
			return nil, err
		}
		// No name server: nothing of what is measured needs one.
		return drive.Java(w.peer, w.dir, port, "127.0.0.1:9", "diskMaxUsedSpaceRatio=99")
	}
	return drive.Ours(w.bin, "server", "--data", w.store(), "--namesrv-port", "0", "--broker-port", "0", "--http-port", "0", "--log-level", "error",
		"--set", "brokerName=java-broker", "--set", "brokerClusterName=DefaultCluster")
}

// build makes the topics through a server and fills the log through the store itself.
func (w *world) build() error {
	// The log begins where room for more files before it is left.
	if err := os.MkdirAll(filepath.Join(w.store(), "commitlog"), 0o755); err != nil {
		return err
	}
	first := filepath.Join(w.store(), "commitlog", fmt.Sprintf("%020d", enlargeBy*segmentSize))
	f, err := os.Create(first)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(segmentSize), f.Close()); err != nil {
		return err
	}
	p, err := w.start("Apogee")
	if err != nil {
		return err
	}
	if err := errors.Join(w.makeTopics(p), p.Stop()); err != nil {
		return err
	}
	s, err := store.Open(store.Options{Dir: w.store(), Flush: store.AsyncFlush})
	if err != nil {
		return err
	}
	return errors.Join(w.fill(s), s.Close())
}

func (w *world) makeTopics(p *drive.Process) error {
	c, err := drive.Dial(p.Addr)
	if err != nil {
		return err
	}
	defer drive.CloseConn(c)
	for i := range w.topics {
		h := &protocol.CreateTopicRequest{Topic: topicName(i), DefaultTopic: "TBW102", ReadQueueNums: queues, WriteQueueNums: queues, Perm: 6, TopicFilterType: "SINGLE_TAG"}
		if _, err := drive.Call(c, protocol.UpdateAndCreateTopic, h, nil); err != nil {
			return err
		}
	}
	return nil
}

// window lets a number of appends wait at once.
type window struct {
	free chan struct{}
	mu   sync.Mutex
	err  error
}

// Appended implements store.Waiter.
func (w *window) Appended(r store.Result) {
	if r.Err != nil {
		w.mu.Lock()
		w.err = r.Err
		w.mu.Unlock()
	}
	w.free <- struct{}{}
}

func (w *world) fill(s *store.Store) error {
	in := &window{free: make(chan struct{}, 1024)}
	for range cap(in.free) {
		in.free <- struct{}{}
	}
	body := make([]byte, bodySize)
	for i := range body {
		body[i] = byte('a' + i%26)
	}
	from := s.MaxPhysical()
	for s.MaxPhysical()-from < w.bytes {
		<-in.free
		in.mu.Lock()
		err := in.err
		in.mu.Unlock()
		if err != nil {
			return err
		}
		n := w.messages
		props := message.AppendProperty(message.AppendProperty(nil, message.PropertyKeys, strconv.FormatInt(n, 10)), message.PropertyTags, "t")
		s.Append(&message.Message{Topic: topicName(int(n) % w.topics), QueueID: int32(n) / int32(w.topics) % queues, Body: body, Properties: props}, in)
		w.messages++
	}
	for range cap(in.free) {
		<-in.free
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.err
}

// end ends the process that runs, or one that is started for it, under load for a kill.
func (w *world) end(e ending) (err error) {
	if w.now == nil {
		w.who = "Apogee"
		if w.now, err = w.start(w.who); err != nil {
			return err
		}
	}
	p := w.now
	w.now, w.ended = nil, w.who
	if e == stopped {
		return p.Stop()
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() { w.press(p, i, stop) })
	}
	time.Sleep(w.load)
	p.Kill()
	close(stop)
	wg.Wait()
	return nil
}

// press sends until the process is gone.
func (w *world) press(p *drive.Process, i int, stop chan struct{}) {
	c, err := drive.Dial(p.Addr)
	if err != nil {
		return
	}
	defer drive.CloseConn(c)
	for n := i; ; n += 16 {
		select {
		case <-stop:
			return
		default:
		}
		m := message.Message{Body: make([]byte, bodySize), Properties: message.AppendProperty(nil, message.PropertyKeys, fmt.Sprint("p", n))}
		if _, err := drive.Send(c, topicName(n%w.topics), int32(n%queues), m); err != nil {
			return
		}
	}
}

// figures are one start's.
type figures struct {
	send, pull time.Duration
	read       int64 // by system calls, until both were there; mapped pages are not counted
}

func (w *world) measure(who string) (f figures, err error) {
	p, err := w.start(who)
	if err != nil {
		return f, err
	}
	w.now, w.who = p, who
	c, err := drive.Dial(p.Addr)
	if err != nil {
		return f, err
	}
	defer drive.CloseConn(c)
	if f.send, err = w.firstSend(p, c); err != nil {
		return f, err
	}
	// Another topic's backlog, from where the group would begin.
	topic := topicName(w.topics / 2)
	a, err := drive.Call(c, protocol.GetMinOffset, &protocol.QueueRequest{Topic: topic, QueueID: 1}, nil)
	if err != nil {
		return f, err
	}
	var at protocol.OffsetResponse
	if err := protocol.Decode(a.Fields, &at); err != nil {
		return f, err
	}
	got := 0
	for deadline := time.Now().Add(drive.StartWithin); got == 0; {
		if time.Now().After(deadline) {
			return f, errors.New("nothing can be consumed")
		}
		if _, _, err := drive.Pull(c, group, topic, 1, at.Offset, func(*message.Message) error { got++; return nil }); err != nil && !drive.IsCode(err, protocol.SubscriptionGroupNotExist) {
			return f, err
		}
	}
	f.pull = time.Since(p.Began)
	if who == "Apogee" {
		f.read, err = p.BytesRead()
	}
	return f, err
}

// firstSend sends until a send is acknowledged.
func (w *world) firstSend(p *drive.Process, c *remoting.Conn) (time.Duration, error) {
	deadline := time.Now().Add(drive.StartWithin)
	for {
		_, err := drive.Send(c, topicName(0), 0, message.Message{Body: []byte("first")})
		if err == nil {
			return time.Since(p.Began), nil
		}
		if time.Now().After(deadline) || !strings.Contains(err.Error(), "code ") {
			return 0, err
		}
		time.Sleep(time.Millisecond)
	}
}

// enlarge puts files before the log's first one. They hold nothing: a start that looked at their records would fail.
func (w *world) enlarge() error {
	if w.now != nil {
		if err := w.now.Stop(); err != nil {
			return err
		}
		w.now = nil
	}
	for i := range enlargeBy {
		f, err := os.Create(filepath.Join(w.store(), "commitlog", fmt.Sprintf("%020d", i*segmentSize)))
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(segmentSize), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
