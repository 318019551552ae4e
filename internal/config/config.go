// Package config declares the settings: each once, with its key, default, meaning and legal range. Keys are
// RocketMQ's where it has one, so that a broker.conf starts unchanged.
//
// Values come, later ones winning, from the defaults, a properties file, the environment (APOGEE_ and the key in
// upper case with underscores) and flags.
package config

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"unicode"

	"github.com/magiconair/properties"
)

// Kind is the kind of a setting's value.
type Kind int

// The kinds.
const (
	Text Kind = iota
	Int       // within Min and Max
	Bool
	Choice // one of Choices
)

// Setting declares one setting.
type Setting struct {
	Key     string
	Kind    Kind
	Default string
	Min     int64
	Max     int64
	Choices []string
	Ours    bool // RocketMQ has no such key
	Meaning string
}

func text(key, def, meaning string) Setting {
	return Setting{Key: key, Kind: Text, Default: def, Meaning: meaning}
}

func num(key string, def, lo, hi int64, meaning string) Setting {
	return Setting{Key: key, Kind: Int, Default: strconv.FormatInt(def, 10), Min: lo, Max: hi, Meaning: meaning}
}

func flag(key string, def bool, meaning string) Setting {
	return Setting{Key: key, Kind: Bool, Default: strconv.FormatBool(def), Meaning: meaning}
}

func ours(s Setting) Setting {
	s.Ours = true
	return s
}

const (
	kib  = int64(1) << 10
	mib  = int64(1) << 20
	gib  = int64(1) << 30
	many = int64(1) << 31
)

