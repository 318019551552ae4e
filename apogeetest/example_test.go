package apogeetest_test

import (
	"context"
	"testing"

	"github.com/apogeemq/apogee/apogeetest"
	"github.com/apogeemq/apogee/client"
)

// A test starts a server of its own, sends and reads. Restart and Stop show how the code under test bears an outage.
func Example() {
	_ = func(t *testing.T) { // a test function
		s := apogeetest.Start(t, apogeetest.WithSetting("defaultTopicQueueNums", "4"))

		c, err := client.New(client.WithNameServers(s.NameServer()))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		p, err := c.NewProducer("orders-producer")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Send(t.Context(), &client.Message{Topic: "Orders", Body: []byte("one")}); err != nil {
			t.Fatal(err)
		}

		s.Restart() // same folder, same ports: the message is still there
	}
}
