// Package goclient drives the unmodified Apache Go client (rocketmq-client-go) against a fresh server: every case
// of the interop table that the client is able to do, each asserting the contents that arrive. README.md says how to
// run it and what the client can't do.
//
// Everything is in the tests; the package exports nothing. It is a module of its own, so that neither the client nor
// what it needs becomes a dependency of the server.
package goclient
