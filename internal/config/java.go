package config

import (
	_ "embed"
	"fmt"
	"strings"
)

// Role says what the process is. Some keys mean different things by it.
type Role int

// The roles.
const (
	AllInOne   Role = iota // name server and broker
	NameServer             // a name server alone: listenPort is its port, as in a namesrv.conf
	Broker                 // a broker alone: NAMESRV_ADDR names its name servers when nothing else does
)

//go:embed javakeys.txt
var javaKeys string

// inertKeys returns the keys of RocketMQ that are accepted without an effect, with the reason.
func inertKeys() map[string]string {
	keys, reason := map[string]string{}, ""
	for line := range strings.Lines(javaKeys) {
		line = strings.TrimSpace(line)
		if r, ok := strings.CutPrefix(line, "= "); ok {
			reason = r
		} else if !strings.HasPrefix(line, "#") {
			for _, k := range strings.Fields(line) {
				keys[k] = reason
			}
		}
	}
	return keys
}

// refusal is a key of RocketMQ that may only have the values in only: with another one, a server that ignored it
// would stand open, or serve half of the messages it has.
type refusal struct {
	only   []string
	reason string
}

func refusals() map[string]refusal {
	off := []string{"false", ""}
	const open = "access control is not served by this version, and the server doesn't start rather than stand open"
	return map[string]refusal{
		"aclEnable":                   {off, open},
		"authenticationEnabled":       {off, open},
		"authorizationEnabled":        {off, open},
		"useTLS":                      {off, "TLS is not served by this version, and the server doesn't start rather than speak in the clear"},
		"storeType":                   {[]string{"default", ""}, "consume queues in RocksDB are not read by this version"},
		"configManagerVersion":        {[]string{"v1", ""}, "topics and offsets in RocksDB are not read by this version"},
		"enableDLegerCommitLog":       {off, "the log of a DLedger group is not read by this version"},
		"enableControllerMode":        {off, "a controller is not obeyed by this version: two masters could arise"},
		"messageStorePlugIn":          {[]string{""}, "messages behind a plug-in are not read by this version"},
		"readOnlyCommitLogStorePaths": {[]string{""}, "several commit-log paths are not read by this version"},
	}
}

// setOther handles a key that is no setting of Apogee.
func (c *Config) setOther(key, value, from string) error {
	if r, ok := refusals()[key]; ok {
		for _, v := range r.only {
			if strings.EqualFold(value, v) {
				return nil
			}
		}
		return fmt.Errorf("%s: %s=%s: want %s: %s", from, key, value, orNothing(r.only[0]), r.reason)
	}
	if reason, ok := c.inertKeys()[key]; ok {
		c.note("%s: %s is RocketMQ's and has no meaning here: %s", from, key, reason)
		return nil
	}
	if near := c.nearest(key); near != "" {
		c.note("%s: %s is no setting; did you mean %s?", from, key, near)
	} else {
		c.note("%s: %s is no setting, and none has a name like it", from, key)
	}
	return nil
}

func orNothing(v string) string {
	if v == "" {
		return "no value"
	}
	return v
}

// nearest returns the known key with the least edits from key, or "" when more than half of it would change.
func (c *Config) nearest(key string) string {
	best, least := "", len(key)/2+1
	look := func(k string) {
		d := edits(strings.ToLower(key), strings.ToLower(k))
		if d < least || d == least && best != "" && k < best {
			best, least = k, d
		}
	}
	for k := range c.decls {
		look(k)
	}
	for k := range refusals() {
		look(k)
	}
	for k := range c.inertKeys() {
		look(k)
	}
	return best
}

func (c *Config) inertKeys() map[string]string {
	if c.inert == nil {
		c.inert = inertKeys()
	}
	return c.inert
}

// edits is the Levenshtein distance.
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
