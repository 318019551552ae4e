package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sample is one measurement: figures by name. Times are in µs, memory in MB, rates a second.
type sample map[string]float64

// results are samples by row and system, and what they were taken with.
type results struct {
	Samples  map[string]map[string][]sample `json:"samples"`  // row → system
	Commands map[string]string              `json:"commands"` // row → the load generator's command
	Taken    map[string]taken               `json:"taken"`    // row
	Notes    map[string]string              `json:"notes"`    // row → what went otherwise than planned
}

// taken is where and with what a row was measured.
type taken struct {
	Date, CPU, Memory, Kernel, Disk, Fdatasync   string
	Commit, Go, Java, NATS, Client, JavaSettings string
	Load                                         string // load average before
}

func loadResults(path string) (*results, error) {
	r := &results{}
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, r)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("samples of earlier runs: %w", err)
	}
	if r.Samples == nil {
		r.Samples = map[string]map[string][]sample{}
	}
	for _, m := range []*map[string]string{&r.Commands, &r.Notes} {
		if *m == nil {
			*m = map[string]string{}
		}
	}
	if r.Taken == nil {
		r.Taken = map[string]taken{}
	}
	return r, nil
}

func (r *results) save(path string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// stat is a figure of a row and system: median and range.
type stat struct {
	n             int
	med, min, max float64
}

func (r *results) stat(row, system, figure string) stat {
	var v []float64
	for _, s := range r.Samples[row][system] {
		if x, ok := s[figure]; ok {
			v = append(v, x)
		}
	}
	if len(v) == 0 {
		return stat{}
	}
	slices.Sort(v)
	med := v[len(v)/2]
	if len(v)%2 == 0 {
		med = (v[len(v)/2-1] + med) / 2
	}
	return stat{len(v), med, v[0], v[len(v)-1]}
}

// number writes a figure with three significant digits and separated thousands.
func number(x float64) string {
	s := ""
	switch {
	case x >= 100:
		s = fmt.Sprintf("%.0f", x)
	case x >= 10:
		s = fmt.Sprintf("%.1f", x)
	default:
		s = fmt.Sprintf("%.2f", x)
	}
	whole, frac, _ := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if frac != "" {
		return whole + "." + frac
	}
	return whole
}

func (s stat) String() string {
	if s.n == 0 {
		return "not measured"
	}
	if s.n == 1 {
		return number(s.med)
	}
	return fmt.Sprintf("%s (%s–%s)", number(s.med), number(s.min), number(s.max))
}

// scaled is the statistic in another unit.
func (s stat) scaled(f float64) stat { return stat{s.n, s.med * f, s.min * f, s.max * f} }
