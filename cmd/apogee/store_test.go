package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apogeemq/apogee/client"
)

// runStore runs `apogee store args…`.
func runStore(t *testing.T, args ...string) (out, notes string, err error) {
	t.Helper()
	cmd := storeCommand()
	var o, e bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(&e)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err = cmd.Execute()
	return o.String(), e.String(), err
}

// TestStoreCommands looks into a server's folder while it runs and after it stopped, hurts it, and repairs it.
func TestStoreCommands(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, stop := startServer(t, dir, "mappedFileSizeCommitLog=1048576", "mappedFileSizeConsumeQueue=20000", "maxHashSlotNum=1000", "maxIndexNum=4000")
	c, err := connect(s.NamesrvAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer closeClient(c)
	p, err := c.NewProducer("pg")
	if err != nil {
		t.Fatal(err)
	}
	var last *client.SendResult
	for i := range 20 {
		if last, err = p.Send(timeout(t), &client.Message{Topic: "Cmd", Keys: []string{fmt.Sprint("key", i)}, Body: fmt.Append(nil, "body ", i)}); err != nil {
			t.Fatal(err)
		}
	}
	sizes := []string{"--set", "maxHashSlotNum=1000", "--set", "maxIndexNum=4000"}
	run := func(args ...string) (string, string, error) {
		t.Helper()
		return runStore(t, append(args, sizes...)...)
	}
	out, _, err := run("check", dir)
	if err != nil || !strings.Contains(out, "a broker has the folder open") || !strings.Contains(out, "sound") {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, _, err = run("repair", dir, "--yes"); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, _, err = run("dump", dir, "--topic", "Cmd", "--key", "key7", "-o", "json"); err != nil || strings.Count(out, "\n") != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	var m struct{ Topic, Body string }
	if err := json.Unmarshal([]byte(out), &m); err != nil || m.Topic != "Cmd" || m.Body != "body 7" {
		t.Errorf("%v %+v", err, m)
	}
	stop()
	out, _, err = run("info", dir)
	if err != nil || !strings.Contains(out, "stopped cleanly") || !strings.Contains(out, "Cmd 0: offsets 0 to ") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err = run("info", dir, "-o", "json"); err != nil || !json.Valid([]byte(out)) {
		t.Errorf("%v\n%s", err, out)
	}

	name := filepath.Join(dir, "consumequeue", "Cmd", fmt.Sprint(last.Queue), "00000000000000000000")
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{9}, last.QueueOffset*20+6); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if out, _, err = run("check", dir); err == nil || !strings.Contains(out, fmt.Sprintf("consumequeue/Cmd/%d/00000000000000000000 at %d: ", last.Queue, last.QueueOffset*20)) {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, _, err = run("repair", dir); err == nil || !strings.Contains(err.Error(), "--yes") || !strings.Contains(out, "will build the consume queue") {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, _, err = run("repair", dir, "--yes"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if copies, err := filepath.Glob(dir + ".repair-*/consumequeue/Cmd/*/*"); err != nil || len(copies) == 0 {
		t.Errorf("no copy of what was changed: %v", err)
	}
	if out, _, err = run("check", dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, args := range [][]string{{"dump", dir, "--from", "yesterday"}, {"dump", dir, "-o", "xml"}, {"info", dir, "-o", "xml"}, {"check", t.TempDir()}, {"check", dir, "--set", "mappedFileSizeCommitLog"}} {
		if out, _, err := runStore(t, args...); err == nil {
			t.Errorf("%v: no error\n%s", args, out)
		}
	}
}