// Settings returns all declarations, in the order in which they are documented.
func Settings() []Setting {
	return []Setting{
		text("brokerName", "", "name of the broker; default the host's name"),
		text("brokerClusterName", "DefaultCluster", "name of the cluster"),
		num("brokerId", 0, 0, 0, "0: a master; replicas are not served by this version"),
		text("brokerIP1", "", "address that clients are told; unset: the one through which they reached the server"),
		text("bindAddress", "127.0.0.1", "address to listen on; 0.0.0.0 for all"),
		num("listenPort", 10911, 0, 65535, "port of the broker; the VIP listener is two below; 0 picks free ones"),
		ours(num("namesrvPort", 9876, 0, 65535, "port of the name server; 0 picks a free one")),
		ours(num("httpPort", 8088, 0, 65535, "port of health and metrics; 0 picks a free one")),
		ours(text("httpAddress", "127.0.0.1", "address of health and metrics")),
		text("namesrvAddr", "", "name servers of a broker that runs alone, separated by ;"),
		text("storePathRootDir", "apogee-data", "folder of the store"),
		text("storePathCommitLog", "", "folder of the commit log; default commitlog in the store"),
		text("kvConfigPath", "", "file of the name server's KV configuration; default kvConfig.json in the store's folder"),
		{Key: "flushDiskType", Kind: Choice, Default: "SYNC_FLUSH", Choices: []string{"SYNC_FLUSH", "ASYNC_FLUSH"},
			Meaning: "SYNC_FLUSH answers a send when it is on the disk (the default here), ASYNC_FLUSH when the operating system has it"},
		num("flushIntervalCommitLog", 500, 10, 60_000, "ms between flushes in ASYNC_FLUSH"),
		num("mappedFileSizeCommitLog", gib, 64*kib, 4*gib, "bytes of a commit-log file; must be what the store was made with"),
		num("mappedFileSizeConsumeQueue", 6_000_000, 2000, gib, "bytes of a consume-queue file, a multiple of 20; must be what the store was made with"),
		num("maxHashSlotNum", 5_000_000, 16, many, "slots of an index file; must be what the store was made with"),
		num("maxIndexNum", 20_000_000, 16, many, "entries of an index file; must be what the store was made with"),
		flag("messageIndexEnable", true, "index messages by key"),
		num("maxMessageSize", 4*mib, kib, 12*mib, "largest body in bytes"),
		text("messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", "delays of the levels, from 1 on"),
		flag("autoCreateTopicEnable", true, "a topic comes into being when a producer sends to it"),
		flag("autoCreateSubscriptionGroup", true, "a group comes into being when a consumer names it"),
		num("defaultTopicQueueNums", 8, 1, 1024, "most queues of a topic that comes into being by itself"),
		flag("clusterTopicEnable", true, "the topic named like the cluster may be used"),
		flag("brokerTopicEnable", true, "the topic named like the broker may be used"),
		flag("traceTopicEnable", false, "make the trace topic"),
		text("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", "name of the trace topic"),
		text("regionId", "DefaultRegion", "region that messages are stamped with"),
		flag("traceOn", true, "producers are told to trace"),
		num("brokerPermission", 6, 0, 6, "4 read, 2 write"),
		flag("longPollingEnable", true, "park pulls as long as they ask"),
		num("shortPollingTimeMills", 1000, 1, 60_000, "ms that pulls are parked without long polling"),
		num("flushConsumerOffsetInterval", 5000, 100, 600_000, "ms between writes of changed consumer offsets"),
		num("flushDelayOffsetInterval", 10_000, 100, 600_000, "ms between writes of the delay levels' progress"),
		num("channelExpiredTimeout", 120_000, 1000, 3_600_000, "ms after which a client without heartbeats is dropped"),
		ours(num("lockReleaseGraceMillis", 4000, 0, 60_000, "ms that a member which holds queue locks may take to come back after its connection ended")),
		ours(num("rebalanceLockMaxLiveTime", 60_000, 1000, 600_000, "ms of a queue lock's lease")),
		flag("notifyConsumerIdsChangedEnable", true, "tell members of a group when it changes"),
		num("registerNameServerPeriod", 30_000, 10_000, 60_000, "ms between registrations with name servers"),
		num("accessMessageInMemoryMaxRatio", 40, 0, 100, "percent of the machine's memory that the newest messages are taken to lie in; 0: none"),
		num("maxTransferBytesOnMessageInMemory", 256*kib, kib, 12*mib, "most bytes of a pull from memory"),
		num("maxTransferCountOnMessageInMemory", 32, 1, 1024, "most messages of a pull from memory"),
		num("maxTransferBytesOnMessageInDisk", 64*kib, kib, 12*mib, "most bytes of a pull from the disk"),
		num("maxTransferCountOnMessageInDisk", 8, 1, 1024, "most messages of a pull from the disk"),
		num("defaultQueryMaxNum", 32, 1, 64, "most messages of a query by unique key"),
		num("fileReservedTime", 72, 1, 87_600, "hours that commit-log files are kept"),
		text("deleteWhen", "04", "hours of the day at which expired files go, separated by ;"),
		num("cleanResourceInterval", 10_000, 1000, 600_000, "ms between looks at the disk"),
		num("diskMaxUsedSpaceRatio", 75, 10, 99, "percent of the disk in use above which expired files go at any hour"),
		num("diskSpaceCleanForciblyRatio", 85, 30, 99, "percent above which the oldest files go whatever their age"),
		flag("cleanFileForciblyEnable", true, "let the oldest files go when the disk is that full"),
		num("serverChannelMaxIdleTimeSeconds", 120, 1, 3600, "s after which an idle connection is closed"),
		ours(num("maxConnections", 100_000, 1, 1_000_000, "connections of one listener")),
		ours(num("maxParkedPulls", 200_000, 1, 10_000_000, "pulls that may wait for messages at once")),
		flag("orderMessageEnable", false, "name server: ordered topics' queues in routes"),
		flag("returnOrderTopicConfigToBroker", true, "name server: tell brokers which topics are ordered"),
		flag("enableTopicList", true, "name server: answer topic lists by cluster and unit"),
		flag("enableAllTopicList", true, "name server: answer the list of all topics"),
		flag("deleteTopicWithBrokerRegistration", false, "name server: a topic that a broker doesn't report is dropped"),
		flag("supportActingMaster", false, "name server: the smallest replica stands in for a lost master in routes"),
		num("scanNotActiveBrokerInterval", 5000, 100, 600_000, "name server: ms between looks for silent brokers"),
	}
}

// Config are the values of all settings.
type Config struct {
	values map[string]string
	decls  map[string]Setting
	Notes  []string // what the one who starts it should know: one line each
}

