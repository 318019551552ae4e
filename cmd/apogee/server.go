package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/apogeemq/apogee/internal/config"
	"github.com/apogeemq/apogee/internal/server"
)

// stopWithin bounds a clean stop.
const stopWithin = 20 * time.Second

// serverFlags are the flags of the three commands that serve.
type serverFlags struct {
	file, data, listen, namesrv string
	set                         []string
	ports                       map[string]*int // by setting
	logFormat, logLevel         string
}

func serverCommands(began time.Time) []*cobra.Command {
	return []*cobra.Command{
		serveCommand("server", "Run name server and broker in one process", server.Roles{NameServer: true, Broker: true}, began),
		serveCommand("namesrv", "Run a name server alone", server.Roles{NameServer: true}, began),
		serveCommand("broker", "Run a broker alone, under the name servers of --namesrv", server.Roles{Broker: true}, began),
	}
}

func serveCommand(use, short string, roles server.Roles, began time.Time) *cobra.Command {
	f := &serverFlags{ports: map[string]*int{}}
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return f.run(cmd, roles, began)
	}}
	fl := cmd.Flags()
	fl.StringVar(&f.file, "config", os.Getenv("APOGEE_CONFIG"), "file with RocketMQ's properties")
	fl.StringArrayVar(&f.set, "set", nil, "key=value: one setting, repeatable")
	fl.StringVar(&f.data, "data", "", "data folder (storePathRootDir)")
	fl.StringVar(&f.listen, "listen", "", "address to listen on (bindAddress, default 127.0.0.1)")
	port := func(flag, key, usage string) { f.ports[key] = fl.Int(flag, -1, usage) }
	if roles.NameServer {
		port("namesrv-port", "namesrvPort", "port of the name server (default 9876; 0 picks a free one)")
	}
	if roles.Broker {
		port("broker-port", "listenPort", "port of the broker, the VIP listener is two below (default 10911; 0 picks free ones)")
		fl.StringVar(&f.namesrv, "namesrv", "", "name servers ADDR[;ADDR] (namesrvAddr)")
	}
	port("http-port", "httpPort", "port of /healthz, /readyz and /metrics on loopback (default 8088; 0 picks a free one)")
	fl.StringVar(&f.logFormat, "log-format", envOr("APOGEE_LOG_FORMAT", "text"), "text or json")
	fl.StringVar(&f.logLevel, "log-level", envOr("APOGEE_LOG_LEVEL", "info"), "debug, info, warn or error")
	return cmd
}

func envOr(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

// config builds the configuration: defaults, file, environment, flags.
func (f *serverFlags) config(roles server.Roles) (*config.Config, error) {
	c := config.NewFor(configRole(roles))
	if f.file != "" {
		if err := c.LoadFile(f.file); err != nil {
			return nil, err
		}
	}
	if err := c.LoadEnv(os.Environ()); err != nil {
		return nil, err
	}
	for key, v := range map[string]string{"storePathRootDir": f.data, "bindAddress": f.listen, "namesrvAddr": f.namesrv} {
		if v != "" {
			if err := c.Set(key, v, "flag"); err != nil {
				return nil, err
			}
		}
	}
	for key, v := range f.ports {
		if *v >= 0 {
			if err := c.Set(key, fmt.Sprint(*v), "flag"); err != nil {
				return nil, err
			}
		}
	}
	for _, kv := range f.set {
		key, value, ok := strings.Cut(kv, "=")
		if !ok {
			return nil, fmt.Errorf("--set %s: want key=value", kv)
		}
		if err := c.Set(key, value, "--set"); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func configRole(roles server.Roles) config.Role {
	switch {
	case !roles.Broker:
		return config.NameServer
	case !roles.NameServer:
		return config.Broker
	}
	return config.AllInOne
}

func (f *serverFlags) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, fmt.Errorf("--log-level %s: want debug, info, warn or error", f.logLevel)
	}
	o := &slog.HandlerOptions{Level: level}
	switch f.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, o)), nil
	}
	return nil, fmt.Errorf("--log-format %s: want text or json", f.logFormat)
}

func (f *serverFlags) run(cmd *cobra.Command, roles server.Roles, began time.Time) error {
	log, err := f.logger()
	if err != nil {
		return err
	}
	c, err := f.config(roles)
	if err != nil {
		return err
	}
	for _, n := range c.Notes {
		log.Warn("configuration: " + n)
	}
	s, err := server.Start(c, roles, log, began)
	if err != nil {
		return err
	}
	line := "apogee ready"
	for _, p := range [][2]string{{"namesrv", s.NamesrvAddr}, {"broker", s.BrokerAddr}, {"http", s.HTTPAddr}} {
		if p[1] != "" {
			line += " " + p[0] + "=" + p[1]
		}
	}
	if roles.Broker {
		line += fmt.Sprintf(" data=%s flush=%q", s.DataDir, s.Flush)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s in %d ms\n", line, s.Took.Milliseconds())

	paceCollector(cmd.Context())
	<-cmd.Context().Done()
	log.Info("stopping")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), stopWithin)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	log.Info("stopped")
	return nil
}
