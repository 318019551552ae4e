// Package dedup keeps a handler from handling a message twice.
//
// RocketMQ delivers at least once: a producer that got no answer sends again, a consumer that crashed before it
// committed gets its messages again, and members of a group may read a queue twice while it changes hands. Wrap puts
// a memory of what was handled in front of a handler:
//
//	handler, err := dedup.Wrap(bill, dedup.NewMemory(dedup.MemoryOptions{}), "billing")
//	consumer, err := c.NewConsumer("billing", client.WithHandler("Orders", client.All, handler))
//
// A message is claimed before its handler runs and confirmed after it. A claim is a lease, which is extended while the
// handler runs and its context lives:
//
//	                 claim                    handler succeeds
//	unknown ────────────────────▶ claimed ─────────────────────▶ handled ──── window ends ───▶ unknown
//	   ▲                             │
//	   └──── handler fails, or lease ends after a crash ───┘
//
// What a delivery meets decides: unknown, it is handled; handled, it is acknowledged without the handler; claimed, it
// is given back with ErrInProgress, and comes again.
//
// # What is guaranteed
//
// As long as the store keeps what it was told:
//
//   - A message whose handler succeeded and was confirmed isn't handled again within the window, whichever member of
//     the group gets it and however often it was sent or delivered.
//   - Of concurrent deliveries of one message one is handled; the others are given back.
//   - A message whose handler failed, panicked, or whose process died is handled again: at once after a failure, when
//     its lease ended after a crash. No message is lost to deduplication.
//
// # What is not
//
//   - Exactly once. A process that dies after the handler's effect and before the confirmation leaves a message that
//     was handled and isn't known to be; it is handled again when the lease has ended. When that must not be, write the
//     message's key into the same database transaction as the effect, with a unique index, and leave this package out.
//   - A handler that outlives its claim (its process was stopped for longer than the lease, or the store was away for
//     that long) may run at the same time as another delivery's. Its context is canceled with ErrClaimLost as soon as
//     that is noticed; it is up to the handler to heed it.
//   - The memory store is of one process and ends with it: members of a group that runs elsewhere know nothing of it.
//     When it is full it forgets the oldest of what was handled, before the window's end.
//   - A store that is lost or goes back in time (a failover of Redis to a replica that lags) forgets with it.
//   - Giving back isn't free: it counts as an attempt (client.WithMaxAttempts), and the message comes again after a
//     lease's time, the next longer of a broker's delays for concurrent consumers. A message whose handlers run for
//     many leases while it is delivered again and again may reach the dead-letter queue; and an ordered queue waits
//     for a lease at a message whose process died.
package dedup
