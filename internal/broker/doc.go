// Package broker answers RocketMQ's broker requests: it translates between the wire (protocol, remoting)
// and the state behind it (store, topic, subgroup, offset, member, lock, longpoll, delay).
//
// A request arrives in Serve on its connection's reader goroutine and is handled there, in place. Handlers
// live one family a file: send.go, sendback.go, pull.go, offsets.go, clients.go, locks.go, lookup.go,
// topics.go, groups.go, stats.go. A send is answered later, from the store's committer, when its batch is
// on disk; a pull that finds nothing is parked in the long-poll table and answered by the arrival of a
// message or by its deadline.
//
// # Stop order
//
// Close unregisters from the name servers, refuses new pulls and those that are parked, stops the loops and
// waits for them, writes the metadata files, and closes the store last.
//
// # Lock order
//
// clients.mu (members and locks) is taken before nothing else: its effects are carried out after it is
// released. The long-poll table's shard locks, the offset table's and the topic table's are leaves.
package broker
