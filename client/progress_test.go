package client

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestProgress compares a progress with plain sets: fetching, finishing in any order, and going on elsewhere from what
// was told.
func TestProgress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p progress
		p.resume(0, 0, nil)
		end := int64(rapid.IntRange(1, 400).Draw(t, "end"))
		holes := map[int64]bool{} // offsets that hold nothing for this consumer
		for _, o := range rapid.SliceOfN(rapid.Int64Range(0, end), 0, 50).Draw(t, "holes") {
			holes[o] = true
		}
		finished := map[int64]bool{}
		under := map[int64]bool{}
		next := int64(0)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1: // fetch the next one that is there
				if next >= end {
					continue
				}
				o := next
				next++
				if holes[o] {
					p.advance(next)
					break
				}
				fresh := p.fetched(o)
				if fresh == finished[o] {
					t.Fatalf("offset %d: fresh %v, finished %v", o, fresh, finished[o])
				}
				if fresh {
					under[o] = true
				}
			case 2:
				if len(under) == 0 {
					continue
				}
				o := rapid.SampledFrom(slices.Sorted(maps.Keys(under))).Draw(t, "offset")
				delete(under, o)
				finished[o] = true
				if !p.done(o) {
					t.Fatalf("offset %d was not there", o)
				}
			case 3: // another consumer takes over with what the broker was told
				offset, text := p.commit(), p.describe()
				upTo, open, ok := parseOpen(text)
				if ok == (text == "") {
					t.Fatalf("%q read: %v", text, ok)
				}
				if !ok {
					upTo = offset
				}
				p.resume(offset, upTo, open)
				next = offset
				clear(under)
				if len(open) >= maxSpans { // pieces were joined: more comes again
					return
				}
			}
			if p.next != next {
				t.Fatalf("next %d, want %d", p.next, next)
			}
			lowest := next
			for o := range under {
				lowest = min(lowest, o)
			}
			if got := p.commit(); got != lowest {
				t.Fatalf("commit %d, want %d", got, lowest)
			}
			if !slices.IsSorted(p.unfinished) || len(p.unfinished) != len(under) {
				t.Fatalf("unfinished %v, want %v", p.unfinished, under)
			}
		}
	})
}

func TestParseOpen(t *testing.T) {
	for _, bad := range []string{"", "5", "x:1-2", "5:1", "5:2-1", "5:1-9", "9:3-4,1-2", "9:1-2,", "9:-1-2"} {
		if _, _, ok := parseOpen(bad); ok {
			t.Errorf("%q was read", bad)
		}
	}
	upTo, open, ok := parseOpen("30:5-6,9-12")
	if !ok || upTo != 30 || !slices.Equal(open, []span{{5, 6}, {9, 12}}) {
		t.Error(upTo, open, ok)
	}
}

// TestOpenIsBounded: what is told of many holes has maxSpans pieces at most and leaves nothing unfinished out.
func TestOpenIsBounded(t *testing.T) {
	var p progress
	p.resume(0, 0, nil)
	for o := range int64(1000) {
		p.fetched(o)
	}
	for o := int64(1); o < 1000; o += 2 {
		p.done(o)
	}
	open, _ := p.open()
	if len(open) != maxSpans {
		t.Errorf("%d pieces", len(open))
	}
	for _, o := range p.unfinished {
		if !slices.ContainsFunc(open, func(s span) bool { return s.begin <= o && o < s.end }) {
			t.Errorf("offset %d is left out", o)
		}
	}
}
