// Package remoting moves RocketMQ's frames over connections, for servers and clients alike. It knows headers
// and the matching of answers to requests; it knows nothing of messages.
//
// A connection has one reader and one writer goroutine. The reader cuts frames from one buffer and calls the
// Handler in place, one request at a time; what a handler keeps beyond its return it copies. Answers may come
// from any goroutine, at any later time, in any order (Ticket); the writer gathers whatever is ready into one
// system call.
//
// A connection's memory is bounded: a frame's buffer grows as its bytes arrive, never by what its length claims;
// while too much waits to be written no further request is read; and a peer that takes nothing for a while
// is cut off.
package remoting
