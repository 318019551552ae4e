package config

import (
	"fmt"
	"strings"
)

// Markdown returns the settings as a table for the documentation: key, variable and flag, default, legal values,
// meaning. A key that RocketMQ doesn't have is marked.
func Markdown() string {
	cell := func(s string) string { return strings.NewReplacer("|", `\|`, "\n", " ").Replace(s) }
	var b strings.Builder
	b.WriteString("| key | environment, flag | default | legal values | meaning |\n|---|---|---|---|---|\n")
	for _, s := range Settings() {
		names := "`" + EnvName(s.Key) + "`"
		if s.Flag != "" {
			if alias := flagEnvName(s.Flag); alias != EnvName(s.Key) {
				names += " `" + alias + "`"
			}
			names += " `--" + s.Flag + "`"
		}
		def := "–"
		if s.Default != "" {
			def = "`" + cell(s.Default) + "`"
		}
		meaning := s.Meaning
		if s.Ours {
			meaning += " (Apogee's own)"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", s.Key, names, def, cell(s.Legal()), cell(meaning))
	}
	return b.String()
}
