package rebalance

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"
)

// question is a line of testdata/allocations.jsonl, which interop/java's AllocationsTest records from the Java client.
type question struct {
	Sort       []string `json:"sort"`
	SortQueues []qq     `json:"sortQueues"`
	Sorted     json.RawMessage

	Name    string
	Inner   string
	Nodes   int
	Rooms   []string
	Config  []int
	Queues  []qq
	Clients []string
	Answers map[string]json.RawMessage // indexes into Queues, or the exception's message
}

// qq is a queue as [topic, broker, id].
type qq Queue

func (q *qq) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&q.Topic, &q.Broker, &q.ID})
}

func queuesOf(in []qq) []Queue {
	out := make([]Queue, len(in))
	for i, q := range in {
		out[i] = Queue(q)
	}
	return out
}

// byDash takes what comes before the first dash of a name for its room.
type byDash struct{}

func (byDash) room(name string) string {
	room, _, ok := strings.Cut(name, "-")
	if !ok {
		return ""
	}
	return room
}
func (d byDash) BrokerRoom(q Queue) string   { return d.room(q.Broker) }
func (d byDash) ClientRoom(id string) string { return d.room(id) }

func (q question) strategy(t *testing.T, name string) Strategy {
	t.Helper()
	name, inner, nearby := strings.Cut(name, "-")
	switch name {
	case "AVG":
		return Average{}
	case "AVG_BY_CIRCLE":
		return AverageByCircle{}
	case "CONSISTENT_HASH":
		return ConsistentHash{VirtualNodes: q.Nodes}
	case "MACHINE_ROOM":
		return MachineRoom{Rooms: q.Rooms}
	case "CONFIG":
		var c Config
		for _, i := range q.Config {
			c.Queues = append(c.Queues, Queue(q.Queues[i]))
		}
		return c
	case "MACHINE_ROOM_NEARBY":
		if nearby {
			return MachineRoomNearby{Inner: q.strategy(t, inner), Resolver: byDash{}}
		}
	}
	t.Fatalf("no strategy %s", name)
	return nil
}

// TestAnswersOfTheJavaClient asks every recorded question.
func TestAnswersOfTheJavaClient(t *testing.T) {
	f, err := os.Open("testdata/allocations.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	questions, answers, refusals := 0, 0, 0
	names := map[string]bool{}
	for lines.Scan() {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			t.Fatal(err)
		}
		questions++
		switch {
		case q.Sort != nil:
			checkSort(t, q.Sort, q.Sorted, SortClients)
			continue
		case q.SortQueues != nil:
			var want []qq
			if err := json.Unmarshal(q.Sorted, &want); err != nil {
				t.Fatal(err)
			}
			got := queuesOf(q.SortQueues)
			SortQueues(got)
			if !slices.Equal(got, queuesOf(want)) {
				t.Errorf("queues sorted\n got %v\nwant %v", got, want)
			}
			continue
		}
		s := q.strategy(t, q.Name)
		if s.Name() != q.Name {
			t.Errorf("name %s, want %s", s.Name(), q.Name)
		}
		names[q.Name] = true
		queues := queuesOf(q.Queues)
		for id, raw := range q.Answers {
			answers++
			got, err := s.Allocate("group-a", id, queues, q.Clients)
			var message string
			if json.Unmarshal(raw, &message) == nil {
				refusals++
				if err == nil {
					t.Errorf("%s: %s got %v where Java says %q", q.Name, id, got, message)
				}
				continue
			}
			var want []int
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			if err != nil || !slices.Equal(indexes(queues, got), want) {
				t.Errorf("%s: %s of %q over %d queues\n got %v %v\nwant %v", q.Name, id, q.Clients, len(queues), indexes(queues, got), err, want)
			}
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d questions, %d answers of which %d refusals, strategies %v", questions, answers, refusals, names)
	if questions < 300 || len(names) != 8 || refusals == 0 {
		t.Errorf("the recording has only %d questions of %v", questions, names)
	}
}

func checkSort(t *testing.T, in []string, sorted json.RawMessage, sort func([]string)) {
	t.Helper()
	var want []string
	if err := json.Unmarshal(sorted, &want); err != nil {
		t.Fatal(err)
	}
	got := slices.Clone(in)
	sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("sorted\n got %q\nwant %q", got, want)
	}
}

func indexes(queues, some []Queue) []int {
	out := []int{}
	for _, q := range some {
		out = append(out, slices.Index(queues, q))
	}
	return out
}

// TestEveryQueueHasOneOwner: what the members compute apart from each other covers the queues exactly once.
func TestEveryQueueHasOneOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var queues []Queue
		brokers := rapid.SliceOfNDistinct(rapid.StringMatching(`room[123]-[a-f]`), 1, 4, rapid.ID[string]).Draw(t, "brokers")
		for _, b := range brokers {
			for id := range rapid.Int32Range(1, 40).Draw(t, "queues") {
				queues = append(queues, Queue{Topic: "T", Broker: b, ID: id})
			}
		}
		SortQueues(queues)
		clients := rapid.SliceOfNDistinct(rapid.StringMatching(`room[1234]-10\.0\.[0-9]{1,3}\.[0-9]{1,3}@[0-9]{1,5}`), 1, 30, rapid.ID[string]).Draw(t, "clients")
		SortClients(clients)
		for _, s := range []Strategy{Average{}, AverageByCircle{}, ConsistentHash{}, ConsistentHash{VirtualNodes: 3},
			MachineRoomNearby{Average{}, byDash{}}, MachineRoomNearby{AverageByCircle{}, byDash{}}, MachineRoomNearby{ConsistentHash{}, byDash{}}} {
			owner := map[Queue]string{}
			least, most := len(queues), 0
			for _, c := range clients {
				before := slices.Clone(queues)
				got, err := s.Allocate("g", c, queues, clients)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(before, queues) {
					t.Fatalf("%s changed its argument", s.Name())
				}
				for _, q := range got {
					if other, taken := owner[q]; taken {
						t.Fatalf("%s: %v belongs to %s and to %s", s.Name(), q, other, c)
					}
					owner[q] = c
				}
				least, most = min(least, len(got)), max(most, len(got))
			}
			if len(owner) != len(queues) {
				t.Fatalf("%s: %d of %d queues have an owner", s.Name(), len(owner), len(queues))
			}
			if n := s.Name(); strings.HasPrefix(n, "AVG") && most-least > 1 {
				t.Fatalf("%s: shares from %d to %d", n, least, most)
			}
		}
	})
}

