// Command javastore moves a live store from a Java broker to Apogee and back, twice round, and looks at each step whether
// every message, offset, topic, group and delayed message is there:
//
//	JAVA_PEER=… go run ./bench/javastore -bin bin/apogee
//
// JAVA_PEER names a script that runs the released Java broker, as scripts/mixed says. The Java broker is stopped cleanly the
// first time and killed with kill -9 the second, Apogee the other way round but for the handing back: a Java broker takes
// over after a clean stop.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	bin := flag.String("bin", "bin/apogee", "our server")
	messages := flag.Int("messages", 600, "messages of each turn")
	rounds := flag.Int("rounds", 2, "how often Java → here → Java → here")
	defaults := flag.Bool("defaults", false, "files of the default sizes, 1 GiB and more, instead of small ones")
	flag.Parse()
	peer := os.Getenv("JAVA_PEER")
	if peer == "" {
		fmt.Fprintln(os.Stderr, "javastore: set JAVA_PEER to a script that runs the Java broker (broker DIR PORT NAMESRV [key=value…])")
		os.Exit(2)
	}
	begin := time.Now()
	w, err := newWorld(*bin, peer, *messages, *defaults)
	if err == nil {
		err = w.run(*rounds)
		w.close(err == nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "javastore:", err)
		if w != nil {
			fmt.Fprintln(os.Stderr, "javastore: the store is in", w.dir)
		}
		os.Exit(1)
	}
	fmt.Printf("%d turns, %d messages, %d delayed messages, %d topics: all there at each step, in %.0f s\n", w.turns, w.sent, w.delayedSent, len(w.topics), time.Since(begin).Seconds())
}
