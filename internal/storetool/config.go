package storetool

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sort"
	"strconv"
	"strings"

	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/metafile"
)

// configs is what the JSON files of config/ say.
type configs struct {
	topics  map[string]bool // nil: there is no sound file
	offsets map[string]map[int32]int64
	delays  map[int32]int64
	errs    []Finding
	bad     []badConfig
}

// badConfig is a metadata file that a repair removes, or replaces by its older generation (take).
type badConfig struct {
	file string
	take bool
}

// jsonFiles are the metadata files of a broker, Java's and ours; binary ones are left out.
var jsonFiles = []string{"topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json", "consumerOpen.apogee.json",
	"consumerFilter.json", "consumerOrderInfo.json", "topicQueueMapping.json", "messageRequestMode.json", "lmqConsumerOffset.json", "timermetrics", "transactionMetrics"}

// readConfigs reads the newest sound generation of each file, as a start of the broker does.
func (d *Folder) readConfigs() (*configs, error) {
	c := &configs{}
	for _, name := range jsonFiles {
		decode := c.decoder(name)
		file := path.Join("config", name)
		missing := false // or damaged
		for i, n := range []string{file, file + ".bak"} {
			b, err := d.read(d.path(n))
			if err != nil {
				return nil, err
			}
			if b == nil {
				if missing = true; i == 0 {
					if _, err := d.fs.Stat(d.path(file + ".bak")); err == nil {
						c.errs = append(c.errs, Finding{file, -1, "it is missing, there is " + path.Base(file) + ".bak", "the next start takes that one"})
					} else if !errors.Is(err, fs.ErrNotExist) {
						return nil, err
					}
				}
				continue
			}
			err = errors.New("it is empty")
			if len(b) > 0 {
				if b, err = metafile.Unseal(b); err == nil {
					err = decode(b)
				}
			}
			if err == nil {
				if i == 1 && missing {
					c.bad = append(c.bad, badConfig{file, true})
				}
				break
			}
			if missing = true; i == 1 {
				c.bad = append(c.bad, badConfig{file, false}, badConfig{n, false})
			} else if _, err := d.fs.Stat(d.path(file + ".bak")); errors.Is(err, fs.ErrNotExist) {
				c.bad = append(c.bad, badConfig{file, false})
			}
			remedy := "the next start takes " + path.Base(file) + ".bak"
			if i == 1 {
				remedy = "the next start passes it over"
			}
			c.errs = append(c.errs, Finding{n, -1, "it is damaged: " + err.Error(), remedy})
		}
	}
	d.topics = c.topics
	return c, nil
}

// decoder returns what keeps of a file what the check needs.
func (c *configs) decoder(name string) func([]byte) error {
	switch name {
	case "topics.json":
		return func(b []byte) error {
			var f struct{ TopicConfigTable map[string]any }
			if err := fastjson.Unmarshal(b, &f); err != nil {
				return err
			}
			c.topics = map[string]bool{}
			for t := range f.TopicConfigTable {
				c.topics[t] = true
			}
			return nil
		}
	case "consumerOffset.json":
		return func(b []byte) error {
			var f struct{ OffsetTable map[string]map[int32]int64 }
			if err := fastjson.Unmarshal(b, &f); err != nil {
				return err
			}
			c.offsets = f.OffsetTable
			return nil
		}
	case "delayOffset.json":
		return func(b []byte) error {
			var f struct{ OffsetTable map[int32]int64 }
			if err := fastjson.Unmarshal(b, &f); err != nil {
				return err
			}
			c.delays = f.OffsetTable
			return nil
		}
	}
	return func(b []byte) error {
		var f map[string]any
		return fastjson.Unmarshal(b, &f)
	}
}

// topicKnown reports whether topics.json has a topic; without a sound file each is taken for known.
func (d *Folder) topicKnown(topic string) bool { return d.topics == nil || d.topics[topic] }

// offsetFix is an offset that lies behind its queue's end.
type offsetFix struct {
	file     string
	name     string // topic@group; "" for delayOffset.json
	queue    int32  // or delay level
	was, end int64
}

// configs compares offsets and topics with the queues.
func (c *checker) configs(f *configs) {
	c.r.Findings = append(c.r.Findings, f.errs...)
	c.r.badConfigs = f.bad
	names := make([]string, 0, len(f.offsets))
	for name := range f.offsets {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		topic, group, ok := strings.Cut(name, "@")
		if !ok {
			c.note("config/consumerOffset.json: %q is no topic@group, it is passed over", name)
			continue
		}
		for _, id := range sortedIDs(f.offsets[name]) {
			c.r.Offsets++
			at, end := f.offsets[name][id], c.endOf(topic, id)
			if at > end {
				c.r.fixes = append(c.r.fixes, offsetFix{"consumerOffset.json", name, id, at, end})
				c.find("config/consumerOffset.json", -1, repairRemedy, "group %s has offset %d in topic %s queue %d, which ends at %d: it would miss what comes", group, at, topic, id, end)
			}
		}
	}
	for _, level := range sortedIDs(f.delays) {
		c.r.Offsets++
		if at, end := f.delays[level], c.endOf(message.ScheduleTopic, level-1); at > end {
			c.r.fixes = append(c.r.fixes, offsetFix{"delayOffset.json", "", level, at, end})
			c.find("config/delayOffset.json", -1, repairRemedy, "delay level %d has offset %d, its queue ends at %d: it would miss what comes", level, at, end)
		}
	}
	if f.topics == nil && c.r.Records > 0 {
		c.find("config/topics.json", -1, "topics that are made by themselves come back; make the others anew", "there is no sound one")
	}
	unknown := map[string]bool{}
	for key, q := range c.queues {
		if q.q != nil && q.q.hi > q.q.lo && !c.d.topicKnown(key.topic) && !strings.HasPrefix(key.topic, "%LMQ%") {
			unknown[key.topic] = true
		}
	}
	for _, t := range sortedKeys(unknown) {
		c.note("topic %s has consume queues and is not in config/topics.json: no client gets a route to it", t)
	}
	if c.inner > 0 {
		c.note("%d records in the log belong to batch consume queues, which are not served", c.inner)
	}
}

// endOf is where a queue ends, as far as its units and the log say.
func (c *checker) endOf(topic string, id int32) int64 {
	q := c.queues[queueKey{topic, id}]
	if q == nil {
		return 0
	}
	end := q.next
	if q.q != nil && q.q.hi > end {
		end = q.q.hi
	}
	return end
}

func sortedIDs(m map[int32]int64) []int32 {
	ids := make([]int32, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids
}

func sortedKeys(m map[string]bool) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// key is how an offset is named in JSON text.
func (f offsetFix) key() string { return strconv.Itoa(int(f.queue)) }

// String says what the fix does.
func (f offsetFix) String() string {
	if f.name == "" {
		return fmt.Sprintf("set delay level %d in config/%s from %d to %d, its queue's end", f.queue, f.file, f.was, f.end)
	}
	return fmt.Sprintf("set %s queue %d in config/%s from %d to %d, the queue's end", f.name, f.queue, f.file, f.was, f.end)
}
