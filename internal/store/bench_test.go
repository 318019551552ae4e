package store

import (
	"fmt"
	"testing"

	"github.com/apogeemq/apogee/internal/message"
)

func benchMessage(size int) message.Message {
	return message.Message{Topic: "bench", Body: make([]byte, size), Properties: []byte("UNIQ_KEY\x010123456789ABCDEF0123456789ABCDEF\x02WAIT\x01true\x02TAGS\x01TagA\x02")}
}

// BenchmarkAppend keeps 64 messages a producer on their way.
func BenchmarkAppend(b *testing.B) {
	for _, mode := range []FlushMode{AsyncFlush, SyncFlush} {
		for _, size := range []int{100, 1024, 16 << 10} {
			b.Run(fmt.Sprintf("%v/%d", mode, size), func(b *testing.B) {
				s, err := Open(Options{Dir: b.TempDir(), Flush: mode, SegmentSize: 256 << 20})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					m := benchMessage(size)
					w := make(chanWaiter, 64)
					waiting := 0
					for pb.Next() {
						s.Append(&m, w)
						if waiting++; waiting == 64 {
							<-w
							waiting--
						}
					}
					for ; waiting > 0; waiting-- {
						if r := <-w; r.Err != nil {
							b.Error(r.Err)
						}
					}
				})
			})
		}
	}
}

// BenchmarkAppendToManyQueues sends to 8 queues of each of many topics in turn.
func BenchmarkAppendToManyQueues(b *testing.B) {
	for _, topics := range []int{100, 2000} {
		b.Run(fmt.Sprint(topics), func(b *testing.B) {
			s, err := Open(Options{Dir: b.TempDir(), Flush: AsyncFlush, SegmentSize: 256 << 20})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			names := make([]string, topics)
			for i := range names {
				names[i] = fmt.Sprintf("topic-%05d", i)
			}
			m := benchMessage(100)
			w := make(chanWaiter, 64)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				m.Topic, m.QueueID = names[i/8%topics], int32(i%8)
				s.Append(&m, w)
				if i >= 63 {
					<-w
				}
			}
			for range min(b.N, 63) {
				<-w
			}
			b.StopTimer()
		})
	}
}

// BenchmarkPut is one message at a time.
func BenchmarkPut(b *testing.B) {
	for _, mode := range []FlushMode{AsyncFlush, SyncFlush} {
		b.Run(mode.String(), func(b *testing.B) {
			s, err := Open(Options{Dir: b.TempDir(), Flush: mode, SegmentSize: 256 << 20})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			m := benchMessage(1024)
			w := make(chanWaiter, 1)
			b.ReportAllocs()
			for range b.N {
				s.Append(&m, w)
				if r := <-w; r.Err != nil {
					b.Fatal(r.Err)
				}
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	s, err := Open(Options{Dir: b.TempDir(), Flush: AsyncFlush, SegmentSize: 256 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const n = 100_000
	m := benchMessage(1024)
	w := make(chanWaiter, n)
	for range n {
		s.Append(&m, w)
	}
	for range n {
		<-w
	}
	if err := s.checkpoint(); err != nil {
		b.Fatal(err)
	}
	for _, num := range []int{1, 32} {
		b.Run(fmt.Sprint(num), func(b *testing.B) {
			b.ReportAllocs()
			var r GetResult
			at := int64(0)
			for range b.N {
				s.Get("bench", 0, at, num, 0, nil, &r)
				if r.Status != Found || r.Count != num {
					b.Fatal(r.Status, r.Count)
				}
				if at = r.NextOffset; at+int64(num) > n {
					at = 0
				}
				r.Release()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*num), "ns/message")
		})
	}
	b.Run("filtered", func(b *testing.B) { // nothing matches: 800 entries are looked at
		var r GetResult
		for range b.N {
			s.Get("bench", 0, 0, 32, 0, tagFilter(1), &r)
			if r.Status != NoMatchedMessage || r.NextOffset != scanUnits {
				b.Fatal(r.Status, r.NextOffset)
			}
			r.Release()
		}
	})
}

// BenchmarkOpen opens a store that was killed, with 64 MiB behind its checkpoint.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	o := Options{Dir: dir, Flush: AsyncFlush, SegmentSize: 256 << 20, CheckpointInterval: 1 << 40}
	s, err := Open(o)
	if err != nil {
		b.Fatal(err)
	}
	m := benchMessage(1024)
	w := make(chanWaiter, 64)
	const n = checkpointBytes / 1200
	for i := range n {
		m.QueueID = int32(i % 1000)
		s.Append(&m, w)
		if i >= 63 {
			<-w
		}
	}
	for range 63 {
		<-w
	}
	s.abandon()
	b.ResetTimer()
	for range b.N {
		s, err := Open(o)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if got := s.MaxOffset("bench", 0); got == 0 {
			b.Fatal(got)
		}
		s.abandon()
		b.StartTimer()
	}
}

// abandon ends a store as a kill does: nothing more is written.
func (s *Store) abandon() {
	s.closed.Store(true)
	s.mu.Lock()
	s.state = ErrClosed
	s.mu.Unlock()
	close(s.stop)
	s.wg.Wait()
	s.closeFiles()
	_ = s.lock.Close()
}

// BenchmarkDispatch makes a batch of 64 records of 4 queues visible: consume queues, index, listener.
func BenchmarkDispatch(b *testing.B) {
	for _, indexed := range []bool{false, true} {
		b.Run(fmt.Sprintf("index=%v", indexed), func(b *testing.B) {
			s, err := Open(Options{Dir: b.TempDir(), Flush: AsyncFlush, SegmentSize: 256 << 20, IndexOff: !indexed, CheckpointInterval: 1 << 40, Listener: new(countingListener)})
			if err != nil {
				b.Fatal(err)
			}
			m := benchMessage(1024)
			rec := message.AppendRecord(nil, &m)
			batch := &writeBatch{buf: rec}
			const n = 64
			for i := range n {
				q, err := s.queue(m.Topic, int32(i%4), true)
				if err != nil {
					b.Fatal(err)
				}
				batch.entries = append(batch.entries, entry{topic: m.Topic, q: q, size: int32(len(rec)), tagsCode: 1})
			}
			b.ReportAllocs()
			for i := range b.N {
				for j := range batch.entries {
					e := &batch.entries[j]
					e.queueOffset = int64(i*n+j) / 4
					e.physical = int64(i*n+j) * int64(len(rec))
				}
				s.dispatch(batch)
				for j := range 4 { // nothing of this is in the log: it must not be written
					q := batch.entries[j].q
					q.mu.Lock()
					q.tail = q.tail[:0]
					q.mu.Unlock()
				}
				s.tailBytes.Store(0)
				if s.index != nil {
					s.index.mu.Lock()
					s.index.pending = s.index.pending[:0]
					s.index.mu.Unlock()
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/message")
			s.abandon()
		})
	}
}
