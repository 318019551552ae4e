package member

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/broker/lock"
	"github.com/apogeemq/apogee/internal/protocol"
)

var update = flag.Bool("update", false, "write what happens into testdata/events instead of comparing with it")

// TestEvents plays the tables of events in testdata/events. A line is
//
//	time verb arguments => what came of it
//
// The verbs are those of (*play).do. Notices (40) are shown as "40>" with the connections they go to. A line with
// the verb "timer" is no event: it is what Tick did when its deadline came, and stands there because it did it.
func TestEvents(t *testing.T) {
	files, err := filepath.Glob("testdata/events/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tables of events: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := playAll(string(text))
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want := strings.Split(string(text), "\n")
			for i, line := range strings.Split(got, "\n") {
				if i >= len(want) || line != want[i] {
					t.Fatalf("line %d:\ngot  %s\nwant %s\nthe whole:\n%s", i+1, line, append(want, "", "")[min(i, len(want))], got)
				}
			}
		})
	}
}

// play is a registry in a world with named connections and a clock.
type play struct {
	r     *Registry
	now   time.Time
	conns map[string]Conn
	names map[uint64]string
	out   strings.Builder
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// playAll plays each table of a file: a line "--" begins a new one.
func playAll(text string) (string, error) {
	var out []string
	for _, table := range strings.Split(text, "--\n") {
		p := &play{r: New(Options{}), now: epoch, conns: map[string]Conn{}, names: map[uint64]string{}}
		p.r.Tick(p.now)
		for _, line := range strings.Split(strings.TrimSuffix(table, "\n"), "\n") {
			if line == "" || line[0] == '#' {
				fmt.Fprintln(&p.out, line)
				continue
			}
			words := strings.Fields(strings.Split(line, "=>")[0])
			if words[1] == "timer" {
				continue
			}
			at, err := time.ParseDuration(words[0])
			if err != nil {
				return "", err
			}
			if slices.Contains(words, "beforeClock=1") {
				p.now = epoch.Add(at)
			} else {
				p.until(epoch.Add(at))
			}
			got, err := p.do(words[1], words[2:])
			if err != nil {
				return "", fmt.Errorf("%s: %w", line, err)
			}
			p.line(strings.Join(words[1:], " "), got)
		}
		out = append(out, p.out.String())
	}
	return strings.Join(out, "--\n"), nil
}

func (p *play) line(what, result string) {
	line := fmt.Sprintf("%-7s %s", p.now.Sub(epoch), what)
	if result != "" {
		line = fmt.Sprintf("%-40s => %s", line, result)
	}
	fmt.Fprintln(&p.out, line)
}

// until lets the time pass as the broker's clock does.
func (p *play) until(t time.Time) {
	for {
		d := p.r.NextDeadline(p.now)
		if d.After(t) {
			break
		}
		p.now = d
		if n := p.r.Tick(d); len(n) > 0 {
			p.line("timer", p.notices(n))
		}
	}
	p.now = t
}

func (p *play) notices(list []Notice) string {
	var to []string
	for _, n := range list {
		name := p.names[n.Conn]
		if n.Group != "g" {
			name += "/" + n.Group
		}
		if p.r.conns[n.Conn] == nil {
			name += "(closed!)"
		}
		to = append(to, name)
	}
	if len(to) == 0 {
		return ""
	}
	slices.Sort(to)
	return "40>" + strings.Join(to, ",")
}

func queueNamed(word string) lock.Queue {
	name, broker, _ := strings.Cut(word, "@")
	id, err := strconv.Atoi(strings.TrimPrefix(name, "q"))
	if err != nil {
		panic(err)
	}
	if broker == "" {
		broker = "b"
	}
	return lock.Queue{Topic: "T", Broker: broker, ID: int32(id)}
}

func queuesNamed(words []string) (out []lock.Queue) {
	for _, w := range words {
		out = append(out, queueNamed(w))
	}
	return out
}

func queueNames(queues []lock.Queue) string {
	var out []string
	for _, q := range queues {
		name := "q" + strconv.Itoa(int(q.ID))
		if q.Broker != "b" {
			name += "@" + q.Broker
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// do is one event. Words of the form key=value are options: group (default g), model, subs, version, promised,
// quiet, fingerprint, withoutSub; beforeClock: the event comes before Tick does what is due at its time.
func (p *play) do(verb string, words []string) (string, error) {
	options := map[string]string{"group": "g", "subs": "T", "version": "1", "model": "CLUSTERING"}
	var args []string
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok {
			options[k] = v
		} else {
			args = append(args, w)
		}
	}
	group := options["group"]
	conn := func() Conn { return p.conns[args[0]] }
	join := func(parts ...string) string {
		return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
	}
	switch verb {
	case "open": // connection address
		c := Conn{ID: uint64(len(p.conns) + 1), IP: netip.MustParseAddr(args[1])}
		p.conns[args[0]], p.names[c.ID] = c, args[0]
		p.r.Opened(c.ID)
		return "", nil
	case "close": // connection
		return p.notices(p.r.Closed(conn().ID, p.now)), nil
	case "beat": // connection client
		version, err := strconv.Atoi(options["version"])
		if err != nil {
			return "", err
		}
		d := protocol.ConsumerData{GroupName: group, ConsumeType: "CONSUME_PASSIVELY", MessageModel: options["model"]}
		for _, topic := range strings.Split(options["subs"], ",") {
			if topic != "" {
				d.SubscriptionDataSet = append(d.SubscriptionDataSet, protocol.SubscriptionData{Topic: topic, SubString: "*", SubVersion: int64(version)})
			}
		}
		fingerprint := 0
		if f := options["fingerprint"]; f != "" {
			if fingerprint, err = strconv.Atoi(f); err != nil {
				return "", err
			}
		}
		who := Client{ID: args[1], Promised: options["promised"] != ""}
		n, changed := p.r.Heartbeat(conn(), who, Consumer{Data: d, Quiet: options["quiet"] != ""}, int32(fingerprint), options["withoutSub"] != "", p.now)
		result := ""
		if fingerprint != 0 {
			result = fmt.Sprintf("changed=%v", changed)
		}
		return join(result, p.notices(n)), nil
	case "bye": // connection client
		return p.notices(p.r.Unregister(conn(), args[1], group, p.now)), nil
	case "lock": // connection client queues
		held, n := p.r.Lock(conn(), group, args[1], queuesNamed(args[2:]), p.now)
		if len(held) == 0 {
			return join("none", p.notices(n)), nil
		}
		return join("holds", queueNames(held), p.notices(n)), nil
	case "unlock": // connection client queues
		return p.notices(p.r.Unlock(conn(), group, args[1], queuesNamed(args[2:]), p.now)), nil
	case "pull": // connection queue; the broker asks Unknown first
		if !p.r.Unknown(conn(), group) {
			return "", nil
		}
		q := queueNamed(args[1])
		return p.notices(p.r.Saw(conn(), group, q.Topic, q.ID, p.now)), nil
	case "commit": // connection queue
		q := queueNamed(args[1])
		if !p.r.MayCommit(conn(), group, q.Topic, q.ID, p.now) {
			return "refused", nil
		}
		return join("counts", p.notices(p.r.Committed(conn(), group, q.Topic, q.ID, p.now))), nil
	case "ids":
		return strings.Join(p.r.IDs(group), " "), nil
	case "owner": // queue
		q := queueNamed(args[0])
		client, ok := p.r.Owner(group, q.Topic, q.ID, p.now)
		if !ok {
			return "nobody", nil
		}
		return client, nil
	case "conns": // client: through which connections it is a member
		var out []string
		info, _ := p.r.Group(group)
		for _, m := range info.Members {
			if m.Client == args[0] {
				out = append(out, p.names[m.Conn.ID])
			}
		}
		return strings.Join(out, " "), nil
	case "subs":
		var out []string
		info, _ := p.r.Group(group)
		for topic, s := range info.Subscriptions {
			out = append(out, fmt.Sprintf("%s@%d", topic, s.SubVersion))
		}
		slices.Sort(out)
		return strings.Join(out, " "), nil
	case "next":
		return "in " + p.r.NextDeadline(p.now).Sub(p.now).String(), nil
	}
	return "", errors.New("unknown verb " + verb)
}
