package main

import "testing"

func TestCollectorPace(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 1 << 20: 400, 4 << 20: 400, 16 << 20: 100, 32 << 20: 50, 64 << 20: 25, 1 << 40: 25} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d bytes alive: %d %%, want %d", live, got, want)
		}
	}
}
