// Package config declares the settings: each once, with its key, default, meaning and legal range. Keys are
// RocketMQ's where it has one, so that a broker.conf starts unchanged.
//
// Values come, later ones winning, from the defaults, a properties file, the environment (APOGEE_ and the key in
// upper case with underscores) and flags.
package config

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

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
	Key      string
	Kind     Kind
	Default  string
	Min      int64
	Max      int64
	Clamped  bool  // Int: a value outside is taken as the nearest one inside, as RocketMQ does
	Multiple int64 // Int: a value is taken as the next multiple, as RocketMQ does
	Choices  []string
	Ours     bool   // RocketMQ has no such key
	Flag     string // the command-line flag that sets it, without dashes; its variable (--data: APOGEE_DATA) does too
	Meaning  string
	rule     rule
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

func (s Setting) flag(name string) Setting {
	s.Flag = name
	return s
}

func multipleOf(n int64, s Setting) Setting {
	s.Multiple = n
	return s
}

func (s Setting) clamped() Setting {
	s.Clamped = true
	return s
}

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
	// maxFile is the largest file Java maps. Slots and entries of an index file at their largest stay below it.
	maxFile = int64(1)<<31 - 1
)

// Settings returns all declarations, in the order in which they are documented.
func Settings() []Setting {
	return []Setting{
		text("brokerName", "", "name of the broker; default the host's name").is(wantServerName, isServerName).unset(),
		text("brokerClusterName", "DefaultCluster", "name of the cluster").is(wantServerName, isServerName),
		num("brokerId", 0, 0, 0, "0: a master").is("0: replicas are not served by this version", nil),
		text("brokerIP1", "", "address that clients are told; unset: the one through which they reached the server").is("an IP address", isIP).unset(),
		text("bindAddress", "127.0.0.1", "address to listen on; 0.0.0.0 for all").is("an IP address", isIP).flag("listen"),
		num("listenPort", 10911, 0, 65535, "port of the broker; the VIP listener is two below; 0 picks free ones. Of a name server that runs alone: its port").
			is("0, or a whole number from 3 to 65535", isBrokerPort).flag("broker-port"),
		ours(num("namesrvPort", 9876, 0, 65535, "port of the name server; 0 picks a free one")).flag("namesrv-port"),
		ours(num("httpPort", 8088, 0, 65535, "port of health and metrics; 0 picks a free one")).flag("http-port"),
		ours(text("httpAddress", "127.0.0.1", "address of health and metrics")).is("an IP address or localhost", isHost),
		text("namesrvAddr", "", "name servers of a broker that runs alone").is("addresses HOST:PORT separated by ;", areAddresses).unset().flag("namesrv"),
		text("storePathRootDir", "", "folder of the store; default apogee in the home folder, or in the working folder of a process without one").
			is("a path; ${…} and ~ are not expanded and so refused", isPath).unset().flag("data"),
		text("storePathCommitLog", "", "folder of the commit log; default commitlog in the store").
			is("one path; several, separated by commas, are not served, ${…} and ~ are not expanded", isOnePath).unset(),
		text("kvConfigPath", "", "file of the name server's KV configuration; default namesrv/kvConfig.json in the store's folder").
			is("a path; ${…} and ~ are not expanded and so refused", isPath).unset(),
		{Key: "brokerRole", Kind: Choice, Default: "ASYNC_MASTER", Choices: []string{"ASYNC_MASTER"},
			rule: rule{want: "ASYNC_MASTER: replicas are not served by this version"}, Meaning: "a master without replicas"},
		{Key: "flushDiskType", Kind: Choice, Default: "SYNC_FLUSH", Choices: []string{"SYNC_FLUSH", "ASYNC_FLUSH"},
			Meaning: "SYNC_FLUSH answers a send when it is on the disk (the default here), ASYNC_FLUSH when the operating system has it"},
		num("flushIntervalCommitLog", 500, 10, 60_000, "ms between flushes in ASYNC_FLUSH"),
		num("mappedFileSizeCommitLog", gib, 64*kib, maxFile, "bytes of a commit-log file; must be what the store was made with"),
		multipleOf(20, num("mappedFileSizeConsumeQueue", 6_000_000, 2000, maxFile-7, "bytes of a consume-queue file, rounded up to whole entries of 20; must be what the store was made with")),
		num("maxHashSlotNum", 5_000_000, 16, 100_000_000, "slots of an index file; must be what the store was made with"),
		num("maxIndexNum", 20_000_000, 16, 80_000_000, "entries of an index file; must be what the store was made with"),
		flag("messageIndexEnable", true, "index messages by key"),
		num("maxMessageSize", 4*mib, kib, 12*mib, "largest body in bytes"),
		text("messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", "delays of the levels, from 1 on").
			is("delays like 30s 5m 2h 1d separated by spaces, each a year at most", areDelays),
		flag("autoCreateTopicEnable", true, "a topic comes into being when a producer sends to it"),
		flag("autoCreateSubscriptionGroup", true, "a group comes into being when a consumer names it"),
		num("defaultTopicQueueNums", 8, 1, 1024, "most queues of a topic that comes into being by itself"),
		flag("clusterTopicEnable", true, "the topic named like the cluster may be used"),
		flag("brokerTopicEnable", true, "the topic named like the broker may be used"),
		flag("traceTopicEnable", false, "make the trace topic"),
		text("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", "name of the trace topic").is("1 to 127 characters of A-Z a-z 0-9 _ - % |", isTopicName),
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
		num("registerNameServerPeriod", 30_000, 10_000, 60_000, "ms between registrations with name servers").clamped(),
		num("accessMessageInMemoryMaxRatio", 40, 0, 100, "percent of the machine's memory that the newest messages are taken to lie in; 0: none"),
		num("maxTransferBytesOnMessageInMemory", 256*kib, kib, 12*mib, "most bytes of a pull from memory"),
		num("maxTransferCountOnMessageInMemory", 32, 1, 1024, "most messages of a pull from memory"),
		num("maxTransferBytesOnMessageInDisk", 64*kib, kib, 12*mib, "most bytes of a pull from the disk"),
		num("maxTransferCountOnMessageInDisk", 8, 1, 1024, "most messages of a pull from the disk"),
		num("defaultQueryMaxNum", 32, 1, 64, "most messages of a query by unique key"),
		num("fileReservedTime", 72, 1, 87_600, "hours that commit-log files are kept"),
		text("deleteWhen", "04", "hours of the day at which expired files go").is("hours from 0 to 23 separated by ;", areHours),
		num("cleanResourceInterval", 10_000, 1000, 600_000, "ms between looks at the disk"),
		num("diskMaxUsedSpaceRatio", 75, 10, 95, "percent of the disk in use above which expired files go at any hour").clamped(),
		num("diskSpaceCleanForciblyRatio", 85, 30, 99, "percent above which the oldest files go whatever their age"),
		num("diskSpaceWarningLevelRatio", 90, 35, 99, "percent above which sends are refused, until use is down to diskSpaceCleanForciblyRatio"),
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
	role   Role
	values map[string]string
	decls  map[string]Setting
	inert  map[string]string // see inertKeys; filled when first needed
	Notes  []string          // what the one who starts it should know: one line each
}

// New returns the defaults of a process that is name server and broker.
func New() *Config { return NewFor(AllInOne) }

// NewFor returns the defaults of a process with the given role.
func NewFor(role Role) *Config {
	c := &Config{role: role, values: map[string]string{}, decls: map[string]Setting{}}
	for _, s := range Settings() {
		c.values[s.Key], c.decls[s.Key] = s.Default, s
	}
	return c
}

// Set sets one value. A key that only RocketMQ knows is accepted and noted with the reason, or refused when ignoring
// it would do harm; an unknown one is noted with the nearest known. A value out of range is an error that names key,
// value and legal values. from says where it came from.
func (c *Config) Set(key, value, from string) error {
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	s, ok := c.decls[key]
	if !ok {
		return c.setOther(key, value, from)
	}
	if c.role == NameServer && key == "listenPort" {
		s = c.decls["namesrvPort"]
		s.Key, key = key, s.Key // errors name the key as it was given
	}
	kept, note, err := s.read(value)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if note != "" {
		c.note("%s: %s", from, note)
	}
	c.values[key] = kept
	return nil
}

func (c *Config) note(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

// LoadFile reads a properties file. ${…} in it is text, as for a Java broker.
func (c *Config) LoadFile(name string) error {
	l := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	p, err := l.LoadFile(name)
	if err != nil {
		return fmt.Errorf("configuration file %s: %w", name, err)
	}
	for _, k := range p.Keys() {
		v, _ := p.Get(k)
		if err := c.Set(k, v, name); err != nil {
			return err
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
	if err != nil {
		host = ""
	}
	return legalName(host)
}

// legalName turns a host's name into a broker's. A dot goes too: the broker's topic of that name is one that any
// client may ask for by RocketMQ's rules for names, which know no dots.
func legalName(host string) string {
	name := []byte(host)
	for i := range name {
		if !onlyOf(string(name[i:i+1]), "_-") {
			name[i] = '-'
		}
	}
	if len(name) == 0 {
		return "broker-a"
	}
	return string(name[:min(len(name), 99)])
}

// DataDir returns the store's folder as an absolute path: storePathRootDir, or apogee in the home folder.
func (c *Config) DataDir() (string, error) {
	dir := c.Text("storePathRootDir")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			home = "."
		}
		dir = filepath.Join(home, "apogee")
	}
	return filepath.Abs(dir)
}

// Render returns all values as properties, sorted, for the admin requests that read settings.
func (c *Config) Render() string {
	keys := make([]string, 0, len(c.values))
	for k := range c.values {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "%s=%s\n", k, c.shown(k))
	}
	return b.String()
}

// shown returns a value as those who read settings want it: what is unset is what is used instead.
func (c *Config) shown(key string) string {
	v := c.values[key]
	dir, err := c.DataDir()
	switch {
	case key == "listenPort" && c.role == NameServer:
		return c.values["namesrvPort"]
	case key == "brokerName":
		return c.BrokerName()
	case err != nil:
	case key == "storePathRootDir":
		return dir
	case key == "storePathCommitLog" && v == "":
		return filepath.Join(dir, "commitlog")
	case key == "kvConfigPath" && v == "":
		return filepath.Join(dir, "namesrv", "kvConfig.json")
	}
	return v
}
