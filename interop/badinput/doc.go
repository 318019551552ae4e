// Package badinput speaks to a server's ports as no client should: random bytes, lengths that can't be, headers that
// lie, values out of range, connections by the thousand that say nothing or don't listen. All the while a client that
// behaves sends and pulls, and must not notice.
//
// It knows the protocol by itself and uses only the standard library, so that no mistake of the server's own packages is
// in both sides. Everything is in the tests.
package badinput
