package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/apogeemq/apogee/internal/load"
)

// turn serves a system on a fresh folder, lets f measure it, and clears up.
func (b *bench) turn(ctx context.Context, system string, settings []string, f func(*server) error) error {
	dir := filepath.Join(b.c.dir, system)
	if err := clear(dir); err != nil {
		return err
	}
	s, err := b.serve(ctx, system, dir, settings...)
	if err != nil {
		return err
	}
	err = f(s)
	return errors.Join(err, s.stop(), clear(dir))
}

// each takes all systems of the run in turn, as often as asked for.
func (b *bench) each(ctx context.Context, settings map[string][]string, f func(*server) error) error {
	for range b.c.repeat {
		for _, system := range b.systems {
			if _, ok := settings[system]; !ok {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := b.turn(ctx, system, settings[system], f); err != nil {
				return fmt.Errorf("%s: %w", system, err)
			}
		}
	}
	return nil
}

const (
	warmup      = time.Second
	pullBacklog = 200_000
	e2eSeconds  = 5 * time.Second
)

func (b *bench) pageCache(ctx context.Context) error {
	settings := map[string][]string{"apogee": {"flushDiskType=ASYNC_FLUSH"}, "java": {"flushDiskType=ASYNC_FLUSH"}, "nats": nil}
	return b.each(ctx, settings, func(s *server) error {
		if s.system == "nats" {
			return b.nats(ctx, s, "send-4x16", 4, 16)
		}
		// The backlog to pull; it also warms up. Java gets the more.
		if _, _, err := b.apogeeBench(ctx, s, "produce", "--topic", "pull", "--count", fmt.Sprint(pullBacklog), "--warmup", "0"); err != nil {
			return err
		}
		if n := b.c.warm - pullBacklog; s.system == "java" && n > 0 {
			if _, _, err := b.apogeeBench(ctx, s, "produce", "--topic", "warm", "--count", fmt.Sprint(n), "--warmup", "0"); err != nil {
				return err
			}
		}
		for _, x := range []struct {
			row         string
			conns, deep int
		}{{"send-4x16", 4, 16}, {"send-64x1", 64, 1}, {"send-1x1", 1, 1}, {"send-16x16", 16, 16}} {
			if err := b.send(ctx, s, x.row, "send", x.conns, x.deep, warmup); err != nil {
				return err
			}
		}
		for _, batch := range []string{"32", "1"} {
			x, command, err := b.apogeeBench(ctx, s, "consume", "--topic", "pull", "--batch", batch, "--loop", "--warmup", warmup.String(), "--duration", b.c.seconds.String())
			if err != nil {
				return err
			}
			b.keep("pull-"+batch, s.system, command, x)
		}
		x, command, err := b.apogeeBench(ctx, s, "e2e", "--topic", "e2e", "--rate", "2000", "--warmup", "2s", "--duration", e2eSeconds.String())
		if err != nil {
			return err
		}
		b.keep("e2e", s.system, command, x)
		if x, command, err = b.apogeeBench(ctx, s, "e2e", "--topic", "parked", "--topics", "250", "--queues", "8", "--consume-conns", "2000", "--groups", "100",
			"--rate", "1000", "--warmup", "3s", "--duration", e2eSeconds.String()); err != nil {
			return err
		}
		b.keep("parked", s.system, command, x)
		return nil
	})
}

func (b *bench) flushed(ctx context.Context) error {
	settings := map[string][]string{"apogee": {"flushDiskType=SYNC_FLUSH"}, "java": {"flushDiskType=SYNC_FLUSH"}, "nats": {"sync_interval: always"}}
	return b.each(ctx, settings, func(s *server) error {
		if s.system == "nats" {
			return b.nats(ctx, s, "flushed-4x16", 4, 16)
		}
		if s.system == "java" {
			if _, _, err := b.apogeeBench(ctx, s, "produce", "--topic", "warm", "--conns", "16", "--warmup", "0", "--duration", "5s"); err != nil {
				return err
			}
		}
		for _, x := range []struct {
			row         string
			conns, deep int
		}{{"flushed-1x1", 1, 1}, {"flushed-4x16", 4, 16}, {"flushed-16x16", 16, 16}} {
			if err := b.send(ctx, s, x.row, "send", x.conns, x.deep, warmup); err != nil {
				return err
			}
		}
		return nil
	})
}

// first times from the start of the process to the first acknowledged send, and stops the server as end says.
func (b *bench) first(ctx context.Context, system, dir, row, topic string, end func(*server) error) error {
	s, err := b.begin(system, dir, "flushDiskType=SYNC_FLUSH")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if _, err := load.First(ctx, s.addr, topic, 1024); err != nil {
		return errors.Join(fmt.Errorf("%s: %w; its log is %s", system, err, s.log.Name()), s.stop())
	}
	if row != "" {
		x := sample{"seconds": time.Since(s.began).Seconds()}
		if u, err := s.use(); err == nil {
			x["anon"], x["rss"] = u.anon, u.rss
		}
		b.keep(row, system, "", x)
	}
	return end(s)
}

// start times starts. The big store of each system is made by itself, once.
func (b *bench) start(ctx context.Context) error {
	systems := slices.DeleteFunc(slices.Clone(b.systems), func(s string) bool { return s == "nats" })
	for i := range b.c.repeat {
		for _, system := range systems {
			dir := filepath.Join(b.c.dir, system)
			if err := clear(dir); err != nil {
				return err
			}
			if err := b.first(ctx, system, dir, "start-empty", fmt.Sprint("First", i), (*server).stop); err != nil {
				return err
			}
		}
	}
	for _, system := range systems {
		dir := filepath.Join(b.c.dir, system)
		if err := clear(dir); err != nil {
			return err
		}
		s, err := b.serve(ctx, system, dir, "flushDiskType=ASYNC_FLUSH")
		if err != nil {
			return err
		}
		_, command, err := b.apogeeBench(ctx, s, "produce", "--topic", "fill", "--conns", "16", "--count", fmt.Sprint(b.c.fill), "--warmup", "0")
		if err := errors.Join(err, s.stop()); err != nil {
			return err
		}
		b.res.Commands["start-clean"] = "filled with: " + command
	}
	for i := range b.c.repeat {
		for _, system := range systems {
			if err := b.first(ctx, system, filepath.Join(b.c.dir, system), "start-clean", fmt.Sprint("Clean", i), (*server).stop); err != nil {
				return err
			}
		}
	}
	kill := func(s *server) error { // in the middle of sends
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _, _ = b.apogeeBench(ctx, s, "produce", "--topic", "killed", "--warmup", "0", "--duration", "9s") // fails when its server dies
		}()
		err := errors.Join(pause(ctx, 1500*time.Millisecond), s.kill())
		<-done
		return err
	}
	for i := range b.c.repeat + 1 { // the first is only to be killed
		for _, system := range systems {
			row, end := "start-killed", kill
			if i == 0 {
				row = ""
			}
			if i == b.c.repeat {
				end = (*server).stop
			}
			if err := b.first(ctx, system, filepath.Join(b.c.dir, system), row, fmt.Sprint("Killed", i), end); err != nil {
				return err
			}
		}
	}
	for _, system := range systems {
		if err := clear(filepath.Join(b.c.dir, system)); err != nil {
			return err
		}
	}
	return nil
}

