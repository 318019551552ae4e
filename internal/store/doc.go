// Package store keeps messages in the layout of a Java broker's store: commit log, consume queues, index,
// checkpoint, abort file. A Java broker opens what it wrote after a clean stop, and it opens what a Java broker
// wrote after a clean stop or a crash.
//
// # Writing
//
// Append builds the stored form outside any lock. Under one short lock it gets its queue offset, physical offset
// and store time and a place in the batch that is being filled. One goroutine, the committer, takes the batch,
// writes it, flushes it when answers promise that, and only then makes it visible: consume-queue entries, index,
// the listener's long polls, and last the waiters. While it works the next batch fills, so batches grow by
// themselves with the load and a lone message waits for nothing but its own write.
//
// # What must stay true
//
//   - Nothing is visible to a reader before it would be acknowledged.
//   - A physical offset is handed out once: what comes behind a failed write fails too, since its place is gone.
//   - After a failed flush the log accepts nothing more; what the kernel did with the bytes is unknown. ENOSPC from
//     a write alone is no such failure: the batch is taken back whole, and erased before anything else is written.
//   - Behind the log's end there are zeros only. A segment is flushed before the next one is written.
//   - Consume queues and index are derived. The own checkpoint (checkpoint.apogee) says up to which physical offset
//     they are durable; opening redoes them from there, and believes nothing that their files hold behind it.
//   - A consume-queue unit is written only when its record is durable.
//   - A segment stays mapped while a reader holds records of it.
//
// # Lock order
//
// Store.flushMu (files of queues and index, checkpoint, cleaning, deleting) first; it is held over I/O and the committer
// never takes it. Then Store.queueMu or Store.mu (places in the log, queue offsets), index.writing, queue.mu.
// Store.segMu, dirtyMu, posMu, index.mu and the file cache's are leaves. Neither Store.mu nor queue.mu is held over I/O.
package store
