package goclient

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// attempt is what a message said at one attempt: the client changes the message afterwards.
type attempt struct {
	at                          time.Time
	times                       int32
	topic, id, tags, keys, user string
	born                        int64
}

// attempts notes when and how each attempt at a message came, and says what is to become of it.
type attempts struct {
	mu   sync.Mutex
	list map[string][]attempt
	take func(ctx context.Context, m *primitive.MessageExt, n int) consumer.ConsumeResult
}

func (a *attempts) handle(ctx context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	now := time.Now()
	m := ms[0]
	a.mu.Lock()
	if a.list == nil {
		a.list = map[string][]attempt{}
	}
	body := string(m.Body)
	a.list[body] = append(a.list[body], attempt{now, m.ReconsumeTimes, m.Topic, m.MsgId, m.GetTags(), m.GetKeys(), m.GetProperty("own"), m.BornTimestamp})
	n := len(a.list[body])
	a.mu.Unlock()
	return a.take(ctx, m, n), nil
}

func (a *attempts) of(body string) []attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.list[body])
}

const javaRetry = "under the Java name server the route of a new group's retry topic is missing at the client's first look, and it looks again after 30 s"

// The real ladder's first step, for a group that nobody knew before.
func TestRetryFirst10s(t *testing.T) {
	c := begin(t, "retry-first-10s")
	c.apogeeOnly(javaRetry)
	s := c.server()
	topic := c.unique("topic")
	m := message(topic, "again")
	m.WithTag("T").WithKeys([]string{"k"})
	m.WithProperty("own", "ü")
	c.send(c.producer(s), m)
	a := &attempts{take: func(_ context.Context, _ *primitive.MessageExt, n int) consumer.ConsumeResult {
		if n == 1 {
			return consumer.ConsumeRetryLater
		}
		return consumer.ConsumeSuccess
	}}
	c.push(s, push{topic: topic, tags: "T", handle: a.handle})
	c.eventually(30*time.Second, "the retry", func() bool { return len(a.of("again")) == 2 })
	first, second := a.of("again")[0], a.of("again")[1]
	took := second.at.Sub(first.at)
	c.say("came again after %.1f s", took.Seconds())
	if took < 8*time.Second || took > 12*time.Second {
		c.Errorf("came again after %v, want 10 s ± 2 s", took)
	}
	first.at, first.times, second.at = time.Time{}, 1, time.Time{}
	if second != first || second.topic != topic || second.tags != "T" || second.keys != "k" || second.user != "ü" {
		c.Errorf("first %+v, again %+v", first, second)
	}
}

// A shortened ladder: the steps are levels 3, 4, 5 …
func TestRetryLadder(t *testing.T) {
	c := begin(t, "retry-ladder")
	c.apogeeOnly(javaRetry)
	s := c.server("messageDelayLevel=1s 4s 1s 2s 3s 1s")
	topic := c.unique("topic")
	p := c.producer(s)
	c.sendBodies(p, topic, "ladder", "own level")
	steps := map[string][]float64{"ladder": {1, 2, 3, 1}, "own level": {4, 4}}
	a := &attempts{take: func(ctx context.Context, m *primitive.MessageExt, n int) consumer.ConsumeResult {
		if n > len(steps[string(m.Body)]) {
			return consumer.ConsumeSuccess
		}
		if string(m.Body) == "own level" {
			if k, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				k.DelayLevelWhenNextConsume = 2
			}
		}
		return consumer.ConsumeRetryLater
	}}
	c.push(s, push{topic: topic, handle: a.handle})
	var took []string
	for body, want := range steps {
		c.eventually(30*time.Second, func() string { return fmt.Sprintf("%q came %d times", body, len(a.of(body))) },
			func() bool { return len(a.of(body)) == len(want)+1 })
		list := a.of(body)
		for i := range want {
			step := list[i+1].at.Sub(list[i].at).Seconds()
			took = append(took, fmt.Sprintf("%.1f", step))
			if step < want[i]-0.2 || step > want[i]+1.5 {
				c.Errorf("%q: retry %d after %.2f s, want %v s", body, i+1, step, want[i])
			}
			if got := list[i+1]; got.times != int32(i+1) || got.topic != topic || got.id != list[0].id {
				c.Errorf("%q: retry %d is %+v", body, i+1, got)
			}
		}
	}
	c.forAWhile(2*time.Second, "nothing comes after success", func() bool { return len(a.of("ladder")) == 5 && len(a.of("own level")) == 3 })
	c.say("steps of %s s", strings.Join(took, ", "))
}

// Exactly so many attempts, then %DLQ%, once.
func TestDLQ(t *testing.T) {
	c := begin(t, "dlq")
	s := c.server("messageDelayLevel=" + strings.TrimSpace(strings.Repeat("1s ", 18)))
	for name, k := range map[string]struct {
		max      int32
		attempts int
		level    int
	}{
		"max 2":    {2, 3, 0},
		"max 0":    {0, 1, 0},
		"default":  {-1, 17, 0},
		"at once":  {-1, 1, -1},
		"own rung": {3, 4, 1},
	} {
		c.sub(name, func(sub *testCase) {
			topic, group := sub.unique("topic"), sub.unique("group")
			m := message(topic, "poison")
			m.WithTag("T").WithKeys([]string{"k"})
			m.WithProperty("own", "ü")
			sub.send(sub.producer(s), m)
			a := &attempts{take: func(ctx context.Context, _ *primitive.MessageExt, _ int) consumer.ConsumeResult {
				if x, ok := primitive.GetConcurrentlyCtx(ctx); ok {
					x.DelayLevelWhenNextConsume = k.level
				}
				return consumer.ConsumeRetryLater
			}}
			sub.push(s, push{group: group, topic: topic, handle: a.handle, opts: []consumer.Option{consumer.WithMaxReconsumeTimes(k.max)}})
			sub.eventually(60*time.Second, func() string { return fmt.Sprintf("%d attempts", len(a.of("poison"))) },
				func() bool { return len(a.of("poison")) == k.attempts })
			for i, got := range a.of("poison") {
				if got.times != int32(i) {
					sub.Errorf("attempt %d says that it was tried %d times", i+1, got.times)
				}
			}
			dead, dlq := &inbox{}, "%DLQ%"+group
			sub.eventually(soon, "the dead-letter topic", func() bool {
				queues, err := sub.admin(s).FetchPublishMessageQueues(context.Background(), dlq)
				return err == nil && len(queues) == 1
			})
			sub.push(s, push{topic: dlq, handle: dead.take("")})
			got := sub.exactly(dead, soon, "poison")[0]
			if got.GetTags() != "T" || got.GetKeys() != "k" || got.GetProperty("own") != "ü" || got.GetProperty(primitive.PropertyRetryTopic) != topic {
				sub.Errorf("in the dead-letter queue: %v", got.MessageExt)
			}
			sub.forAWhile(2500*time.Millisecond, "no further attempt", func() bool { return len(a.of("poison")) == k.attempts && dead.count() == 1 })
		})
	}
}
