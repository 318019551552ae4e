package dedup

import (
	"context"
	"errors"
	"time"
)

// Outcome is what a claim met.
type Outcome int

// The outcomes.
const (
	Claimed Outcome = iota + 1 // the key is the caller's now
	Handled                    // the key was confirmed before and its window hasn't ended
	Busy                       // another token has the key
)

func (o Outcome) String() string {
	switch o {
	case Claimed:
		return "claimed"
	case Handled:
		return "handled"
	case Busy:
		return "busy"
	}
	return "unknown"
}

// Errors of stores.
var (
	// ErrClaimLost: another token has the key, since the lease of this one's claim ended.
	ErrClaimLost = errors.New("another delivery of the message has claimed it, since this one's lease ended")
	// ErrFull: a bounded store has room for no further claim.
	ErrFull = errors.New("the store is full of claims")
)

// Store remembers which keys are claimed and which were handled. Its methods are atomic towards each other, from
// however many processes, and safe for concurrent use. They return soon after ctx ends. An error means that whether
// the call took effect isn't known. Package storetest checks an implementation.
type Store interface {
	// Claim claims key for token until lease has passed. A key that token has already is claimed anew from now on.
	Claim(ctx context.Context, key, token string, lease time.Duration) (Outcome, error)
	// Confirm marks key as handled until window has passed. The key must be token's or nobody's, whose lease may have
	// ended; a key that another token has stays that token's, and ErrClaimLost is returned. Confirming a key that is
	// handled already changes nothing.
	Confirm(ctx context.Context, key, token string, window time.Duration) error
	// Release gives up token's claim of key; a key that isn't token's stays what it is.
	Release(ctx context.Context, key, token string) error
}
