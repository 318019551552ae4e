package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/apogeemq/apogee/internal/config"
	"github.com/apogeemq/apogee/internal/storetool"
)

// storeFlags shape how a store's files are read.
type storeFlags struct {
	file string
	set  []string
}

func storeCommand() *cobra.Command {
	f := &storeFlags{}
	cmd := &cobra.Command{Use: "store", Short: "Look into a store's folder, of Apogee or of a Java broker, and repair it",
		Long: "Look into a store's folder, of Apogee or of a Java broker. Check, dump and info change nothing and work while a broker runs on the folder."}
	p := cmd.PersistentFlags()
	p.StringVar(&f.file, "config", "", "the broker's file, when it sets file sizes, storePathCommitLog or messageDelayLevel")
	p.StringArrayVar(&f.set, "set", nil, "key=value: one of these settings, repeatable")
	cmd.AddCommand(f.check(), f.dump(), f.repair(), f.info())
	return cmd
}

// options reads what of the broker's configuration shapes a store. Sizes that are not set are found out from the files.
func (f *storeFlags) options(dir string) (o storetool.Options, levels string, err error) {
	c := config.NewFor(config.Broker)
	if f.file != "" {
		if err := c.LoadFile(f.file); err != nil {
			return o, "", err
		}
	}
	for _, kv := range f.set {
		key, value, ok := strings.Cut(kv, "=")
		if !ok {
			return o, "", fmt.Errorf("--set %s: want key=value", kv)
		}
		if err := c.Set(key, value, "--set"); err != nil {
			return o, "", err
		}
	}
	o.Dir, o.LogDir = strings.TrimRight(dir, "/"), c.Text("storePathCommitLog")
	if o.Dir == "" {
		o.Dir = "/"
	}
	defaults := config.NewFor(config.Broker)
	for key, to := range map[string]func(int64){
		"mappedFileSizeCommitLog":    func(n int64) { o.SegmentSize = n },
		"mappedFileSizeConsumeQueue": func(n int64) { o.QueueSize = n },
		"maxHashSlotNum":             func(n int64) { o.IndexSlots = int(n) },
		"maxIndexNum":                func(n int64) { o.IndexSize = int(n) },
	} {
		if c.Int(key) != defaults.Int(key) {
			to(c.Int(key))
		}
	}
	if (o.IndexSlots == 0) != (o.IndexSize == 0) {
		o.IndexSlots, o.IndexSize = int(c.Int("maxHashSlotNum")), int(c.Int("maxIndexNum"))
	}
	return o, c.Text("messageDelayLevel"), nil
}

func (f *storeFlags) open(dir string) (*storetool.Folder, error) {
	o, _, err := f.options(dir)
	if err != nil {
		return nil, err
	}
	return storetool.Open(o)
}

func (f *storeFlags) check() *cobra.Command {
	return &cobra.Command{Use: "check DIR", Short: "Compare every layer with every other; exit status 1 on findings", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			begin := time.Now()
			d, err := f.open(args[0])
			if err != nil {
				return err
			}
			r, err := d.Check()
			if err != nil {
				return err
			}
			w := bufio.NewWriter(cmd.OutOrStdout())
			r.Print(w, time.Since(begin))
			if err := w.Flush(); err != nil {
				return err
			}
			if n := len(r.Findings); n > 0 {
				return fmt.Errorf("%s: %d findings", args[0], n)
			}
			return nil
		}}
}

func (f *storeFlags) dump() *cobra.Command {
	cmd := &cobra.Command{Use: "dump DIR", Short: "Print messages in the order of the log", Args: cobra.ExactArgs(1)}
	fl := cmd.Flags()
	topic := fl.String("topic", "", "only of this topic")
	queue := fl.Int32("queue", -1, "only of this queue")
	key := fl.String("key", "", "only with this key or unique key")
	from := fl.String("from", "", "only stored at or after this time: 2026-01-31T15:04:05, with or without a zone, or ms since 1970")
	to := fl.String("to", "", "only stored before this time")
	offset := fl.Int64("offset", 0, "only from this queue offset on")
	limit := fl.Int("limit", 0, "stop after so many; 0: all")
	output := fl.StringP("output", "o", "text", "text or json: an object a line")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *output != "text" && *output != "json" {
			return fmt.Errorf("-o %s: want text or json", *output)
		}
		filter := storetool.Filter{Topic: *topic, Queue: *queue, Key: *key, Offset: *offset, Limit: *limit}
		var err error
		if filter.From, err = parseTime("--from", *from); err != nil {
			return err
		}
		if filter.To, err = parseTime("--to", *to); err != nil {
			return err
		}
		d, err := f.open(args[0])
		if err != nil {
			return err
		}
		w := bufio.NewWriterSize(cmd.OutOrStdout(), 1<<16)
		if _, err := d.Dump(filter, *output == "json", w, cmd.ErrOrStderr()); err != nil {
			return err
		}
		return w.Flush()
	}
	return cmd
}

// parseTime reads a time of a flag; "" is none.
func parseTime(flag, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.UnixMilli(ms), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999", "2006-01-02 15:04:05.999", "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s %s: want a time like 2026-01-31T15:04:05, or ms since 1970", flag, s)
}

func (f *storeFlags) repair() *cobra.Command {
	cmd := &cobra.Command{Use: "repair DIR", Short: "Say what a repair would do, and with --yes do it", Args: cobra.ExactArgs(1),
		Long: "Says what it will do about what check finds. With --yes it does it, and keeps copies of what it changes in a folder beside (DIR.repair-TIME).\n" +
			"Where the broker's delay levels are not the default ones, give its file: the delivery times in a queue that is built anew depend on them."}
	yes := cmd.Flags().Bool("yes", false, "do it")
	index := cmd.Flags().Bool("index", false, "build the index anew though nothing in it is wrong")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o, levels, err := f.options(args[0])
		if err != nil {
			return err
		}
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		return storetool.Repair(o, storetool.RepairOptions{Yes: *yes, Index: *index, Levels: levels, Now: time.Now(), Logger: log}, cmd.OutOrStdout())
	}
	return cmd
}

func (f *storeFlags) info() *cobra.Command {
	cmd := &cobra.Command{Use: "info DIR", Short: "Tell sizes, counts and ranges", Args: cobra.ExactArgs(1)}
	output := cmd.Flags().StringP("output", "o", "text", "text or json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := f.open(args[0])
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		switch *output {
		case "text":
			w := bufio.NewWriter(cmd.OutOrStdout())
			i.Print(w)
			return w.Flush()
		case "json":
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetIndent("", "  ")
			return enc.Encode(i)
		}
		return fmt.Errorf("-o %s: want text or json", *output)
	}
	return cmd
}
