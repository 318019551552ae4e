// Command recovery makes a store with a log of 10 GB and 1,000 topics and measures, from the start of the process, the first
// acknowledged send and the first consumed message: after kill -9 under load and after a clean stop, of Apogee and, where
// JAVA_PEER names a script that runs it (see scripts/mixed), of the released Java broker on the same folder. Then it puts 90
// more files of 1 GiB in front of the log, and counts what Apogee reads while it opens: no more than before.
//
//	JAVA_PEER=… go run ./bench/recovery -bin bin/apogee
//
// It needs room for the log and a fifth more, and removes everything at the end.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/apogeemq/apogee/internal/vfs"
)

func main() {
	bin := flag.String("bin", "bin/apogee", "our server")
	gb := flag.Int("gb", 10, "size of the log in GB")
	topics := flag.Int("topics", 1000, "topics, of four queues each")
	repeat := flag.Int("repeat", 3, "how often Apogee is measured; the median counts")
	parent := flag.String("dir", "", "where the folder is made; default the system's temporary one")
	load := flag.Duration("load", 3*time.Second, "how long messages are sent before each kill")
	flag.Parse()
	dir, err := os.MkdirTemp(*parent, "apogee-recovery-")
	if err == nil {
		w := &world{bin: *bin, peer: os.Getenv("JAVA_PEER"), dir: dir, bytes: int64(*gb) * 1e9, topics: *topics, load: *load}
		err = run(w, *repeat)
		if w.now != nil {
			w.now.Kill()
		}
		if e := os.RemoveAll(dir); err == nil {
			err = e
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "recovery:", err)
		os.Exit(1)
	}
}

func run(w *world, repeat int) error {
	_, free, err := vfs.OS().Usage(w.dir)
	if err != nil {
		return err
	}
	if need := uint64(w.bytes) / 5 * 6; free < need+need/4 {
		return fmt.Errorf("%s has %d MB free, %d are needed", w.dir, free>>20, (need+need/4)>>20)
	}
	began := time.Now()
	if err := w.build(); err != nil {
		return fmt.Errorf("make the store: %w", err)
	}
	fmt.Printf("made %.1f GB of log, %d topics, %d messages in %.0f s\n", float64(w.bytes)/1e9, w.topics, w.messages, time.Since(began).Seconds())
	fmt.Printf("%-34s %18s %24s %14s\n", "from the start of the process to", "acknowledged send", "consumed message", "bytes read")
	for _, after := range []ending{killed, stopped} {
		if err := w.several("Apogee", after, repeat); err != nil {
			return err
		}
	}
	if w.peer != "" {
		for _, after := range []ending{stopped, killed} {
			if err := w.several("Java", after, 1); err != nil {
				return err
			}
		}
		if err := w.several("Apogee", killed, 1); err != nil { // Java was killed
			return err
		}
	} else {
		fmt.Println("the Java broker wasn't measured: JAVA_PEER is not set")
	}
	if err := w.enlarge(); err != nil {
		return err
	}
	fmt.Printf("the log now begins %d files of 1 GiB earlier:\n", enlargeBy)
	for _, after := range []ending{killed, stopped} {
		if err := w.several("Apogee", after, repeat); err != nil {
			return err
		}
	}
	return nil
}

// several measures starts that follow an ending and prints the median of each figure.
func (w *world) several(who string, after ending, n int) error {
	var sends, pulls []time.Duration
	var read []int64
	for range n {
		if err := w.end(after); err != nil {
			return err
		}
		m, err := w.measure(who)
		if err != nil {
			return fmt.Errorf("%s after %s: %w", who, after, err)
		}
		sends, pulls, read = append(sends, m.send), append(pulls, m.pull), append(read, m.read)
	}
	slices.Sort(sends)
	slices.Sort(pulls)
	slices.Sort(read)
	bytes := "-"
	if who == "Apogee" {
		bytes = fmt.Sprintf("%.1f MB", float64(read[n/2])/1e6)
	}
	fmt.Printf("%-34s %15d ms %21d ms %14s\n", fmt.Sprintf("%s after %s of %s", who, after, w.ended), sends[n/2].Milliseconds(), pulls[n/2].Milliseconds(), bytes)
	return nil
}
