// Command clientfigures measures what the Go client promises, on a server of its own: how soon the first message
// comes, what a rolling restart costs, and whether deadlines hold. It prints each figure with its goal and ends with
// status 1 when one isn't met.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

func main() {
	bin := flag.String("bin", "bin/apogee", "server to measure with")
	what := flag.String("only", "", "first, handover or deadlines; default: all")
	names := flag.String("namesrv", "", "measure with the server at this name server instead, a Java one for example; without deadlines")
	broker := flag.String("broker", "", "that server's broker")
	rate := flag.Int("rate", 5000, "handover: messages a second")
	var peers []peer
	flag.Func("peer", "NAME=COMMAND: compare with this client; any number of them (see make client-compare)", func(s string) error {
		p, err := parsePeer(s)
		peers = append(peers, p)
		return err
	})
	page := flag.String("page", "docs/client.md", "where the table of the comparison goes")
	flag.Parse()
	if flag.Arg(0) == "peer" {
		if err := bePeer(flag.Args()[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "clientfigures:", err)
			os.Exit(2)
		}
		return
	}
	if len(peers) > 0 {
		s, err := start(*bin)
		if err == nil {
			err = compare(s, peers, *rate, *page)
			s.stop()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "clientfigures:", err)
			os.Exit(2)
		}
		return
	}
	ok := true
	for _, f := range []struct {
		name string
		run  func(*server) (bool, error)
	}{
		{"first", first},
		{"handover", func(s *server) (bool, error) { return handover(s, *rate) }},
		{"deadlines", deadlines},
	} {
		if *what != "" && *what != f.name {
			continue
		}
		var s *server
		var err error
		switch {
		case *names == "":
			s, err = start(*bin)
		case f.name == "deadlines":
			continue // it stops the server
		default:
			s = &server{names: *names, broker: *broker}
		}
		if err == nil {
			var good bool
			good, err = f.run(s)
			ok = ok && good
			s.stop()
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "clientfigures %s: %v\n", f.name, err)
			os.Exit(2)
		}
	}
	if !ok {
		os.Exit(1)
	}
}

// figure prints one line and reports whether the goal is met.
func figure(name, value, goal string, met bool) bool {
	mark := "met"
	if !met {
		mark = "NOT MET"
	}
	fmt.Printf("%-62s %-24s goal %-14s %s\n", name, value, goal, mark)
	return met
}

type server struct {
	cmd           *exec.Cmd
	dir           string
	names, broker string
}

var readyLine = regexp.MustCompile(`namesrv=(\S+) broker=(\S+) http=(\S+)`)

func start(bin string) (*server, error) {
	dir, err := os.MkdirTemp("", "clientfigures")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir, cmd: exec.Command(bin, "server", "--data", dir, "--namesrv-port", "0", "--broker-port", "0", "--http-port", "0", "--log-level", "error", "--set", "flushDiskType=ASYNC_FLUSH")}
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	m := readyLine.FindStringSubmatch(line)
	if m == nil {
		s.stop()
		return nil, fmt.Errorf("server said %q: %v", line, err)
	}
	s.names, s.broker = m[1], m[2]
	return s, nil
}

func (s *server) stop() {
	if s.cmd == nil {
		return // somebody else's
	}
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

func (s *server) client() (*client.Client, error) { return client.New(client.WithNameServers(s.names)) }

// makeTopics makes topics named prefix0, prefix1 and so on, and waits until the name server knows the last one.
func (s *server) makeTopics(prefix string, n, queues int) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := remoting.Dial(ctx, s.broker, remoting.DialOptions{})
	if err != nil {
		return nil, err
	}
	defer conn.Close(nil)
	var names []string
	for i := range n {
		name := fmt.Sprint(prefix, i)
		a, err := conn.Invoke(ctx, &remoting.Request{Code: protocol.UpdateAndCreateTopic, Header: &protocol.CreateTopicRequest{Topic: name, DefaultTopic: "TBW102",
			ReadQueueNums: int32(queues), WriteQueueNums: int32(queues), Perm: 6, TopicFilterType: "SINGLE_TAG"}})
		if err != nil {
			return nil, err
		}
		if a.Code != 0 {
			return nil, fmt.Errorf("create topic %s: %s", name, a.Remark)
		}
		names = append(names, name)
	}
	c, err := s.client()
	if err != nil {
		return nil, err
	}
	defer c.Close(ctx)
	for {
		if q, err := c.Queues(ctx, names[n-1]); err == nil && len(q) == queues {
			return names, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// first measures the time from NewConsumer to the first message, of a client that knows nothing yet and subscribes 50
// topics with 1,000 queues.
func first(s *server) (bool, error) {
	const topics, queues, runs = 50, 20, 9
	names, err := s.makeTopics("first", topics, queues)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := s.client()
	if err != nil {
		return false, err
	}
	defer c.Close(ctx)
	p, err := c.NewProducer("figures")
	if err != nil {
		return false, err
	}
	if _, err := p.Send(ctx, &client.Message{Topic: names[topics/2], Body: []byte("x")}); err != nil {
		return false, err
	}
	measure := func(group string, from client.From, trigger func() error) (time.Duration, error) {
		own, err := s.client()
		if err != nil {
			return 0, err
		}
		defer own.Close(ctx)
		got := make(chan time.Time, 10)
		opts := []client.ConsumerOption{client.WithFrom(from)}
		for _, n := range names {
			opts = append(opts, client.WithHandler(n, client.All, func(context.Context, *client.Message) error {
				select {
				case got <- time.Now():
				default:
				}
				return nil
			}))
		}
		began := time.Now()
		co, err := own.NewConsumer(group, opts...)
		if err != nil {
			return 0, err
		}
		if err := co.Start(ctx); err != nil {
			return 0, err
		}
		if trigger != nil {
			if err := trigger(); err != nil {
				return 0, err
			}
		}
		select {
		case at := <-got:
			return at.Sub(began), nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	var waiting, fresh []time.Duration
	for i := range runs {
		d, err := measure(fmt.Sprintf("first-%d-%d", os.Getpid(), i), client.FromEarliest, nil)
		if err != nil {
			return false, err
		}
		waiting = append(waiting, d)
		d, err = measure(fmt.Sprintf("latest-%d-%d", os.Getpid(), i), client.FromLatest, func() error {
			_, err := p.Send(ctx, &client.Message{Topic: names[topics/3], Body: []byte("y")})
			return err
		})
		if err != nil {
			return false, err
		}
		fresh = append(fresh, d)
	}
	w, f := median(waiting), median(fresh)
	ok := figure(fmt.Sprintf("subscribe to first delivery, %d queues of %d topics, waiting message", topics*queues, topics), w.Round(10*time.Microsecond).String(), "< 100ms", w < 100*time.Millisecond)
	return figure("the same, FromLatest, message sent after Start", f.Round(10*time.Microsecond).String(), "< 100ms", f < 100*time.Millisecond) && ok, nil
}
