package filter

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/apogeemq/apogee/internal/message"
)

func TestExpressions(t *testing.T) {
	for _, c := range []struct {
		kind, expression string
		names            []string // nil: everything
	}{
		{"", "", nil},
		{"TAG", "*", nil},
		{"TAG", " * ", nil},
		{"", "A", []string{"A"}},
		{"TAG", "A || B", []string{"A", "B"}},
		{"TAG", "A||B", []string{"A", "B"}},
		{"TAG", " A||\tB ||", []string{"A", "B"}},
		{"TAG", "|| A || || B", []string{"A", "B"}},
		{"TAG", "A | B", []string{"A | B"}},
		{"TAG", "A|||B", []string{"A", "|B"}},
		{"TAG", "A || *", []string{"A", "*"}}, // only the star alone means everything
		{"TAG", "订单 || 😀", []string{"订单", "😀"}},
	} {
		f, err := Compile(c.kind, c.expression)
		if err != nil || (f == nil) != (c.names == nil) || !slices.Equal(f.Names(), c.names) {
			t.Errorf("%q: %q, %v", c.expression, f.Names(), err)
			continue
		}
		codes := f.Codes()
		for i, n := range c.names {
			if codes[i] != message.HashCode(n) || !f.MatchTag(n) || !f.MatchTagsCode(message.TagsCode([]byte(n))) {
				t.Errorf("%q: %s has code %d", c.expression, n, codes[i])
			}
		}
		if f.MatchTag("nobody's") != (f == nil) || f.MatchTag("") != (f == nil) {
			t.Errorf("%q matches what it shouldn't", c.expression)
		}
	}
}

// TestHashesCanCollide: the broker lets a colliding tag through, the client doesn't.
func TestHashesCanCollide(t *testing.T) {
	f, err := Compile("TAG", "Aa")
	if err != nil {
		t.Fatal(err)
	}
	if !f.MatchTagsCode(message.TagsCode([]byte("BB"))) || f.MatchTag("BB") || !f.MatchRecord(nil) {
		t.Error(`"Aa" and "BB" have one hash code`)
	}
	if f.MatchTagsCode(0) {
		t.Error("a message without a tag")
	}
	negative, err := Compile("TAG", "polygenelubricants")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []int64{-1 << 31, 1 << 31} { // sign-extended by Java's broker, and not
		if !negative.MatchTagsCode(code) {
			t.Errorf("code %d", code)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, expression := range []string{"||", " || ", "||||"} {
		if f, err := Compile("TAG", expression); err == nil || errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), expression[:1]) {
			t.Errorf("%q: %v, %v", expression, f.Names(), err)
		}
	}
	for _, kind := range []string{TypeSQL92, "tag", "CLASS"} {
		_, err := Compile(kind, "a > 1")
		var u *UnsupportedError
		if !errors.Is(err, ErrUnsupported) || !errors.As(err, &u) || u.Type != kind || !strings.Contains(err.Error(), kind) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestMatchingAllocatesNothing(t *testing.T) {
	f, err := Compile("TAG", "A || B || C || D")
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { f.MatchTagsCode(5); f.MatchTag("D") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestModel: an expression made of tags matches these tags, and a tag's code whenever the tag.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tag := rapid.StringMatching(`[a-cA-C订]{1,4}`)
		tags := rapid.SliceOfN(tag, 1, 6).Draw(t, "tags")
		f, err := Compile("", strings.Join(tags, rapid.SampledFrom([]string{"||", " || ", "|| || "}).Draw(t, "separator")))
		if err != nil || !slices.Equal(f.Names(), tags) {
			t.Fatalf("%q, %v", f.Names(), err)
		}
		other := tag.Draw(t, "other")
		if f.MatchTag(other) != slices.Contains(tags, other) {
			t.Fatalf("%q on %q: %v", tags, other, f.MatchTag(other))
		}
		if f.MatchTag(other) && !f.MatchTagsCode(message.TagsCode([]byte(other))) {
			t.Fatalf("%q: the code of %q doesn't match", tags, other)
		}
	})
}

func FuzzCompile(f *testing.F) {
	f.Add("TAG", "A || B")
	f.Add("", "*")
	f.Add("SQL92", "a > 1")
	f.Fuzz(func(t *testing.T, kind, expression string) {
		tags, err := Compile(kind, expression)
		if err != nil || tags == nil {
			return
		}
		again, err := Compile(kind, strings.Join(tags.Names(), " || "))
		if err != nil || len(tags.Names()) == 0 {
			t.Fatalf("%q gives %q, which gives %v", expression, tags.Names(), err)
		}
		if again != nil && !slices.Equal(again.Codes(), tags.Codes()) {
			t.Fatalf("%q gives %q, which gives %q", expression, tags.Names(), again.Names())
		}
	})
}