// New returns the defaults.
func New() *Config {
	c := &Config{values: map[string]string{}, decls: map[string]Setting{}}
	for _, s := range Settings() {
		c.values[s.Key], c.decls[s.Key] = s.Default, s
	}
	return c
}

//go:embed javakeys.txt
var javaKeys string

// Set sets one value. A key that only RocketMQ knows is accepted and noted, an unknown one is noted with the nearest
// known; a value out of range is an error that names the range. from says where it came from.
func (c *Config) Set(key, value, from string) error {
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	s, ok := c.decls[key]
	if !ok {
		for _, k := range strings.Fields(javaKeys) {
			if k == key {
				c.Notes = append(c.Notes, fmt.Sprintf("%s: %s is RocketMQ's and has no meaning here", from, key))
				return nil
			}
		}
		c.Notes = append(c.Notes, fmt.Sprintf("%s: %s is no setting; did you mean %s?", from, key, c.nearest(key)))
		return nil
	}
	if err := s.check(value); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	c.values[key] = value
	return nil
}

func (s Setting) check(v string) error {
	switch s.Kind {
	case Int:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < s.Min || n > s.Max {
			return fmt.Errorf("%s=%s: want a whole number from %d to %d", s.Key, v, s.Min, s.Max)
		}
	case Bool:
		if v != "true" && v != "false" {
			return fmt.Errorf("%s=%s: want true or false", s.Key, v)
		}
	case Choice:
		for _, c := range s.Choices {
			if v == c {
				return nil
			}
		}
		return fmt.Errorf("%s=%s: want one of %s", s.Key, v, strings.Join(s.Choices, ", "))
	}
	return nil
}

// nearest returns the declared key with the least edits from key.
func (c *Config) nearest(key string) string {
	best, at := "", 1<<30
	keys := make([]string, 0, len(c.decls))
	for k := range c.decls {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		if d := edits(strings.ToLower(key), strings.ToLower(k)); d < at {
			best, at = k, d
		}
	}
	return best
}

func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := last
			if a[i] != b[j] {
				d = 1 + min(last, row[j], row[j+1])
			}
			last, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}

// LoadFile reads a properties file. ${…} in it is text, as for a Java broker.
func (c *Config) LoadFile(name string) error {
	l := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	p, err := l.LoadFile(name)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	for _, k := range p.Keys() {
		v, _ := p.Get(k)
		if err := c.Set(k, v, name); err != nil {
			return err
		}
	}
	return nil
}

// EnvName returns the environment variable of a key: brokerIP1 → APOGEE_BROKER_IP1.
func EnvName(key string) string {
	var b strings.Builder
	b.WriteString("APOGEE_")
	for i, r := range key {
		if i > 0 && unicode.IsUpper(r) && !unicode.IsUpper(rune(key[i-1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}

// LoadEnv takes the settings that environ (as os.Environ) has.
func (c *Config) LoadEnv(environ []string) error {
	names := map[string]string{}
	for k := range c.decls {
		names[EnvName(k)] = k
	}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if k, ok := names[name]; ok {
			if err := c.Set(k, value, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Text returns a value as text; Int, Bool likewise. The key must be declared.
func (c *Config) Text(key string) string { return c.values[key] }

// Int see Text.
func (c *Config) Int(key string) int64 {
	n, _ := strconv.ParseInt(c.values[key], 10, 64) // checked when set
	return n
}

// Bool see Text.
func (c *Config) Bool(key string) bool { return c.values[key] == "true" }

// BrokerName returns brokerName, or the host's name made legal.
func (c *Config) BrokerName() string {
	if n := c.Text("brokerName"); n != "" {
		return n
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		return "broker-a"
	}
	return strings.Map(func(r rune) rune {
		if r < 128 && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_') {
			return r
		}
		return '-'
	}, host)
}

// DataDir returns the store's folder as an absolute path.
func (c *Config) DataDir() (string, error) { return filepath.Abs(c.Text("storePathRootDir")) }

// Render returns all values as properties, sorted, for the admin requests that read settings.
func (c *Config) Render() string {
	keys := make([]string, 0, len(c.values))
	for k := range c.values {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "%s=%s\n", k, c.values[k])
	}
	return b.String()
}