// memory watches Apogee's resident memory under the first row's load.
func (b *bench) memory(ctx context.Context) error {
	if !slices.Contains(b.systems, "apogee") {
		return nil
	}
	return b.turn(ctx, "apogee", []string{"flushDiskType=ASYNC_FLUSH"}, func(s *server) error {
		var seen []float64
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			t := time.NewTicker(500 * time.Millisecond)
			defer t.Stop()
			for {
				select {
				case <-t.C:
					if u, err := s.use(); err == nil {
						seen = append(seen, u.anon)
					}
				case <-stop:
					return
				}
			}
		}()
		x, command, err := b.apogeeBench(ctx, s, "produce", "--topic", "memory", "--warmup", "0", "--duration", b.c.memory.String())
		close(stop)
		<-done
		if err != nil {
			return err
		}
		if n := len(seen); n >= 8 {
			mean := func(v []float64) (m float64) {
				for _, a := range v {
					m += a / float64(len(v))
				}
				return m
			}
			x["anon_peak"] = slices.Max(seen)
			x["growth"] = mean(seen[3*n/4:]) - mean(seen[n/4:n/2]) // from the second quarter to the last
		}
		b.keep("memory", "apogee", command, x)
		return nil
	})
}

// javaTopics is how many topics of 8 queues a Java broker can have on this machine: it maps a file for each queue, and
// the kernel bounds the mappings of a process.
func javaTopics(want int) int {
	limit := 65530
	if raw, err := os.ReadFile("/proc/sys/vm/max_map_count"); err == nil {
		_, _ = fmt.Sscan(string(raw), &limit)
	}
	return min(want, (limit-9_000)/8/500*500)
}

