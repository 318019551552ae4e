package run

import (
	"context"
	"errors"
	"fmt"
)

// Part is one part of a process.
type Part struct {
	// Name is what errors call it.
	Name string
	// Run works until the part ends by itself or Interrupt is called; nil is an end without an error.
	Run func() error
	// Interrupt makes Run return soon; it doesn't wait for that. It is called exactly once, also when Run has
	// ended already, from the goroutine of All; cause says why (an ended part's error, the context's, or nil).
	Interrupt func(cause error)
}

// All runs the parts side by side. When the first of them ends, or ctx does, it interrupts all, the last given
// first, and waits until each has ended: a part may rely on those given before it until its own Interrupt came.
//
// It returns the error of the part that ended first, joined with those that the others ended with, each with its
// part's name. Errors that only repeat the end of ctx are left out, so that a stop that was asked for is no error.
func All(ctx context.Context, parts ...Part) error {
	if len(parts) == 0 {
		return nil
	}
	type end struct {
		part int
		err  error
	}
	ends := make(chan end, len(parts))
	for i, p := range parts {
		go func() { ends <- end{i, p.Run()} }()
	}
	var errs []error
	took := 0
	note := func(e end) {
		took++
		if e.err != nil && (ctx.Err() == nil || !errors.Is(e.err, ctx.Err())) {
			errs = append(errs, fmt.Errorf("%s: %w", parts[e.part].Name, e.err))
		}
	}
	var cause error
	select {
	case <-ctx.Done():
		cause = context.Cause(ctx)
	case e := <-ends:
		cause = e.err
		note(e)
	}
	for i := len(parts) - 1; i >= 0; i-- {
		parts[i].Interrupt(cause)
	}
	for took < len(parts) {
		note(<-ends)
	}
	return errors.Join(errs...)
}
