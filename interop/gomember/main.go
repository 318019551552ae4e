// Command gomember is a member of an ordered group in a process of its own, of package client, as Member of
// interop/java is one of the Java client: NAMESRV GROUP TOPIC ID. It prints the same lines, which begin with a word and the
// milliseconds of the clock:
//
//	got MILLIS QUEUE OFFSET BODY       a message was consumed
//	queues MILLIS Q,Q…                 the queues that it has changed
//	waits MILLIS Q: WHY; Q: WHY…       its share that it doesn't have, at most once a second; Member has no such line
//	stopping MILLIS / stopped MILLIS   around the clean end, which a line "stop" on standard input asks for
//
// When standard input ends without "stop", the parent is gone and the process ends itself at once.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apogeemq/apogee/client"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "gomember: want NAMESRV GROUP TOPIC ID")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "gomember:", err)
		os.Exit(2)
	}
}

// printer writes whole lines.
type printer struct{ mu sync.Mutex }

func (p *printer) line(word, rest string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Printf("%s %d %s\n", word, time.Now().UnixMilli(), rest)
}

func run(names, group, topic, id string) error {
	var out printer
	c, err := client.New(client.WithNameServers(names), client.WithClientID(id), client.WithTimeout(15*time.Second))
	if err != nil {
		return err
	}
	co, err := c.NewConsumer(group, client.WithOrdered(), client.WithFrom(client.FromEarliest), client.WithHandler(topic, client.All, func(_ context.Context, m *client.Message) error {
		out.line("got", fmt.Sprintf("%d %d %s", m.Queue, m.QueueOffset, m.Body))
		return nil
	}))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := co.Start(ctx); err != nil {
		return err
	}
	stop := make(chan bool, 1)
	go func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		stop <- strings.TrimSpace(line) == "stop"
	}()
	last := "-"
	var said time.Time // of waits
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case clean := <-stop:
			if !clean {
				os.Exit(3)
			}
			out.line("stopping", "")
			bye, cancel := context.WithTimeout(context.Background(), 15*time.Second)
			defer cancel()
			if err := c.Close(bye); err != nil {
				return err
			}
			out.line("stopped", "")
			return nil
		case <-t.C:
		}
		var queues, waiting []string
		for _, q := range co.Status() {
			waits := strings.HasPrefix(q.Reason, "waiting for its lock") || strings.HasPrefix(q.Reason, "given up")
			switch {
			case q.Queue.Topic != topic || !q.Mine:
			case waits:
				waiting = append(waiting, fmt.Sprintf("%d: %s", q.Queue.ID, q.Reason))
			default:
				queues = append(queues, fmt.Sprint(q.Queue.ID))
			}
		}
		if now := strings.Join(queues, ","); now != last {
			out.line("queues", now)
			last = now
		}
		if len(waiting) > 0 && time.Since(said) >= time.Second {
			out.line("waits", strings.Join(waiting, "; "))
			said = time.Now()
		}
	}
}
