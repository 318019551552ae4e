// Package load is a load generator for RocketMQ brokers. It speaks the remoting protocol over a few connections with
// pre-allocated requests, so that it costs little beside the server it measures, and treats every server alike.
//
// There are three runs: Produce, Consume (a backlog) and EndToEnd (sends at a rate, received by long polling). A run is
// a closed loop (each connection keeps a number of requests outstanding) or an open one (Rate): then a request is due
// at a time that the server can't move, and its latency counts from there, whatever kept it from leaving.
//
// The package measures; it starts no server and judges nothing.
package load

import (
	"errors"
	"fmt"
	"time"
)

// Options describe a run. Zero fields take the defaults in brackets.
type Options struct {
	Names []string // name servers, "host:port"; at least one
	Topic string   // [bench]; with several topics their names are Topic-0, Topic-1 …
	// Topics are made where they don't exist yet, with Queues on each broker. Existing ones are taken as they are.
	Topics, Queues int // [1, 4]

	Conns       int // connections that send [4]
	Outstanding int // requests on their way on each of them [16]
	Size        int // bytes of a body [1024]

	Rate float64 // messages/s, open loop; 0: closed loop
	// Shed lets a message that is due while every place on every connection is taken go unsent, and counts it. Without,
	// it is sent late, and its latency says so.
	Shed bool

	Warmup   time.Duration // not measured [2 s]; negative: none
	Duration time.Duration // measured [10 s]
	Count    int64         // ends the measured part sooner, or, with Duration zero, alone

	// Consumers.
	ConsumeConns int  // connections that pull, the queues spread over them [one a queue, at most 64]
	Groups       int  // consumer groups, the connections spread over them [1]
	Batch        int  // messages asked for in one pull [32]
	Loop         bool // Consume: begin again at the end of the backlog

	PID      int            // a server process on this machine, whose CPU time and memory go into the report; 0: none
	Progress func(Progress) // called once a second while the run goes on; may be nil
}

// Bounds of a run, so that a slip of the keyboard can't keep a machine busy for days.
const (
	maxConns    = 20_000
	maxInFlight = 1 << 22
	maxDuration = 24 * time.Hour
	maxCount    = 10_000_000_000
	maxTopics   = 100_000
	// answerWithin is how long the loops wait for an answer before the run fails.
	answerWithin = 60 * time.Second
	// pollFor is how long a parked pull asks to be held.
	pollFor = 15 * time.Second
	// drainWithin is how long, after the end, answers and messages on their way are waited for.
	drainWithin = 10 * time.Second
)

func (o Options) withDefaults() Options {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if o.Topic == "" {
		o.Topic = "bench"
	}
	set(&o.Topics, 1)
	set(&o.Queues, 4)
	set(&o.Conns, 4)
	set(&o.Outstanding, 16)
	set(&o.Size, 1024)
	set(&o.Groups, 1)
	set(&o.Batch, 32)
	if o.Warmup == 0 {
		o.Warmup = 2 * time.Second
	}
	o.Warmup = max(o.Warmup, 0)
	if o.Duration == 0 {
		o.Duration = 10 * time.Second
		if o.Count > 0 {
			o.Duration = maxDuration
		}
	}
	return o
}

func (o Options) validate() error {
	between := func(what string, v, lo, hi int) error {
		if v < lo || v > hi {
			return fmt.Errorf("%s of %d: want %d to %d", what, v, lo, hi)
		}
		return nil
	}
	err := errors.Join(
		between("connections", o.Conns, 1, maxConns),
		between("outstanding requests a connection", o.Outstanding, 1, 1<<16),
		between("topics", o.Topics, 1, maxTopics),
		between("queues", o.Queues, 1, 10_000),
		between("body size", o.Size, 1, 4<<20),
		between("connections that consume", o.ConsumeConns, 0, maxConns),
		between("consumer groups", o.Groups, 1, maxConns),
		between("messages a pull", o.Batch, 1, 1024),
	)
	switch {
	case err != nil:
	case len(o.Names) == 0:
		err = errors.New("no name server: give at least one host:port")
	case o.Conns*o.Outstanding > maxInFlight:
		err = fmt.Errorf("%d requests outstanding: at most %d", o.Conns*o.Outstanding, maxInFlight)
	case !(o.Rate >= 0 && o.Rate <= 10_000_000):
		err = fmt.Errorf("rate of %g/s: want 0 (closed loop) to 10000000", o.Rate)
	case o.Shed && o.Rate == 0:
		err = errors.New("shedding needs a rate: in a closed loop nothing is ever due too early")
	case o.Duration < 0 || o.Duration > maxDuration || o.Warmup > maxDuration:
		err = fmt.Errorf("duration %v, warm-up %v: want at most %v", o.Duration, o.Warmup, maxDuration)
	case o.Count < 0 || o.Count > maxCount:
		err = fmt.Errorf("count of %d: want at most %d", o.Count, int64(maxCount))
	}
	return err
}

// Progress is what happened since the last one.
type Progress struct {
	At       time.Duration // since the run began
	Warming  bool
	Rate     float64 // messages/s
	P50, P99 time.Duration
	Refused  int64
	Shed     int64
}
