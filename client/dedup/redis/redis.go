package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/apogeemq/apogee/client/dedup"
)

// DefaultPrefix is in front of every key.
const DefaultPrefix = "apogee:dedup:"

// handledMark is the value of a key that was handled. No claim has it: those begin with claimMark.
const (
	handledMark = "handled"
	claimMark   = "claim:"
)

// scripts compare a key's value with a claim before they write. KEYS[1] is the key, ARGV[1] the claim, ARGV[2] the time
// to live in ms, ARGV[3] the handled mark.
type scripts struct {
	// claim is for a key that SET NX found taken: it may be the caller's, or free by now.
	claim *goredis.Script
	// confirm makes a key handled that is the claim's or nobody's.
	confirm *goredis.Script
	// release deletes a key that is the claim's.
	release *goredis.Script
}

// What the scripts return.
const (
	gotIt      = 1
	wasHandled = 2
	anothers   = 3
)

func newScripts() scripts {
	return scripts{
		claim: goredis.NewScript(`
local v = redis.call('GET', KEYS[1])
if not v or v == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
if v == ARGV[3] then return 2 end
return 3`),
		confirm: goredis.NewScript(`
local v = redis.call('GET', KEYS[1])
if v == ARGV[3] then return 2 end
if v and v ~= ARGV[1] then return 3 end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[2])
return 1`),
		release: goredis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1`),
	}
}

// Store is a dedup.Store in Redis. It is safe for concurrent use.
type Store struct {
	c       goredis.UniversalClient
	prefix  string
	scripts scripts
}

// Option sets something of a Store.
type Option func(*Store) error

// WithPrefix sets what is in front of every key. Default DefaultPrefix. All members of a group must have the same.
func WithPrefix(prefix string) Option {
	return func(s *Store) error {
		if prefix == "" {
			return errors.New("WithPrefix: empty: want a text that no other keys of the server begin with")
		}
		s.prefix = prefix
		return nil
	}
}

// New returns a store in the Redis that c leads to; it doesn't connect. c stays the caller's, who closes it after the
// consumers.
//
// c must have ContextTimeoutEnabled: without it go-redis doesn't heed deadlines, and a Redis that hangs would keep
// handlers beyond dedup.WithStoreTimeout.
func New(c goredis.UniversalClient, opts ...Option) (*Store, error) {
	if c == nil {
		return nil, errors.New("dedup redis: the client is nil")
	}
	if !heedsDeadlines(c) {
		return nil, errors.New("dedup redis: the client's options need ContextTimeoutEnabled: true, or deadlines don't hold")
	}
	s := &Store{c: c, prefix: DefaultPrefix, scripts: newScripts()}
	for _, o := range opts {
		if err := o(s); err != nil {
			return nil, fmt.Errorf("dedup redis: %w", err)
		}
	}
	return s, nil
}

// heedsDeadlines looks at the clients of go-redis; of one that wraps them it believes the best.
func heedsDeadlines(c goredis.UniversalClient) bool {
	switch c := c.(type) {
	case *goredis.Client:
		return c.Options().ContextTimeoutEnabled
	case *goredis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	case *goredis.Ring:
		return c.Options().ContextTimeoutEnabled
	}
	return true
}

// Claim implements dedup.Store.
func (s *Store) Claim(ctx context.Context, key, token string, lease time.Duration) (dedup.Outcome, error) {
	err := s.c.Do(ctx, "SET", s.prefix+key, claimMark+token, "NX", "PX", millis(lease)).Err()
	switch {
	case err == nil:
		return dedup.Claimed, nil
	case !errors.Is(err, goredis.Nil): // nil: the key is there
		return 0, fmt.Errorf("redis: claim: %w", err)
	}
	got, err := s.run(ctx, s.scripts.claim, key, token, lease)
	switch {
	case err != nil:
		return 0, fmt.Errorf("redis: claim: %w", err)
	case got == wasHandled:
		return dedup.Handled, nil
	case got == anothers:
		return dedup.Busy, nil
	}
	return dedup.Claimed, nil
}

// Confirm implements dedup.Store.
func (s *Store) Confirm(ctx context.Context, key, token string, window time.Duration) error {
	got, err := s.run(ctx, s.scripts.confirm, key, token, window)
	switch {
	case err != nil:
		return fmt.Errorf("redis: confirm: %w", err)
	case got == anothers:
		return dedup.ErrClaimLost
	}
	return nil
}

// Release implements dedup.Store.
func (s *Store) Release(ctx context.Context, key, token string) error {
	if _, err := s.run(ctx, s.scripts.release, key, token, 0); err != nil {
		return fmt.Errorf("redis: release: %w", err)
	}
	return nil
}

// run runs a script by its digest, and sends it whole to a server that doesn't know it.
func (s *Store) run(ctx context.Context, script *goredis.Script, key, token string, ttl time.Duration) (int, error) {
	return script.Run(ctx, s.c, []string{s.prefix + key}, claimMark+token, millis(ttl), handledMark).Int()
}

// millis is a time to live as Redis takes it: whole milliseconds, at least one.
func millis(d time.Duration) int64 { return max(d.Milliseconds(), 1) }
