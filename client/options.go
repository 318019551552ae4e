package client

import (
	"crypto/tls"
	"log/slog"
	"time"
)

// options are what a Client's Options set.
type options struct {
	names      []string
	namesURL   string // where the list of name servers is
	id         string
	timeout    time.Duration
	heartbeat  time.Duration
	log        *slog.Logger
	tls        *tls.Config
	keys       *credentials
	namespace  string // prefix of topics and groups
	space      string // namespace V2, a header field
	traceTopic string // "": off
}

// Option sets something of a Client. An option that can't be right makes New fail.
type Option func(*options) error

// WithNameServers names the name servers, each as host:port. Without it, and without another source of them, the
// environment variable NAMESRV_ADDR does (host:port, separated by semicolons).
func WithNameServers(addrs ...string) Option {
	return func(o *options) error {
		if len(addrs) == 0 {
			return invalid("WithNameServers: give at least one host:port")
		}
		if o.namesURL != "" {
			return invalid("WithNameServers and WithNameServerURL exclude each other")
		}
		o.names = nil
		for _, a := range addrs {
			o.names = append(o.names, splitAddrs(a)...)
		}
		return checkAddrs(o.names)
	}
}

// WithClientID sets the id by which brokers know the client. It must differ from that of every other client of the
// same groups: two with one id consume each other's queues. Without it the id is random.
func WithClientID(id string) Option {
	return func(o *options) error {
		if id == "" {
			return invalid("WithClientID: the id is empty")
		}
		o.id = id
		return nil
	}
}

// WithTimeout bounds each request of a call whose context has no deadline. Default 3 s, as in Java.
func WithTimeout(d time.Duration) Option {
	return func(o *options) error {
		if d <= 0 {
			return invalid("WithTimeout: %s isn't positive", d)
		}
		o.timeout = d
		return nil
	}
}

// WithHeartbeatInterval sets how often brokers are told that the client lives. Default 30 s; brokers forget a client
// after 120 s. A lost connection is noticed without it.
func WithHeartbeatInterval(d time.Duration) Option {
	return func(o *options) error {
		if d < 100*time.Millisecond || d > 110*time.Second {
			return invalid("WithHeartbeatInterval: %s is not within 100ms and 110s", d)
		}
		o.heartbeat = d
		return nil
	}
}

// WithLogger sets where the client logs. Default: nowhere.
func WithLogger(l *slog.Logger) Option {
	return func(o *options) error {
		if l == nil {
			return invalid("WithLogger: nil")
		}
		o.log = l
		return nil
	}
}

// WithTLS makes every connection use TLS. The server's certificate is verified against cfg.RootCAs (the system's
// roots when nil) and the host in its address, unless cfg says otherwise. A client certificate goes into
// cfg.Certificates.
func WithTLS(cfg *tls.Config) Option {
	return func(o *options) error {
		if cfg == nil {
			return invalid("WithTLS: nil: use &tls.Config{} for the defaults")
		}
		o.tls = cfg.Clone()
		return nil
	}
}

// WithCredentials signs every request for a broker or name server with access control (ACL): Java's
// AclClientRPCHook. securityToken is for temporary keys (STS) and may be empty.
func WithCredentials(accessKey, secretKey, securityToken string) Option {
	return func(o *options) error {
		if accessKey == "" || secretKey == "" {
			return invalid("WithCredentials: accessKey and secretKey are needed")
		}
		o.keys = &credentials{accessKey, secretKey, securityToken}
		return nil
	}
}

// WithNamespace puts ns and "%" in front of topics and groups on the wire, and takes it off again from what is
// received: the namespaces of 4.x. System topics are left alone.
func WithNamespace(ns string) Option {
	return func(o *options) error {
		if ns == "" {
			return invalid("WithNamespace: the namespace is empty")
		}
		o.namespace = ns
		return nil
	}
}

// WithNamespaceV2 names a namespace in every request's header, as 5.x proxies and brokers expect it. Names of topics
// and groups stay as they are. It can't be used together with WithNamespace on the same name server.
func WithNamespaceV2(ns string) Option {
	return func(o *options) error {
		if ns == "" {
			return invalid("WithNamespaceV2: the namespace is empty")
		}
		o.space = ns
		return nil
	}
}

// within reports whether v is at least low and at most high.
func within[T int | int64 | time.Duration](v, low, high T) bool { return v >= low && v <= high }
