package goclient

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// childSpec says what a consumer in a process of its own is to do.
type childSpec struct {
	Names, Group, Topic, Instance string
	Members                       int           // of the group, for which it waits before it takes a queue
	LockInterval                  time.Duration // of the client's renewal of its locks; 0 leaves the client's 20 s
}

// event is a line that the child prints.
type event struct {
	At      int64 // UnixNano
	What    string
	Queue   int   `json:",omitempty"` // got
	Offset  int64 `json:",omitempty"` // got
	Number  int   `json:",omitempty"` // got: the body
	Members int   `json:",omitempty"` // balance
	Queues  []int `json:",omitempty"` // balance: its own
}

const (
	evStarted = "started"
	evBalance = "balance"
	evGot     = "got"
	evEnding  = "ending" // the client's Shutdown begins
	evEnded   = "ended"
)

// child is an ordered consumer with the client's defaults; it ends cleanly when its standard input does. It returns
// the exit status.
//
// It takes no queue before the whole group is there. Without that the first member has all queues for a moment, and
// the client gives queues up without unlocking them, so that the second waits for the lease of 60 s to run out, on
// whatever broker.
func child(spec string) int {
	var k childSpec
	if err := json.Unmarshal([]byte(spec), &k); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(e event) {
		mu.Lock()
		defer mu.Unlock()
		e.At = time.Now().UnixNano()
		_ = out.Encode(e)
	}
	complete := false
	strategy := func(group, me string, queues []*primitive.MessageQueue, members []string) []*primitive.MessageQueue {
		mu.Lock()
		complete = complete || len(members) == k.Members
		waiting := !complete
		mu.Unlock()
		if waiting {
			return nil
		}
		mine := consumer.AllocateByAveragely(group, me, queues, members)
		if len(queues) > 0 && queues[0].Topic == k.Topic {
			e := event{What: evBalance, Members: len(members)}
			for _, q := range mine {
				e.Queues = append(e.Queues, q.QueueId)
			}
			say(e)
		}
		return mine
	}
	opts := []consumer.Option{
		consumer.WithNameServer([]string{k.Names}), consumer.WithGroupName(k.Group), consumer.WithInstance(k.Instance),
		consumer.WithConsumerOrder(true), consumer.WithStrategy(strategy), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
	if k.LockInterval > 0 {
		opts = append(opts, consumer.WithRebalanceLockInterval(k.LockInterval))
	}
	c, err := rocketmq.NewPushConsumer(opts...)
	if err == nil {
		err = c.Subscribe(k.Topic, consumer.MessageSelector{}, func(_ context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, m := range ms {
				n, _ := strconv.Atoi(string(m.Body))
				say(event{What: evGot, Queue: m.Queue.QueueId, Offset: m.QueueOffset, Number: n})
			}
			return consumer.ConsumeSuccess, nil
		})
	}
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	say(event{What: evStarted})
	_, _ = io.Copy(io.Discard, os.Stdin)
	say(event{What: evEnding})
	_ = c.Shutdown()
	say(event{What: evEnded})
	return 0
}

// process is a running child.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{} // closed when its output ended

	mu     sync.Mutex
	events []event
}

func (c *testCase) startChild(k childSpec) *process {
	c.Helper()
	spec, err := json.Marshal(k)
	c.must(err)
	self, err := os.Executable()
	c.must(err)
	p := &process{name: k.Instance, cmd: exec.Command(self), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), envChild+"="+string(spec))
	p.cmd.Stderr = os.Stderr
	p.stdin, err = p.cmd.StdinPipe()
	c.must(err)
	out, err := p.cmd.StdoutPipe()
	c.must(err)
	c.must(p.cmd.Start())
	go func() {
		defer close(p.ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var e event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				continue // the last line of a killed one
			}
			p.mu.Lock()
			p.events = append(p.events, e)
			p.mu.Unlock()
		}
	}()
	c.Cleanup(func() { p.kill() })
	return p
}

// kill ends the process without a word, and waits for it. It may have ended before.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
	_ = p.cmd.Wait()
}

// all returns the child's events of a kind since a moment.
func (p *process) all(what string, since time.Time) []event {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []event
	for _, e := range p.events {
		if e.What == what && e.At >= since.UnixNano() {
			out = append(out, e)
		}
	}
	return out
}

// first returns the child's first event of a kind since a moment that fits.
func (p *process) first(what string, since time.Time, fits func(event) bool) (event, bool) {
	list := p.all(what, since)
	i := slices.IndexFunc(list, fits)
	if i < 0 {
		return event{}, false
	}
	return list[i], true
}

// queues returns which queues the child got messages of since a moment, sorted.
func (p *process) queues(since time.Time) []int {
	out := []int{}
	for _, e := range p.all(evGot, since) {
		if !slices.Contains(out, e.Queue) {
			out = append(out, e.Queue)
		}
	}
	slices.Sort(out)
	return out
}

// consumed is a message that a process got.
type consumed struct {
	event
	who string
}

// history puts together, by their time stamps, what several processes of one machine got.
func history(ps ...*process) []consumed {
	var list []consumed
	for _, p := range ps {
		for _, e := range p.all(evGot, time.Time{}) {
			list = append(list, consumed{e, p.name})
		}
	}
	slices.SortStableFunc(list, func(a, b consumed) int { return cmp.Compare(a.At, b.At) })
	return list
}
