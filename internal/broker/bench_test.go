package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/broker/delay"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/store"
)

// wire is a raw connection to a broker. It allocates nothing, so what a benchmark counts is the broker's.
type wire struct {
	b   *testing.B
	nc  net.Conn
	in  *remoting.Stream
	out []byte
	cmd remoting.Command
}

// benchBroker starts a broker on disk in page-cache mode and connects to it.
func benchBroker(b *testing.B) *wire {
	b.Helper()
	levels, err := delay.ParseLevels(delay.DefaultLevels)
	if err != nil {
		b.Fatal(err)
	}
	br, err := Open(Options{Name: "b", Cluster: "DefaultCluster", Permission: 6, AutoTopic: true, AutoGroup: true, DefaultQueues: 4, Levels: levels, Region: "DefaultRegion",
		LongPolling: true, MaxHold: time.Minute, MaxParked: 1000, DefaultQueryMaxNum: 32, OffsetInterval: time.Hour, DelayInterval: time.Hour,
		RegisterEvery: time.Hour, Clean: CleanOptions{Every: time.Hour, When: "04"}, Store: store.Options{Dir: b.TempDir(), Flush: store.AsyncFlush, SegmentSize: 256 << 20},
		Settings: func() string { return "" }, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	main, err := remoting.Listen(loopback)
	if err != nil {
		b.Fatal(err)
	}
	fast, err := remoting.Listen(loopback)
	if err != nil {
		b.Fatal(err)
	}
	br.Start(main, fast)
	nc, err := net.Dial("tcp", main.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = nc.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := br.Close(ctx); err != nil {
			b.Error(err)
		}
	})
	return &wire{b: b, nc: nc, in: remoting.NewStream(nc, 256<<10)}
}

// write sends frames as they are.
func (w *wire) write(frames []byte) {
	if _, err := w.nc.Write(frames); err != nil {
		w.b.Fatal(err)
	}
}

// answer reads the next answer, which must be a success.
func (w *wire) answer() {
	for {
		if err := w.in.Next(&w.cmd); err != nil {
			w.b.Fatal(err)
		}
		if w.cmd.IsResponse() {
			break
		}
	}
	if w.cmd.Code != 0 {
		w.b.Fatal(w.cmd.Code, w.cmd.Remark)
	}
}

func sendFrame(size int) []byte {
	h := &protocol.SendMessageRequest{ProducerGroup: []byte("P"), Topic: []byte("bench"), DefaultTopic: []byte("TBW102"), DefaultTopicQueueNums: 4, BornTimestamp: 1796098137112,
		Properties: []byte("UNIQ_KEY\x017F0000013B574E0E2F2A00E3EC170000\x02WAIT\x01true\x02TAGS\x01TagA\x02"), BrokerName: []byte("b")}
	return remoting.AppendRequest(nil, &remoting.Request{Code: protocol.SendMessageV2, Header: h, Body: make([]byte, size)}, 1)
}

func pullFrame(offset int64, count int32) []byte {
	h := &protocol.PullMessageRequest{ConsumerGroup: []byte("G"), Topic: []byte("bench"), QueueOffset: offset, MaxMsgNums: count,
		SysFlag: protocol.PullSuspend | protocol.PullSubscription, SuspendTimeoutMillis: 30_000, Subscription: []byte("*"), ExpressionType: []byte("TAG")}
	return remoting.AppendRequest(nil, &remoting.Request{Code: protocol.PullMessage, Header: h}, 2)
}

// BenchmarkSend is a send's whole way, from the socket to the socket, 64 of them outstanding.
func BenchmarkSend(b *testing.B) {
	for _, size := range []int{100, 1024, 16 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			w := benchBroker(b)
			const window = 64
			f := sendFrame(size)
			w.write(f) // makes the topic
			w.answer()
			var burst []byte
			for range window / 2 {
				burst = append(burst, f...)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			sent, got := 0, 0
			for got < b.N {
				for sent < b.N && sent-got <= window/2 {
					n := min(window/2, b.N-sent)
					w.write(burst[:n*len(f)])
					sent += n
				}
				w.answer()
				got++
			}
			b.StopTimer()
		})
	}
}

// BenchmarkPull is a pull's whole way, one outstanding, from a backlog in the page cache.
func BenchmarkPull(b *testing.B) {
	for _, count := range []int32{1, 32} {
		for _, size := range []int{100, 1024, 4096} {
			b.Run(fmt.Sprintf("%d/%d", count, size), func(b *testing.B) {
				w := benchBroker(b)
				f := sendFrame(size)
				for range 64 {
					w.write(f)
					w.answer()
				}
				p := pullFrame(0, count)
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					w.write(p)
					w.answer()
					if len(w.cmd.Body) < int(count)*size {
						b.Fatal(len(w.cmd.Body))
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(count), "ns/message")
			})
		}
	}
}

// BenchmarkWake parks a pull and sends what it waits for.
func BenchmarkWake(b *testing.B) {
	w := benchBroker(b)
	f := sendFrame(1024)
	w.write(f)
	w.answer()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		w.out = append(append(w.out[:0], pullFrame(int64(i+1), 32)...), f...)
		w.write(w.out)
		w.answer()
		w.answer()
	}
}
