package member

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/apogeemq/apogee/internal/broker/lock"
	"github.com/apogeemq/apogee/internal/protocol"
)

// BenchmarkMayCommit asks about a queue of a group without locks, and of one that holds many.
func BenchmarkMayCommit(b *testing.B) {
	r := New(Options{})
	c := Conn{1, netip.MustParseAddr("10.0.0.1")}
	r.Opened(c.ID)
	var queues []lock.Queue
	for i := range int32(10_000) {
		queues = append(queues, lock.Queue{Topic: fmt.Sprintf("topic-%d", i/8), Broker: "b", ID: i % 8})
	}
	r.Heartbeat(c, Client{ID: "A"}, Consumer{Data: protocol.ConsumerData{GroupName: "ordered", MessageModel: "CLUSTERING"}}, 0, false, epoch)
	if held, _ := r.Lock(c, "ordered", "A", queues, epoch); len(held) != len(queues) {
		b.Fatal("not locked")
	}
	other := Conn{2, netip.MustParseAddr("10.0.0.2")}
	r.Opened(other.ID)
	r.Heartbeat(other, Client{ID: "B"}, Consumer{Data: protocol.ConsumerData{GroupName: "ordered", MessageModel: "CLUSTERING"}}, 0, false, epoch)
	for _, bm := range []struct {
		name, group string
		conn        Conn
		want        bool
	}{{"group without locks", "concurrent", c, true}, {"owner", "ordered", c, true}, {"not the owner", "ordered", other, false}} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				q := &queues[i%len(queues)]
				if r.MayCommit(bm.conn, bm.group, q.Topic, q.ID, epoch) != bm.want {
					b.Fatal("wrong")
				}
				i++
			}
		})
	}
	b.Run("Committed", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			q := &queues[i%len(queues)]
			if n := r.Committed(c, "ordered", q.Topic, q.ID, epoch); n != nil {
				b.Fatal("told")
			}
			i++
		}
	})
	b.Run("Tick", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if n := r.Tick(epoch); n != nil {
				b.Fatal("told")
			}
			if r.NextDeadline(epoch).Before(epoch) {
				b.Fatal("late")
			}
		}
	})
}
