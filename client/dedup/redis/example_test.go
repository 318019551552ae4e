package redis_test

import (
	"context"
	"fmt"
	"log"

	goredis "github.com/redis/go-redis/v9"

	"github.com/apogeemq/apogee/client"
	"github.com/apogeemq/apogee/client/dedup"
	"github.com/apogeemq/apogee/client/dedup/redis"
)

// All members of the group billing share what they handled.
func Example() {
	c := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
	defer c.Close()
	store, err := redis.New(c)
	if err != nil {
		log.Fatal(err)
	}
	handler, err := dedup.Wrap(func(_ context.Context, m *client.Message) error {
		fmt.Printf("billing %s\n", m.Body)
		return nil
	}, store, "billing")
	if err != nil {
		log.Fatal(err)
	}
	_ = handler // goes where a consumer takes its handler
}
