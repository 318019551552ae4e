package client_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/apogeemq/apogee/apogeetest"
)

// javaServer is the name server of a running Java broker, when the tests are to run against one (make client-java).
func javaServer() string { return os.Getenv("APOGEE_TEST_NAMESRV") }

// nameServer returns the name server that a test is to use: of an Apogee in this process, or of the Java broker.
func nameServer(t testing.TB, opts ...apogeetest.Option) string {
	t.Helper()
	if a := javaServer(); a != "" {
		return a
	}
	return apogeetest.Start(t, opts...).NameServer()
}

// onlyApogee skips a test that needs what a Java broker doesn't have, or can't be made to do here.
func onlyApogee(t testing.TB, why string) {
	t.Helper()
	if javaServer() != "" {
		t.Skip("only Apogee: " + why)
	}
}

// onlyJava skips a test of what Apogee doesn't serve yet.
func onlyJava(t testing.TB, why string) {
	t.Helper()
	if javaServer() == "" {
		t.Skip("only a Java broker, with make client-java: " + why)
	}
}

// unique returns a topic's or group's name that no other test has: servers may be shared.
func unique(t testing.TB, what string) string {
	return fmt.Sprintf("%s-%s-%08x", what, strings.NewReplacer("/", "_", "#", "_", "=", "_").Replace(t.Name()), rand.Uint32())
}
