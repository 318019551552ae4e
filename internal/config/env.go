package config

import (
	"fmt"
	"sort"
	"strings"
	"unicode"
)

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

// flagEnvName returns the environment variable of a flag: broker-port → APOGEE_BROKER_PORT.
func flagEnvName(flag string) string {
	return "APOGEE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// processVariables are APOGEE_ variables that are no settings: the command line reads them.
func processVariables() []string {
	return []string{"APOGEE_CONFIG", "APOGEE_LOG_FORMAT", "APOGEE_LOG_LEVEL"}
}

// LoadEnv takes the settings that environ (as os.Environ) has: under the name of the key, or of the flag that sets
// it. Two variables that set one key differently are an error; an APOGEE_ variable that sets nothing is noted.
func (c *Config) LoadEnv(environ []string) error {
	keys := map[string]string{}
	for k := range c.inertKeys() {
		keys[EnvName(k)] = k
	}
	for k := range refusals() {
		keys[EnvName(k)] = k
	}
	for k, s := range c.decls {
		keys[EnvName(k)] = k
		if s.Flag != "" {
			keys[flagEnvName(s.Flag)] = k
		}
	}
	environ = append([]string(nil), environ...)
	sort.Strings(environ)
	setBy, javaAddr := map[string][2]string{}, ""
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		value = strings.TrimSpace(value)
		if name == "NAMESRV_ADDR" {
			javaAddr = value
		}
		if !strings.HasPrefix(name, "APOGEE_") {
			continue
		}
		key, ok := keys[name]
		if !ok {
			c.noteVariable(name, keys)
			continue
		}
		if was, twice := setBy[key]; twice && was[1] != value {
			return fmt.Errorf("%s=%s and %s=%s: both set %s", was[0], was[1], name, value, key)
		}
		setBy[key] = [2]string{name, value}
		if err := c.Set(key, value, name); err != nil {
			return err
		}
	}
	if c.role == Broker && c.Text("namesrvAddr") == "" && javaAddr != "" {
		return c.Set("namesrvAddr", javaAddr, "NAMESRV_ADDR")
	}
	return nil
}

func (c *Config) noteVariable(name string, keys map[string]string) {
	best, least := "", len(name)
	for _, p := range processVariables() {
		if name == p {
			return
		}
		keys[p] = p
	}
	for n := range keys {
		if d := edits(name, n); d < least || d == least && n < best {
			best, least = n, d
		}
	}
	c.note("environment: %s sets nothing; did you mean %s?", name, best)
}
