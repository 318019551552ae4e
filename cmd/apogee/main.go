// Command apogee is a RocketMQ in one binary: name server, broker, and the tools to send and read messages.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	began := time.Now()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "apogee",
		Short:         "A RocketMQ in one binary",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(serverCommands(began)...)
	root.AddCommand(produceCommand(), consumeCommand(), benchCommand(), storeCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "apogee:", err)
		os.Exit(1)
	}
}
