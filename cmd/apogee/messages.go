package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/apogeemq/apogee/client"
)

func nameServers(cmd *cobra.Command) *string {
	def := os.Getenv("NAMESRV_ADDR")
	if def == "" {
		def = "127.0.0.1:9876"
	}
	return cmd.Flags().String("namesrv", def, "name servers ADDR[;ADDR]; default $NAMESRV_ADDR")
}

func connect(addrs string) (*client.Client, error) {
	return client.New(client.WithNameServers(addrs))
}

// toolGroup is the producer group of the command line.
const toolGroup = "apogee"

func closeClient(c *client.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

func produceCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "produce", Short: "Send messages to a topic", Args: cobra.NoArgs}
	names := nameServers(cmd)
	f := cmd.Flags()
	topic := f.String("topic", "", "topic")
	count := f.Int("count", 1, "messages to send")
	body := f.String("body", "hello", "body; with a count above 1 its number follows")
	tags := f.String("tags", "", "tag")
	key := f.String("key", "", "key")
	timeout := f.Duration("timeout", 10*time.Second, "for each message")
	_ = cmd.MarkFlagRequired("topic")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := connect(*names)
		if err != nil {
			return err
		}
		defer closeClient(c)
		p, err := c.NewProducer(toolGroup)
		if err != nil {
			return err
		}
		for i := range *count {
			m := &client.Message{Topic: *topic, Tags: *tags, Body: []byte(*body)}
			if *count > 1 {
				m.Body = fmt.Appendf(m.Body, " %d", i+1)
			}
			if *key != "" {
				m.Keys = []string{*key}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
			r, err := p.Send(ctx, m)
			cancel()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "sent %s to %s queue %d offset %d\n", r.ID, r.Broker, r.Queue, r.QueueOffset)
		}
		return nil
	}
	return cmd
}

func consumeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "consume", Short: "Print a topic's messages", Args: cobra.NoArgs}
	names := nameServers(cmd)
	f := cmd.Flags()
	topic := f.String("topic", "", "topic")
	count := f.Int("count", 0, "messages to print; 0: until interrupted")
	tags := f.String("tags", "*", "tag expression: A || B")
	from := f.String("from", "first", "first: with the oldest message; last: with the next one")
	timeout := f.Duration("timeout", 0, "give up after this time; 0: never")
	_ = cmd.MarkFlagRequired("topic")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		start := client.Earliest
		switch *from {
		case "first":
		case "last":
			start = client.Latest
		default:
			return fmt.Errorf("--from %s: want first or last", *from)
		}
		ctx := cmd.Context()
		if *timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, *timeout)
			defer cancel()
		}
		c, err := connect(*names)
		if err != nil {
			return err
		}
		defer closeClient(c)
		r, err := c.Read(ctx, *topic, *tags, start)
		if err != nil {
			return err
		}
		defer r.Close()
		for n := 0; *count == 0 || n < *count; n++ {
			m, err := r.Next(ctx)
			if cmd.Context().Err() != nil {
				return nil // interrupted: that is how it ends without a count
			}
			if err != nil {
				return fmt.Errorf("after %d messages: %w", n, err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "queue %d offset %d tags %q keys %q: %s\n", m.Queue, m.QueueOffset, m.Tags, strings.Join(m.Keys, " "), m.Body)
		}
		return nil
	}
	return cmd
}
