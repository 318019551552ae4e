package broker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/apogeemq/apogee/internal/broker/topic"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/vfs"
)

// TestDeletedUnread: what cleaning deletes before a group consumed it is logged and counted, by group and topic.
func TestDeletedUnread(t *testing.T) {
	var log bytes.Buffer
	b := openOn(t, vfs.NewMem(), slog.New(slog.NewTextHandler(&log, nil)))
	defer func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	for i := range 60 {
		if _, err := b.store.Put(t.Context(), &message.Message{Topic: "T", Body: []byte(strings.Repeat("x", 900)), QueueID: int32(i % 2)}); err != nil {
			t.Fatal(err)
		}
	}
	b.offsets.Commit("T", "slow", 0, 3)
	b.offsets.Commit("T", "slow", 1, 0)
	b.offsets.Commit("T", "done", 0, 30)
	b.offsets.Commit("other", "elsewhere", 0, 0)
	b.now = func() time.Time { return time.Now().Add(time.Hour) }
	for range 3 { // cleaning again finds nothing new
		if _, err := b.clean(true); err != nil {
			t.Fatal(err)
		}
	}
	want := int64(0)
	for q, at := range []int64{3, 0} {
		lo := b.store.MinOffset("T", int32(q))
		if lo == 0 {
			t.Fatalf("nothing of queue %d was deleted", q)
		}
		want += lo - at
	}
	figures := b.unread.figures()
	if len(figures) != 1 || figures[0].Labels["group"] != "slow" || figures[0].Labels["topic"] != "T" || figures[0].Value != float64(want) {
		t.Errorf("%+v, want %d messages of T for group slow", figures, want)
	}
	if line := fmt.Sprintf("group=slow topic=T messages=%d", want); strings.Count(log.String(), line) != 1 || strings.Contains(log.String(), "group=done") {
		t.Errorf("the log doesn't say %s once:\n%s", line, log.String())
	}
}

// TestCleanUnusedTopics: consume queues of topics that the table doesn't know go, all others stay.
func TestCleanUnusedTopics(t *testing.T) {
	b := openOn(t, vfs.NewMem(), slog.New(slog.DiscardHandler))
	defer func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if err := b.topics.Update(topic.Config{TopicName: "known", ReadQueueNums: 1, WriteQueueNums: 1, Perm: 6, TopicFilterType: "SINGLE_TAG"}, "", b.now()); err != nil {
		t.Fatal(err)
	}
	names := []string{"known", "unknown", message.ScheduleTopic, message.HalfTopic}
	for _, name := range names {
		if _, err := b.store.Put(t.Context(), &message.Message{Topic: name, Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	h := handlerOf(protocol.CleanUnusedTopic)
	if h == nil {
		t.Fatal("the code is not served")
	}
	if r, err := h(b, nil, &remoting.Command{}); err != nil || r == nil {
		t.Fatal(r, err)
	}
	for _, name := range names {
		want := int64(1)
		if name == "unknown" {
			want = 0
		}
		if got := b.store.MaxOffset(name, 0); got != want {
			t.Errorf("topic %s ends at %d, want %d", name, got, want)
		}
	}
}
