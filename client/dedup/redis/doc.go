// Package redis keeps what package dedup remembers in Redis, for consumer groups of several processes:
//
//	store, err := redis.New(goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true}))
//	handler, err := dedup.Wrap(bill, store, "billing")
//
// A key is one Redis string with a time to live: "claim:" and the claim's token, or "handled". A claim is
// one SET NX PX; what compares before it writes is a Lua script, which Redis runs as a whole. Every operation is about
// one key, so a cluster serves as well as a single server. Redis 2.6.12 or newer.
//
// What Redis forgets is forgotten: a failover to a replica that lags, a restart without append-only file, a memory
// policy that evicts keys with a time to live (use noeviction). Messages are handled twice then; none is lost.
package redis