// topics sends one message to each queue of many topics in turn, twice, then looks at the idle server.
func (b *bench) topics(ctx context.Context) error {
	const queues = 8
	idle := map[string]use{}           // of an empty server
	for range max(2*b.c.repeat/5, 1) { // a turn of Java takes minutes
		for _, system := range b.systems {
			n, config := b.c.topics, "config"
			switch system {
			case "nats":
				continue
			case "java":
				config = filepath.Join("store", "config")
				if n = javaTopics(n); n < b.c.topics {
					b.res.Notes["topics"] = fmt.Sprintf("Java got %d topics: it maps a file for each queue, and the kernel's vm.max_map_count of this machine allows no more.", n)
				}
			}
			dir := filepath.Join(b.c.dir, system)
			if err := clear(dir); err != nil {
				return err
			}
			if _, ok := idle[system]; !ok {
				err := b.turn(ctx, system, []string{"flushDiskType=ASYNC_FLUSH"}, func(s *server) (err error) {
					idle[system], err = s.use()
					return err
				})
				if err != nil {
					return err
				}
			}
			if err := writeTopics(filepath.Join(dir, config), "many", n, queues); err != nil {
				return err
			}
			s, err := b.serve(ctx, system, dir, "flushDiskType=ASYNC_FLUSH")
			if err != nil {
				return err
			}
			x, command, err := b.manyTopics(ctx, s, n, queues, idle[system])
			if err := errors.Join(err, s.stop(), clear(dir)); err != nil {
				return fmt.Errorf("%s: %w", system, err)
			}
			b.keep("topics", system, command, x)
		}
	}
	return nil
}

func (b *bench) manyTopics(ctx context.Context, s *server, n, queues int, empty use) (sample, string, error) {
	args := []string{"produce", "--topic", "many", "--topics", fmt.Sprint(n), "--queues", fmt.Sprint(queues), "--count", fmt.Sprint(n * queues), "--warmup", "0"}
	first, _, err := b.apogeeBench(ctx, s, args...)
	if err != nil {
		return nil, "", err
	}
	x, command, err := b.apogeeBench(ctx, s, args...)
	if err != nil {
		return nil, "", err
	}
	x["per_second_first"] = first["per_second"]
	// Both write their queues' files in the background after a while: idle begins when that is done. How long it takes is
	// mostly the file system's: ext4 searches long for inodes when many were deleted lately, as by the turn before.
	const watch = 20 * time.Second // Apogee gives memory back after 15 s without work
	if err := pause(ctx, 15*time.Second); err != nil {
		return nil, "", err
	}
	used := func(d time.Duration) (use, time.Duration, error) {
		before, err := s.use()
		if err != nil {
			return use{}, 0, err
		}
		if err := pause(ctx, d); err != nil {
			return use{}, 0, err
		}
		after, err := s.use()
		return after, after.cpu - before.cpu, err
	}
	for range 15 {
		_, cpu, err := used(3 * time.Second)
		if err != nil {
			return nil, "", err
		}
		if cpu < 150*time.Millisecond {
			break
		}
	}
	after, cpu, err := used(watch)
	if err != nil {
		return nil, "", err
	}
	x["idle_cpu"] = 100 * cpu.Seconds() / watch.Seconds()
	x["bytes_a_queue"] = (after.anon - empty.anon) * (1 << 20) / float64(n*queues)
	x["anon"] = after.anon
	return x, command, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// writeTopics writes a topics.json before the start: making so many topics one request after the other takes Java
// minutes, since it writes the whole file each time.
func writeTopics(dir, name string, n, queues int) error {
	table := map[string]any{}
	for i := range n {
		t := fmt.Sprintf("%s-%d", name, i)
		table[t] = map[string]any{"attributes": map[string]string{}, "order": false, "perm": 6, "readQueueNums": queues, "topicFilterType": "SINGLE_TAG", "topicName": t, "topicSysFlag": 0, "writeQueueNums": queues}
	}
	raw, err := json.Marshal(map[string]any{"dataVersion": map[string]any{"counter": n, "stateVersion": 0, "timestamp": time.Now().UnixMilli()}, "topicConfigTable": table})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "topics.json"), raw, 0o644)
}

// overload offers Apogee twice what it carries. What it carries is measured with the same open loop, offered as much as
// a closed loop got through: the generator's own work for a message that is due takes processor time from the server,
// and must not be taken for the server's.
func (b *bench) overload(ctx context.Context) error {
	if !slices.Contains(b.systems, "apogee") {
		return nil
	}
	places := []string{"--topic", "overload", "--conns", "4", "--outstanding", "256"}
	return b.turn(ctx, "apogee", []string{"flushDiskType=ASYNC_FLUSH"}, func(s *server) error {
		closed, _, err := b.apogeeBench(ctx, s, append([]string{"produce", "--duration", "5s"}, places...)...)
		if err != nil {
			return err
		}
		offer := func(rate float64, d time.Duration) (sample, string, error) {
			return b.apogeeBench(ctx, s, append([]string{"produce", "--rate", fmt.Sprintf("%.0f", rate), "--shed", "--duration", d.String()}, places...)...)
		}
		peak, _, err := offer(closed["per_second"], 5*time.Second)
		if err != nil {
			return err
		}
		x, command, err := offer(2*peak["per_second"], b.c.overload)
		if err != nil {
			return err
		}
		x["closed"], x["peak"] = closed["per_second"], peak["per_second"]
		x["ratio"] = x["per_second"] / peak["per_second"]
		b.keep("overload", "apogee", command, x)
		return nil
	})
}
