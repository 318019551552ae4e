package broker

import (
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// errNotLatest refuses a pull whose subscription is newer than the one its group's heartbeats told of, in Java's words.
var errNotLatest = refuse(protocol.SubscriptionNotLatest, "the consumer's subscription not latest")

const (
	// earlyWait is how long a pull waits for the heartbeat that it overtook.
	earlyWait = 500 * time.Millisecond
	// maxEarly bounds those that wait.
	maxEarly = 10_000
)

// earlyPulls are pulls that overtook the heartbeat which tells of their subscription: a Java client dates its
// subscription anew whenever its queues change, sends the heartbeat and pulls from two threads. Java refuses such a
// pull, and the client comes again after 1 s (3 s in older ones): a queue that was just taken over would stand still.
type earlyPulls struct {
	mu     sync.Mutex
	groups map[string][]*earlyPull
	n      int
}

type earlyPull struct {
	c     *remoting.Conn
	req   *remoting.Command // a copy
	timer *time.Timer
}

// hold keeps a pull until its group's next heartbeat, and refuses it after earlyWait. It reports false when there are
// too many.
func (e *earlyPulls) hold(group string, c *remoting.Conn, req *remoting.Command) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n >= maxEarly {
		return false
	}
	p := &earlyPull{c: c, req: req.Clone()}
	if e.groups == nil {
		e.groups = map[string][]*earlyPull{}
	}
	e.groups[group] = append(e.groups[group], p)
	e.n++
	p.timer = time.AfterFunc(earlyWait, func() {
		if e.drop(group, p) {
			_ = c.Reply(p.req, response(errNotLatest))
		}
	})
	return true
}

// drop forgets one; false when it was taken meanwhile.
func (e *earlyPulls) drop(group string, p *earlyPull) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.groups[group]
	for i := range list {
		if list[i] == p {
			e.n--
			if list = append(list[:i], list[i+1:]...); len(list) == 0 {
				delete(e.groups, group)
			} else {
				e.groups[group] = list
			}
			return true
		}
	}
	return false
}

// take returns a group's.
func (e *earlyPulls) take(group string) []*earlyPull {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.groups[group]
	delete(e.groups, group)
	e.n -= len(list)
	for _, p := range list {
		p.timer.Stop()
	}
	return list
}

// takeAll returns everybody's.
func (e *earlyPulls) takeAll() []*earlyPull {
	e.mu.Lock()
	groups := make([]string, 0, len(e.groups))
	for g := range e.groups {
		groups = append(groups, g)
	}
	e.mu.Unlock()
	var all []*earlyPull
	for _, g := range groups {
		all = append(all, e.take(g)...)
	}
	return all
}
