package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/apogeemq/apogee/client"
)

// feed sends numbered messages to a topic at a rate; each of its keys has numbers of its own that rise by one. What
// was acknowledged is what must arrive.
type feed struct {
	topic string
	mu    sync.Mutex
	acked map[[2]uint32]time.Time // by key and number
	tried int
	since time.Time // messages sent before don't count: the topic was deleted then
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

const keys = 16

func (f *feed) run(p *client.Producer, rate int) {
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	f.acked = map[[2]uint32]time.Time{}
	for key := range uint32(keys) {
		f.wg.Go(func() {
			pace := time.NewTicker(time.Second * keys / time.Duration(rate))
			defer pace.Stop()
			for n := uint32(1); ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-pace.C:
				}
				body := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, key), n)
				began := time.Now()
				send, cancel := context.WithTimeout(ctx, 3*time.Second)
				_, err := p.Send(send, &client.Message{Topic: f.topic, ShardingKey: fmt.Sprint("key", key), Body: append(body, make([]byte, 200)...)})
				cancel()
				f.mu.Lock()
				f.tried++
				if err == nil && began.After(f.since) {
					f.acked[[2]uint32{key, n}] = time.Now()
				}
				f.mu.Unlock()
			}
		})
	}
}

func (f *feed) end() {
	f.stop()
	f.wg.Wait()
}

// group is a consumer group and what it handled.
type group struct {
	name    string
	feed    *feed
	ordered bool

	mu    sync.Mutex
	seen  map[[2]uint32]int
	last  map[uint32]uint32 // by key, of an ordered group
	late  [][2]uint32       // messages that came behind a later one of their key without having been handled before
	at    time.Time         // of the newest message
	total int
	close []func(context.Context) error
}

func newGroup(name string, f *feed, ordered bool) *group {
	return &group{name: name, feed: f, ordered: ordered, seen: map[[2]uint32]int{}, last: map[uint32]uint32{}}
}

func (g *group) got(body []byte) {
	id := [2]uint32{binary.BigEndian.Uint32(body), binary.BigEndian.Uint32(body[4:])}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total++
	g.at = time.Now()
	if g.seen[id]++; g.seen[id] == 1 {
		if id[1] < g.last[id[0]] {
			g.late = append(g.late, id)
		}
		g.last[id[0]] = id[1]
	}
}

// missing returns the acknowledged messages that the group never handled.
func (g *group) missing() (n int, example [2]uint32) {
	g.feed.mu.Lock()
	defer g.feed.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for id := range g.feed.acked {
		if g.seen[id] == 0 {
			n, example = n+1, id
		}
	}
	return n, example
}

// wrong counts what came out of order. A send that wasn't acknowledged may take effect behind a later one.
func (g *group) wrong() int {
	g.feed.mu.Lock()
	defer g.feed.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, id := range g.late {
		if _, ok := g.feed.acked[id]; ok {
			n++
		}
	}
	return n
}

// newest returns when the group handled its newest message.
func (g *group) newest() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.at
}

func (g *group) twice() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, k := range g.seen {
		n += k - 1
	}
	return n
}

// consume adds a member to the group.
func (w *world) consume(g *group, opts ...client.ConsumerOption) (*client.Client, error) {
	c, err := w.client()
	if err != nil {
		return nil, err
	}
	opts = append(opts, client.WithFrom(client.FromEarliest), client.WithHandler(g.feed.topic, client.All, func(_ context.Context, m *client.Message) error {
		g.got(m.Body)
		return nil
	}))
	co, err := c.NewConsumer(g.name, opts...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return c, co.Start(ctx)
}

// poll adds a poller to the group.
func (w *world) poll(g *group) error {
	c, err := w.client()
	if err != nil {
		return err
	}
	p, err := c.NewPoller(g.name, client.WithSubscription(g.feed.topic, client.All), client.WithFrom(client.FromEarliest))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.Start(ctx); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			ms, err := p.Poll(context.Background())
			if err != nil {
				return
			}
			for _, m := range ms {
				g.got(m.Body)
			}
			p.Commit(ms...)
		}
	}()
	g.close = append(g.close, func(ctx context.Context) error {
		err := c.Close(ctx)
		<-done
		return err
	})
	return nil
}

// beChild is a consumer in a process of its own, which is killed some time. It prints key and number of what it
// handles.
func beChild(names string) error {
	c, err := client.New(client.WithNameServers(names))
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	var mu sync.Mutex
	co, err := c.NewConsumer("killed", client.WithFrom(client.FromEarliest), client.WithHandler("chaos", client.All, func(_ context.Context, m *client.Message) error {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(out, binary.BigEndian.Uint32(m.Body), binary.BigEndian.Uint32(m.Body[4:]))
		return out.Flush()
	}))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := co.Start(ctx); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent goes
	bye, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	return c.Close(bye)
}

// children are the members of a group that are killed.
type children struct {
	w    *world
	g    *group
	cmds []*exec.Cmd
	ins  []io.Closer
	wg   sync.WaitGroup
}

func (c *children) start() error {
	cmd := exec.Command(c.w.self, "-child", c.w.namesAddr)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.cmds, c.ins = append(c.cmds, cmd), append(c.ins, in)
	c.wg.Go(func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var key, n string
			if k, _ := fmt.Sscan(lines.Text(), &key, &n); k != 2 {
				continue
			}
			a, err1 := strconv.ParseUint(key, 10, 32)
			b, err2 := strconv.ParseUint(n, 10, 32)
			if err1 == nil && err2 == nil {
				c.g.got(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(a)), uint32(b)))
			}
		}
		_ = cmd.Wait()
	})
	return nil
}

// kill kills the oldest one and starts another.
func (c *children) kill() error {
	_ = c.cmds[0].Process.Kill()
	c.cmds, c.ins = c.cmds[1:], c.ins[1:]
	return c.start()
}

func (c *children) end() {
	for _, in := range c.ins {
		_ = in.Close()
	}
	c.wg.Wait()
}
