package load

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// gather is how many bytes a connection's frames may gather before they are written, when the pace is behind.
const gather = 64 << 10

// pace sends what is due, when it is due, over the connections in turn. It has a thread of its own and sleeps in the
// kernel: the runtime's timers may come a millisecond late, which would be measured as the server's.
func (s *senders) pace() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // ns; of this thread
	m := s.m
	gap := float64(time.Second) / m.o.Rate
	step := time.Duration(0) // the shortest sleep: at high rates, what is due soon leaves together
	if m.o.Rate > 10_000 {
		step = 50 * time.Microsecond
	}
	begin := m.now() + time.Millisecond
	turn, sent := 0, int64(0)
	for m.is() != over {
		now := m.now()
		due := begin + time.Duration(float64(sent)*gap)
		if due > now {
			if err := s.flush(); err != nil {
				return err
			}
			sleep(min(max(due-m.now(), step), 10*time.Millisecond))
			continue
		}
		c, n := s.take(&turn)
		if c == nil {
			if err := s.flush(); err != nil {
				return err
			}
			if m.o.Shed {
				if m.counts(due) {
					m.shed.Add(1)
				}
				if sent++; begin+time.Duration(float64(sent)*gap) > now {
					sleep(step) // places that come back meanwhile are filled together
				}
				continue
			}
			s.await(10 * time.Millisecond)
			continue
		}
		c.mu.Lock()
		c.request(n, due)
		c.mu.Unlock()
		sent++
		if len(c.out) > gather {
			if err := c.flush(); err != nil {
				return c.ended(err)
			}
		}
	}
	if err := s.flush(); err != nil {
		return err
	}
	for {
		due := begin + time.Duration(float64(sent)*gap)
		if int64(due) >= m.end.Load() {
			break
		}
		if m.counts(due) {
			s.unsent++
		}
		sent++
	}
	for until := m.now() + drainWithin; m.now() < until && s.busy() && s.await(10*time.Millisecond); {
	}
	s.close() // the readers end
	return nil
}

// take returns a free slot of the next connection that has one.
func (s *senders) take(turn *int) (*sender, int32) {
	for range s.conns {
		c := s.conns[*turn]
		if *turn++; *turn == len(s.conns) {
			*turn = 0
		}
		c.mu.Lock()
		k := len(c.free)
		if k > 0 {
			n := c.free[k-1]
			c.free = c.free[:k-1]
			c.mu.Unlock()
			return c, n
		}
		c.mu.Unlock()
	}
	return nil, 0
}

func (s *senders) flush() error {
	for _, c := range s.conns {
		if err := c.flush(); err != nil {
			return c.ended(err)
		}
	}
	return nil
}

// await waits until a place becomes free, or for a while; it reports false when the connections are closed.
func (s *senders) await(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.freed:
	case <-t.C:
	case <-s.ended:
		return false
	}
	return true
}

func (s *senders) busy() bool {
	for _, c := range s.conns {
		if !c.idle() {
			return true
		}
	}
	return false
}

func sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &t, nil) // woken early by a signal: the caller looks at the clock
}
