package client

import (
	"sync"
	"time"
)

// avoidance remembers which brokers were slow or failed, and for how long they are to be avoided. Its decisions
// depend on what it is told and on the time it is given, on nothing else. (Java's LatencyFaultToleranceImpl, without
// its prober: a broker that is avoided is tried again by the first send after its time.)
type avoidance struct {
	mu sync.Mutex
	m  map[string]avoided // by broker name
}

type avoided struct {
	until  time.Time
	failed bool // the last attempt got no answer
}

// penalties says for how long a broker is avoided that took at least so long (Java 5's table).
var penalties = []struct{ latency, avoid time.Duration }{
	{15 * time.Second, 30 * time.Second},
	{5 * time.Second, 10 * time.Second},
	{3 * time.Second, 6 * time.Second},
	{1800 * time.Millisecond, 5 * time.Second},
	{550 * time.Millisecond, 2 * time.Second},
}

// failurePenalty is for how long a broker is avoided that refused or didn't answer (Java: a latency of 10 s).
const failurePenalty = 10 * time.Second

// penalty returns for how long a broker is avoided after an attempt that took so long.
func penalty(latency time.Duration) time.Duration {
	for _, p := range penalties {
		if latency >= p.latency {
			return p.avoid
		}
	}
	return 0
}

// observe notes an attempt that a broker answered well.
func (a *avoidance) observe(broker string, latency time.Duration, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d := penalty(latency); d > 0 {
		a.setLocked(broker, avoided{until: now.Add(d)})
	} else {
		delete(a.m, broker)
	}
}

// failed notes an attempt that failed; unanswered when no answer came at all.
func (a *avoidance) failed(broker string, unanswered bool, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.setLocked(broker, avoided{until: now.Add(failurePenalty), failed: unanswered})
}

func (a *avoidance) setLocked(broker string, v avoided) {
	if a.m == nil {
		a.m = map[string]avoided{}
	}
	a.m[broker] = v
}

// avoid reports whether a broker is better not used now.
func (a *avoidance) avoid(broker string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return now.Before(a.m[broker].until)
}

// silent reports whether a broker is avoided because it didn't answer at all.
func (a *avoidance) silent(broker string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.m[broker]
	return v.failed && now.Before(v.until)
}
