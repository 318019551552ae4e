// Package filter chooses messages by a subscription's expression.
//
// A broker filters tags by their hash, which is what a consume queue holds; a client compares the tags themselves
// afterwards, since different tags can share a hash.
package filter

import (
	"errors"
	"fmt"
	"strings"

	"github.com/apogeemq/apogee/internal/message"
)

// Expression types of a subscription.
const (
	TypeTag   = "TAG"
	TypeSQL92 = "SQL92"
)

// ErrUnsupported: the expression is of a type that isn't served. Errors of Compile that are it have the type
// *UnsupportedError.
var ErrUnsupported = errors.New("expression type is not supported")

// UnsupportedError names the expression type that isn't served.
type UnsupportedError struct{ Type string }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%v: %s; subscribe by tags instead", ErrUnsupported, e.Type)
}

// Is makes it ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// Tags is a compiled tag expression: tags separated by "||". It implements the store's Filter.
type Tags struct {
	names []string
	codes []int64
}

// Compile reads an expression. For one that lets everything through ("", "*") it returns nil, on which MatchTag,
// Names and Codes may be called, but which must not be put into a store's Filter: that would be one that isn't nil.
// An empty type means TAG; SQL92 gives ErrUnsupported. Text without a tag in it ("||") is an error, as in Java's
// FilterAPI, whose "subString split error" it is.
func Compile(expressionType, expression string) (*Tags, error) {
	switch expressionType {
	case "", TypeTag:
	default:
		return nil, &UnsupportedError{expressionType}
	}
	expression = strings.TrimSpace(expression)
	if expression == "" || expression == "*" {
		return nil, nil
	}
	f := &Tags{}
	for _, tag := range strings.Split(expression, "||") {
		if tag = strings.TrimSpace(tag); tag != "" {
			f.names = append(f.names, tag)
			f.codes = append(f.codes, message.TagsCode([]byte(tag)))
		}
	}
	if len(f.names) == 0 {
		return nil, fmt.Errorf("expression %q names no tag", expression)
	}
	return f, nil
}

// MatchTagsCode reports whether a consume-queue entry's tags code is one of the expression's. Only its low 32 bits
// count, as in Java.
func (f *Tags) MatchTagsCode(code int64) bool {
	for _, c := range f.codes {
		if int32(c) == int32(code) {
			return true
		}
	}
	return false
}

// MatchRecord lets every record through: tags are decided by their code.
func (f *Tags) MatchRecord([]byte) bool { return true }

// MatchTag compares the tag itself, as a client does. nil matches everything.
func (f *Tags) MatchTag(tag string) bool {
	if f == nil {
		return true
	}
	for _, n := range f.names {
		if n == tag {
			return true
		}
	}
	return false
}

// Names returns the expression's tags; Codes their hash codes.
func (f *Tags) Names() []string {
	if f == nil {
		return nil
	}
	return f.names
}

// Codes see Names.
func (f *Tags) Codes() []int32 {
	if f == nil {
		return nil
	}
	out := make([]int32, len(f.codes))
	for i, c := range f.codes {
		out[i] = int32(c)
	}
	return out
}
