package client_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/apogeemq/apogee/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// short is a context for what must end soon.
func short(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func newClient(t testing.TB, nameServer string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(append([]client.Option{client.WithNameServers(nameServer)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(short(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}
