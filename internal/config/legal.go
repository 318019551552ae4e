package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
)

// rule is what a value must fulfil besides its kind: want says it in words, for errors and the documentation.
type rule struct {
	want string
	ok   func(string) bool // nil: the kind is all
}

// is adds a rule to a declaration.
func (s Setting) is(want string, ok func(string) bool) Setting {
	s.rule = rule{want, ok}
	return s
}

// unset is a rule for texts that may stay empty, which stands for what the meaning says.
func (s Setting) unset() Setting {
	ok := s.rule.ok
	return s.is(s.rule.want+", or nothing", func(v string) bool { return v == "" || ok(v) })
}

func isIP(v string) bool {
	a, err := netip.ParseAddr(v)
	return err == nil && a.Zone() == ""
}

func isHost(v string) bool { return v == "localhost" || isIP(v) }

const wantServerName = "1 to 99 characters of A-Z a-z 0-9 . _ - % | @, and not . or .."

// isServerName is the rule of brokerName and brokerClusterName. Both become names of topics, and so of folders, with
// up to 28 characters in front (rmq_sys_SYNC_BROKER_MEMBER_). Java checks neither. The strategy that shares queues
// out by machine room wants names like room1@broker.
func isServerName(v string) bool { return len(v) <= 99 && v != "." && v != ".." && onlyOf(v, "._-%|@") }

func isTopicName(v string) bool { return len(v) <= 127 && onlyOf(v, "_-%|") }

// isPath refuses what RocketMQ takes literally: nobody wants a folder of that name.
func isPath(v string) bool {
	return v != "" && !strings.Contains(v, "${") && !strings.HasPrefix(v, "~")
}

func isOnePath(v string) bool { return isPath(v) && !strings.Contains(v, ",") }

// splitAddresses takes RocketMQ's separator and the comma that people use.
func splitAddresses(v string) []string {
	return strings.FieldsFunc(v, func(r rune) bool { return r == ';' || r == ',' })
}

func areAddresses(v string) bool {
	all := splitAddresses(v)
	for _, a := range all {
		host, port, err := net.SplitHostPort(strings.TrimSpace(a))
		n, perr := strconv.ParseUint(port, 10, 16)
		if err != nil || perr != nil || n == 0 || host == "" || strings.ContainsAny(host, " \t") {
			return false
		}
	}
	return len(all) > 0
}

func areHours(v string) bool {
	for _, h := range strings.Split(v, ";") {
		if n, err := strconv.ParseUint(strings.TrimSpace(h), 10, 8); err != nil || n > 23 {
			return false
		}
	}
	return true
}

func areDelays(v string) bool {
	all := strings.Fields(v)
	for _, d := range all {
		seconds, known := map[byte]uint64{'s': 1, 'm': 60, 'h': 3600, 'd': 86400}[d[len(d)-1]]
		n, err := strconv.ParseUint(d[:len(d)-1], 10, 31)
		if !known || err != nil || n*seconds > 366*86400 {
			return false
		}
	}
	return len(all) > 0
}

// isBrokerPort leaves room for the VIP listener two below.
func isBrokerPort(v string) bool { return v != "1" && v != "2" }

func onlyOf(v, others string) bool {
	for _, r := range v {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9') && !strings.ContainsRune(others, r) {
			return false
		}
	}
	return v != ""
}

// Legal returns the setting's legal values in words, as errors have it after "want".
func (s Setting) Legal() string {
	switch {
	case s.rule.want != "":
		return s.rule.want
	case s.Kind == Int:
		return fmt.Sprintf("a whole number from %d to %d", s.Min, s.Max)
	case s.Kind == Bool:
		return "true or false"
	case s.Kind == Choice:
		return "one of " + strings.Join(s.Choices, ", ")
	}
	return "text in one line"
}

// read returns a value in the form in which it is kept, or an error that names key, value and legal values. note is
// not empty when the value was legal for RocketMQ only, which then takes another: the same is done here.
func (s Setting) read(v string) (kept, note string, err error) {
	refuse := func() (string, string, error) {
		return "", "", fmt.Errorf("%s=%s: want %s", s.Key, v, s.Legal())
	}
	if strings.ContainsFunc(v, unicode.IsControl) {
		v = strconv.Quote(v)
		return refuse()
	}
	kept = v
	switch s.Kind {
	case Int:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return refuse()
		}
		took := n
		if s.Clamped {
			took = min(max(n, s.Min), s.Max)
		}
		if s.Multiple > 0 && took <= s.Max-s.Multiple {
			took = (took + s.Multiple - 1) / s.Multiple * s.Multiple
		}
		if took < s.Min || took > s.Max {
			return refuse()
		}
		kept = strconv.FormatInt(took, 10)
		if took != n {
			note = fmt.Sprintf("%s=%d is taken as %s, as RocketMQ does", s.Key, n, kept)
		}
	case Bool:
		if kept = strings.ToLower(v); kept != "true" && kept != "false" {
			return refuse()
		}
	case Choice:
		for _, c := range s.Choices {
			if v == c {
				return kept, "", nil
			}
		}
		return refuse()
	}
	if s.rule.ok != nil && !s.rule.ok(kept) {
		return refuse()
	}
	return kept, note, nil
}
