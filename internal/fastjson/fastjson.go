// Package fastjson reads the JSON dialect of Java RocketMQ's bodies and metadata files.
//
// The library Java uses writes maps with unquoted numeric keys ({0:5}), maps with objects as keys
// ({{"topic":"T"}:5}) and references to objects it has written before ({"$ref":"$.a.b"}); it reads single
// quotes, unquoted names and trailing commas besides. Normalize turns all of these into plain JSON.
package fastjson

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Unmarshal is json.Unmarshal of the normalised text.
func Unmarshal(src []byte, v any) error {
	if json.Valid(src) {
		return json.Unmarshal(src, v)
	}
	b, err := Normalize(src)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// maxDepth bounds nesting, against texts made to exhaust the stack.
const maxDepth = 200

// Normalize returns src as plain JSON: numeric, single-quoted and bare names are quoted, object keys become their
// JSON text as a string, trailing commas go. The error names the byte at which the text can't be read.
func Normalize(src []byte) ([]byte, error) {
	n := normalizer{src: src, dst: make([]byte, 0, len(src)+len(src)/8)}
	n.space()
	if err := n.value(0); err != nil {
		return nil, err
	}
	n.space()
	if n.at != len(src) {
		return nil, n.bad("text behind the value")
	}
	return n.dst, nil
}

type normalizer struct {
	src, dst []byte
	at       int
}

func (n *normalizer) bad(what string) error { return fmt.Errorf("json at byte %d: %s", n.at, what) }

func (n *normalizer) space() {
	for n.at < len(n.src) {
		switch n.src[n.at] {
		case ' ', '\t', '\n', '\r', '\f':
			n.at++
		default:
			return
		}
	}
}

func (n *normalizer) peek() byte {
	if n.at < len(n.src) {
		return n.src[n.at]
	}
	return 0
}

func (n *normalizer) value(depth int) error {
	if depth > maxDepth {
		return n.bad("nested too deeply")
	}
	switch c := n.peek(); {
	case c == '{':
		return n.object(depth)
	case c == '[':
		return n.array(depth)
	case c == '"' || c == '\'':
		return n.text(c)
	case c == 0:
		return n.bad("the text ends where a value should be")
	}
	begin := n.at
	for n.at < len(n.src) && !strings.ContainsRune(",}] \t\r\n\f:", rune(n.src[n.at])) {
		n.at++
	}
	word := n.src[begin:n.at]
	if len(word) == 0 || !json.Valid(word) {
		n.at = begin
		return n.bad("neither a number, a literal, a text, an object nor an array")
	}
	n.dst = append(n.dst, word...)
	return nil
}

func (n *normalizer) array(depth int) error {
	n.at++
	n.dst = append(n.dst, '[')
	for first := true; ; first = false {
		n.space()
		for n.peek() == ',' {
			n.at++
			n.space()
		}
		if n.peek() == ']' {
			n.at++
			n.dst = append(n.dst, ']')
			return nil
		}
		if !first {
			n.dst = append(n.dst, ',')
		}
		if err := n.value(depth + 1); err != nil {
			return err
		}
		n.space()
		if c := n.peek(); c != ',' && c != ']' {
			return n.bad("want , or ] in an array")
		}
	}
}

func (n *normalizer) object(depth int) error {
	n.at++
	n.dst = append(n.dst, '{')
	for first := true; ; first = false {
		n.space()
		for n.peek() == ',' {
			n.at++
			n.space()
		}
		if n.peek() == '}' {
			n.at++
			n.dst = append(n.dst, '}')
			return nil
		}
		if !first {
			n.dst = append(n.dst, ',')
		}
		if err := n.key(depth); err != nil {
			return err
		}
		n.space()
		if n.peek() != ':' {
			return n.bad("want : behind a name")
		}
		n.at++
		n.dst = append(n.dst, ':')
		n.space()
		if err := n.value(depth + 1); err != nil {
			return err
		}
		n.space()
		if c := n.peek(); c != ',' && c != '}' {
			return n.bad("want , or } in an object")
		}
	}
}

func (n *normalizer) key(depth int) error {
	switch c := n.peek(); c {
	case '"', '\'':
		return n.text(c)
	case '{', '[':
		begin := len(n.dst)
		if err := n.value(depth + 1); err != nil {
			return err
		}
		key, err := json.Marshal(string(n.dst[begin:]))
		if err != nil {
			return n.bad(err.Error())
		}
		n.dst = append(n.dst[:begin], key...)
		return nil
	}
	begin := n.at
	for n.at < len(n.src) && !strings.ContainsRune(":,{}[]\"' \t\r\n\f", rune(n.src[n.at])) {
		n.at++
	}
	if n.at == begin {
		return n.bad("want a name")
	}
	key, err := json.Marshal(string(n.src[begin:n.at]))
	if err != nil {
		return n.bad(err.Error())
	}
	n.dst = append(n.dst, key...)
	return nil
}

// text copies a quoted text with double quotes around it.
func (n *normalizer) text(quote byte) error {
	n.at++
	n.dst = append(n.dst, '"')
	for n.at < len(n.src) {
		c := n.src[n.at]
		switch {
		case c == quote:
			n.at++
			n.dst = append(n.dst, '"')
			return nil
		case c == '\\':
			if n.at+1 >= len(n.src) {
				return n.bad("the text ends in an escape")
			}
			e := n.src[n.at+1]
			switch {
			case strings.IndexByte(`"\/bfnrt`, e) >= 0:
				n.dst = append(n.dst, c, e)
			case e == '\'':
				n.dst = append(n.dst, e)
			case e == 'u' && n.at+6 <= len(n.src) && isHex(n.src[n.at+2:n.at+6]):
				n.dst = append(n.dst, n.src[n.at:n.at+6]...)
				n.at += 4
			default:
				return n.bad("an escape that JSON doesn't know")
			}
			n.at += 2
		case c == '"':
			n.dst = append(n.dst, '\\', '"')
			n.at++
		case c < ' ':
			n.dst = append(n.dst, fmt.Sprintf(`\u%04x`, c)...)
			n.at++
		case c < utf8.RuneSelf:
			n.dst = append(n.dst, c)
			n.at++
		default:
			r, size := utf8.DecodeRune(n.src[n.at:])
			n.dst = utf8.AppendRune(n.dst, r)
			n.at += size
		}
	}
	return n.bad("the text has no closing quote")
}

func isHex(b []byte) bool {
	for _, c := range b {
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
			return false
		}
	}
	return true
}
