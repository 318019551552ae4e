package member

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/filter"
	"github.com/apogeemq/apogee/internal/protocol"
)

func open(r *Registry, id uint64) Conn {
	c := Conn{id, netip.AddrFrom4([4]byte{10, 0, 0, byte(id)})}
	r.Opened(id)
	return c
}

func TestProducersComeAndGo(t *testing.T) {
	r := New(Options{})
	a, b := open(r, 1), open(r, 2)
	r.Producer(a, Client{ID: "A", Version: 7}, "p", epoch)
	r.Producer(a, Client{ID: "A"}, "inner", epoch)
	r.Producer(b, Client{ID: "B"}, "p", epoch)
	r.Producer(Conn{ID: 3}, Client{ID: "C"}, "p", epoch) // its connection has ended
	clients := func(group string) (out []string) {
		for _, p := range r.Producers(group)[group] {
			out = append(out, p.Client)
		}
		slices.Sort(out)
		return out
	}
	check := func(when, group string, want ...string) {
		t.Helper()
		if got := clients(group); !slices.Equal(got, want) {
			t.Errorf("%s: producers of %s are %v, want %v", when, group, got, want)
		}
	}
	check("at first", "p", "A", "B")
	if len(r.Producers("")) != 2 {
		t.Errorf("all groups: %v", r.Producers(""))
	}
	r.UnregisterProducer("A", "p")
	check("after a goodbye", "p", "B")
	check("after a goodbye", "inner", "A")
	r.Closed(a.ID, epoch)
	check("after an end of a connection", "inner")
	r.Tick(epoch.Add(119 * time.Second))
	check("after 119 s", "p", "B")
	r.Tick(epoch.Add(130 * time.Second))
	check("after 130 s", "p")
	r.Closed(b.ID, epoch)
	if len(r.producers)+len(r.conns) != 0 {
		t.Errorf("left: %v, %v", r.producers, r.conns)
	}
}

func TestGroupAsAdminsSeeIt(t *testing.T) {
	r := New(Options{})
	if _, online := r.Group("g"); online || r.IDs("g") != nil {
		t.Error("a group that nobody is in is online")
	}
	if _, _, online := r.Subscription([]byte("g"), []byte("T")); online {
		t.Error("a group that nobody is in is online")
	}
	b, a := open(r, 1), open(r, 2)
	d := protocol.ConsumerData{GroupName: "g", ConsumeType: "CONSUME_PASSIVELY", MessageModel: "CLUSTERING", ConsumeFromWhere: "CONSUME_FROM_LAST_OFFSET",
		SubscriptionDataSet: []protocol.SubscriptionData{
			{Topic: "T", SubString: "x || y", ExpressionType: "TAG", SubVersion: 5},
			{Topic: "all", SubString: "*", SubVersion: 5},
			{Topic: "sql", SubString: "a > 1", ExpressionType: "SQL92", SubVersion: 5},
		}}
	r.Heartbeat(b, Client{ID: "B", Version: 2, Language: protocol.Go}, Consumer{Data: d}, 0, false, epoch)
	r.Heartbeat(a, Client{ID: "A", Version: 1}, Consumer{Data: d}, 0, false, epoch.Add(time.Second))

	info, online := r.Group("g")
	if !online || info.ConsumeType != d.ConsumeType || info.Model != d.MessageModel || info.FromWhere != d.ConsumeFromWhere || len(info.Subscriptions) != 3 {
		t.Errorf("group: %v %+v", online, info)
	}
	want := []Peer{{"A", a, 0, 1, epoch.Add(time.Second)}, {"B", b, protocol.Go, 2, epoch}}
	if !slices.Equal(info.Members, want) {
		t.Errorf("members %v, want %v", info.Members, want)
	}
	if groups, members := r.Size(); groups != 1 || members != 2 {
		t.Errorf("%d groups, %d members", groups, members)
	}
	if got := r.Subscribers("T"); !slices.Equal(got, []string{"g"}) {
		t.Errorf("subscribers of T: %v", got)
	}
	if got := r.Subscribers("U"); got != nil {
		t.Errorf("subscribers of U: %v", got)
	}
	subscription := func(topic string) *Subscription {
		s, broadcasting, online := r.Subscription([]byte("g"), []byte(topic))
		if broadcasting || !online {
			t.Errorf("%s: broadcasting %v, online %v", topic, broadcasting, online)
		}
		return s
	}
	if s := subscription("T"); s.FilterErr != nil || !s.Filter.MatchTag("y") || s.Filter.MatchTag("z") {
		t.Errorf("T: %+v", s)
	}
	if s := subscription("all"); s.FilterErr != nil || s.Filter != nil {
		t.Errorf("all: %+v", s)
	}
	if s := subscription("sql"); !errors.Is(s.FilterErr, filter.ErrUnsupported) {
		t.Errorf("sql: %+v", s)
	}
	if s := subscription("U"); s != nil {
		t.Errorf("U: %+v", s)
	}
	r.Closed(a.ID, epoch)
	r.Closed(b.ID, epoch)
	if got := r.Subscribers("T"); got != nil {
		t.Errorf("subscribers of T with nobody there: %v", got)
	}
}