// TestMachineRoomCoversItsRooms: every queue of the configured rooms once, no other.
func TestMachineRoomCoversItsRooms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var queues []Queue
		for i := range rapid.IntRange(1, 60).Draw(t, "queues") {
			queues = append(queues, Queue{Topic: "T", Broker: fmt.Sprintf("room%d@b", i%3), ID: int32(i)})
		}
		SortQueues(queues)
		var clients []string
		for i := range rapid.IntRange(1, 9).Draw(t, "clients") {
			clients = append(clients, fmt.Sprintf("c%d", i))
		}
		seen := map[Queue]int{}
		for _, c := range clients {
			got, err := MachineRoom{Rooms: []string{"room0", "room2"}}.Allocate("g", c, queues, clients)
			if err != nil {
				t.Fatal(err)
			}
			for _, q := range got {
				seen[q]++
			}
		}
		for _, q := range queues {
			want := 1
			if strings.HasPrefix(q.Broker, "room1@") {
				want = 0
			}
			if seen[q] != want {
				t.Fatalf("%v has %d owners, want %d", q, seen[q], want)
			}
		}
	})
}

// TestConsistentHashMovesLittle: a client that leaves gives its queues away, and no other queue moves.
func TestConsistentHashMovesLittle(t *testing.T) {
	var queues []Queue
	for id := range int32(200) {
		queues = append(queues, Queue{"T", "b", id})
	}
	clients := []string{"a@1", "b@1", "c@1", "d@1"}
	s := ConsistentHash{}
	had, err := s.Allocate("g", "a@1", queues, clients)
	if err != nil {
		t.Fatal(err)
	}
	has, err := s.Allocate("g", "a@1", queues, []string{"a@1", "b@1", "d@1"})
	if err != nil {
		t.Fatal(err)
	}
	if len(had) == 0 || len(has) <= len(had) {
		t.Fatalf("%d queues before, %d after: the recording needs other ids", len(had), len(has))
	}
	for _, q := range had {
		if !slices.Contains(has, q) {
			t.Errorf("%v moved away from a client that stayed", q)
		}
	}
}

// TestCompareIsUTF16Order compares with the order of the encoded units, for any bytes.
func TestCompareIsUTF16Order(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.SampledFrom([]rune{'a', 0x7f, 0x80, 0x7ff, 0xd7ff, 0xe000, 0xfffd, 0xffff, 0x10000, 0x10ffff})),
		rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]byte{'a', 0xc3, 0xa9, 0xe4, 0xb8, 0xf0, 0x9f, 0x98, 0x80, 0xff}), 0, 8), func(b []byte) string { return string(b) }))
	rapid.Check(t, func(t *rapid.T) {
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		if got := Compare(a, b); got != want {
			t.Fatalf("Compare(%q, %q) = %d, want %d", a, b, got, want)
		}
	})
}

// TestWrongSettingsAreRefused: by words that say what to do.
func TestWrongSettingsAreRefused(t *testing.T) {
	queues, clients := []Queue{{"T", "room1-a", 0}}, []string{"room1-c"}
	for want, s := range map[string]Strategy{
		"-1 virtual nodes":                         ConsistentHash{VirtualNodes: -1},
		"needs an inner strategy and a resolver":   MachineRoomNearby{},
		"MACHINE_ROOM_NEARBY-AVG needs":            MachineRoomNearby{Inner: Average{}},
		"queues of room room1 by CONSISTENT_HASH:": MachineRoomNearby{ConsistentHash{VirtualNodes: -2}, byDash{}},
	} {
		if _, err := s.Allocate("g", "room1-c", queues, clients); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%#v: %v, want %q", s, err, want)
		}
	}
}

func BenchmarkConsistentHash(b *testing.B) {
	var queues []Queue
	for id := range int32(1000) {
		queues = append(queues, Queue{"Orders", "broker-a", id})
	}
	var clients []string
	for i := range 50 {
		clients = append(clients, fmt.Sprintf("10.0.0.%d@%d", i, 1000+i))
	}
	SortClients(clients)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (ConsistentHash{}).Allocate("g", clients[0], queues, clients); err != nil {
			b.Fatal(err)
		}
	}
}
