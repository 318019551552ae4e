// Package goclient drives the unmodified Apache Go client against a fresh Apogee server.
package goclient
