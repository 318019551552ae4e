// Command crash kills a server with kill -9 at random moments, again and again, while producers send single messages and
// batches to many topics and consumers pull and commit, and looks whether anything that was acknowledged is lost, is there
// twice, in another order or at another place, and whether a consumer's offset goes back by more than the interval in which
// offsets are written:
//
//	go run ./bench/crash -bin bin/apogee -rounds 200
//
// Some rounds kill the server while it recovers from the last kill. The flush mode changes from start to start: kill -9 takes
// nothing in either. It prints its figures, and ends with status 1 when something was violated.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	o := options{out: os.Stdout}
	flag.StringVar(&o.bin, "bin", "bin/apogee", "server to be killed")
	flag.IntVar(&o.rounds, "rounds", 200, "kills")
	flag.IntVar(&o.topics, "topics", 100, "topics, of two queues each")
	flag.IntVar(&o.senders, "senders", 16, "producers, a connection each")
	flag.DurationVar(&o.life, "life", 2*time.Second, "the longest time between two kills")
	flag.IntVar(&o.messages, "messages", 8_000_000, "stop sending after so many")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "repeats the moments of the kills")
	flag.StringVar(&o.dir, "dir", "", "data folder; default a temporary one, which is removed when all went well")
	flag.Parse()
	temp := o.dir == ""
	if temp {
		dir, err := os.MkdirTemp("", "apogee-crash-")
		if err != nil {
			fail(err)
		}
		o.dir = dir
	}
	r, err := run(o)
	if err != nil {
		fail(err)
	}
	r.print(os.Stdout)
	if r.violations() > 0 {
		fmt.Println("the data folder is", o.dir)
		os.Exit(1)
	}
	if temp {
		if err := os.RemoveAll(o.dir); err != nil {
			fail(err)
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "crash:", err)
	os.Exit(2)
}
