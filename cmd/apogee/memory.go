package main

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The collector's pace. Go lets the heap grow by as much as lives in it before it collects. A broker's heap is a few
// megabytes under any load, and then that is too often; or it holds the state of tens of thousands of queues, and then
// it doubles the memory a queue costs. So the heap may grow by a fixed amount, or a quarter where that is more.
const (
	gcRoom   = 16 << 20 // bytes
	gcEvery  = 5 * time.Second
	gcQuiet  = 3 // ticks with few allocations after which the heap's free pages are given back, once
	gcFew    = 1 << 20
	gcAtMost = 400 // percent: how a heap of 4 MiB is treated, which the runtime takes as the least
)

// gcPercent is the setting for a heap with so many bytes alive.
func gcPercent(live uint64) int {
	percent := 100 * float64(gcRoom) / float64(max(live, 1))
	return int(math.Round(min(max(percent, 25), gcAtMost)))
}

// paceCollector keeps the collector's setting fit for what is alive, until ctx ends. A GOGC that was given wins.
func paceCollector(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(gcAtMost)
	now := gcAtMost
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	allocated, quiet := uint64(0), 0
	t := time.NewTicker(gcEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		metrics.Read(sample)
		if a := sample[1].Value; a.Kind() == metrics.KindUint64 {
			if quiet++; a.Uint64()-allocated > gcFew {
				quiet = 0
			}
			allocated = a.Uint64()
		}
		if quiet == gcQuiet { // what a busy time left is garbage that nobody would collect for minutes
			debug.FreeOSMemory()
		}
		if sample[0].Value.Kind() != metrics.KindUint64 || sample[0].Value.Uint64() == 0 {
			continue // nothing was collected yet
		}
		// The change stops the world for a moment: not for a trifle.
		if want := gcPercent(sample[0].Value.Uint64()); want < now*9/10 || want > now*11/10 {
			debug.SetGCPercent(want)
			now = want
		}
	}
}
