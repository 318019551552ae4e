package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/broker/delay"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/metafile"
	"github.com/apogeemq/apogee/internal/store"
	"github.com/apogeemq/apogee/internal/vfs"
)

// metadataFiles are the files of config/ that a broker loads.
var metadataFiles = []string{"topics.json", "subscriptionGroup.json", "consumerOffset.json", "consumerOpen.apogee.json", "delayOffset.json"}

func openOn(t *testing.T, fs vfs.FS, log *slog.Logger) *Broker {
	t.Helper()
	levels, err := delay.ParseLevels("1s 5s")
	if err != nil {
		t.Fatal(err)
	}
	now := time.UnixMilli(1_700_000_000_000)
	b, err := Open(Options{Name: "b", Cluster: "c", AutoTopic: true, AutoGroup: true, DefaultQueues: 4, Levels: levels, MaxParked: 10, DelayInterval: time.Hour,
		Logger: log, Now: func() time.Time { return now },
		Store: store.Options{Dir: "/d", FS: fs, SegmentSize: 8192, QueueSize: 400, IndexSlots: 8, IndexSize: 32, MaxOpenQueueFiles: 4}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// metadata is what a broker knows from its files, one text a file.
func metadata(t *testing.T, b *Broker) map[string]string {
	t.Helper()
	out := map[string]string{}
	encode := func(name string, v any) {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(text)
	}
	topics, _ := b.topics.All()
	encode("topics.json", topics)
	var groups []any
	for _, g := range []string{"g1", "g2"} {
		c, ok := b.groups.Get(g)
		groups = append(groups, c, ok)
	}
	encode("subscriptionGroup.json", groups)
	var offsets, open []any
	for q := range int32(2) {
		at, ok := b.offsets.Peek("T1", "g1", q)
		offsets = append(offsets, at, ok)
		open = append(open, b.offsets.Open("T1", "g1", q))
	}
	encode("consumerOffset.json", offsets)
	encode("consumerOpen.apogee.json", open)
	encode("delayOffset.json", b.delayed.Offsets())
	return out
}

// generations makes a broker's folder whose metadata files all have an older generation, and returns what each
// generation says.
func generations(t *testing.T) (fs *vfs.Mem, older, newest map[string]string) {
	t.Helper()
	fs = vfs.NewMem()
	b := openOn(t, fs, slog.New(slog.DiscardHandler))
	for range 9 {
		if _, err := b.store.Put(t.Context(), &message.Message{Topic: message.ScheduleTopic, QueueID: 1, Body: []byte("later"), Properties: message.AppendProperty(nil, message.PropertyDelayLevel, "2")}); err != nil {
			t.Fatal(err)
		}
	}
	save := func() {
		t.Helper()
		if err := errors.Join(b.offsets.Save(b.now()), b.delayed.Save(b.now())); err != nil {
			t.Fatal(err)
		}
	}
	step := func(n int64) map[string]string {
		t.Helper()
		// Queue 0 stays, so that what is open beyond it counts with either generation of the offsets.
		b.offsets.Commit("T1", "g1", 0, 10)
		b.offsets.Commit("T1", "g1", 1, 1000+n)
		b.offsets.SetOpen("T1", "g1", 0, 10, fmt.Sprint("open", n))
		save()
		return metadata(t, b)
	}
	first := step(1)
	step(2)
	if err := b.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	// Two generations that a running broker makes with the clock only, or with all system topics and groups in them, which
	// would make this test long.
	const topics, groups = `"%s":{"topicName":"%[1]s","readQueueNums":4,"writeQueueNums":4,"perm":6,"topicFilterType":"SINGLE_TAG"}`, `"%s":{"groupName":"%[1]s","consumeEnable":true}`
	for i := range 2 {
		t1, g1 := fmt.Sprintf(topics, "T1"), fmt.Sprintf(groups, "g1")
		if i == 1 {
			t1, g1 = t1+","+fmt.Sprintf(topics, "T2"), g1+","+fmt.Sprintf(groups, "g2")
		}
		for name, text := range map[string]string{
			"topics.json":            `{"topicConfigTable":{` + t1 + `}}`,
			"subscriptionGroup.json": `{"subscriptionGroupTable":{` + g1 + `}}`,
			"delayOffset.json":       fmt.Sprintf(`{"offsetTable":{"1":0,"2":%d}}`, 3+i),
		} {
			if err := metafile.Save(fs, "/d/config/"+name, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		b := openOn(t, fs.Kill(), slog.New(slog.DiscardHandler))
		if i == 0 {
			older = metadata(t, b)
		} else {
			newest = metadata(t, b)
		}
		if err := b.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"consumerOffset.json", "consumerOpen.apogee.json"} { // those were saved twice before
		older[name] = first[name]
	}
	return fs, older, newest
}

func put(t *testing.T, fs vfs.FS, name string, data []byte) {
	t.Helper()
	f, err := fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(data, 0)
	if err = errors.Join(err, f.Sync(), f.Close(), fs.SyncDir("/d/config")); err != nil {
		t.Fatal(err)
	}
}

func contentsOf(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.OpenFile(name, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDamagedMetadata cuts each metadata file at each byte, and flips each byte of it: the broker starts, has the newest
// sound generation of that file and the newest of all others, and says in one line what it dropped.
func TestDamagedMetadata(t *testing.T) {
	fs, older, newest := generations(t)
	for _, name := range metadataFiles {
		if older[name] == newest[name] {
			t.Fatalf("%s: both generations say %s", name, older[name])
		}
		full := contentsOf(t, fs, "/d/config/"+name)
		damaged := 0
		try := func(what string, data []byte) {
			t.Helper()
			m := fs.Kill()
			put(t, m, "/d/config/"+name, data)
			var log bytes.Buffer
			b := openOn(t, m, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
			got := metadata(t, b)
			if err := b.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			lines := 0
			for _, line := range strings.Split(log.String(), "\n") {
				if strings.Contains(line, "metadata: ") {
					if lines++; !strings.Contains(line, "/d/config/"+name+" is damaged") || !strings.Contains(line, "the older "+name+".bak was taken instead") {
						t.Fatalf("%s %s: it says %s", name, what, line)
					}
				}
			}
			want := older[name]
			if lines == 0 {
				want = newest[name] // what was hit means nothing: the contents are whole
			} else {
				damaged++
			}
			if lines > 1 || got[name] != want {
				t.Fatalf("%s %s: %d lines, has %s\nwant %s\n%s", name, what, lines, got[name], want, log.String())
			}
			for _, other := range metadataFiles {
				if other != name && got[other] != newest[other] {
					t.Fatalf("%s %s: %s has %s, want %s", name, what, other, got[other], newest[other])
				}
			}
		}
		tries := 0
		for i := range full {
			try(fmt.Sprintf("cut at %d", i), full[:i])
			b := bytes.Clone(full)
			b[i] ^= 1 << (i % 8)
			try(fmt.Sprintf("flipped at %d", i), b)
			tries += 2
		}
		if least := tries * 4 / 5; damaged < least {
			t.Errorf("%s: %d of %d damages were seen", name, damaged, tries)
		}
		t.Logf("%s: %d damages, %d dropped", name, tries, damaged)
	}
}
