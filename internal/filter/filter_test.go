package filter

import (
	"errors"
	"testing"

	"github.com/apogeemq/apogee/internal/message"
)

func TestTags(t *testing.T) {
	for expression, want := range map[string]string{"A": "A", "A || B": "AB", " A||B ||": "AB", "Aa": "Aa"} {
		f, err := Compile("TAG", expression)
		if err != nil || f == nil {
			t.Fatalf("%q: %v", expression, err)
		}
		for _, tag := range []string{"A", "B", "C", "", "Aa", "BB"} {
			exact := tag != "" && (want == "AB" && (tag == "A" || tag == "B") || want == tag)
			if got := f.MatchTag(tag); got != exact {
				t.Errorf("%q on %q: %v", expression, tag, got)
			}
			hash := exact || want == "Aa" && tag == "BB" // "Aa" and "BB" share a hash
			if got := f.MatchTagsCode(message.TagsCode([]byte(tag))); got != hash {
				t.Errorf("%q on the code of %q: %v", expression, tag, got)
			}
		}
	}
	for _, all := range []string{"", "*", " * "} {
		if f, err := Compile("", all); f != nil || err != nil || !f.MatchTag("x") {
			t.Errorf("%q: %v %v", all, f, err)
		}
	}
	if _, err := Compile("TAG", "||"); err == nil {
		t.Error("an expression without a tag was taken")
	}
	if _, err := Compile("SQL92", "a > 1"); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}
