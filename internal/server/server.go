// Package server puts the roles together in one process: name server, broker, and the page that says how they are.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"

	"github.com/apogeemq/apogee/internal/broker"
	"github.com/apogeemq/apogee/internal/broker/delay"
	"github.com/apogeemq/apogee/internal/broker/member"
	"github.com/apogeemq/apogee/internal/config"
	"github.com/apogeemq/apogee/internal/namesrv"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/store"
	"github.com/apogeemq/apogee/internal/vfs"
)

// Roles are what a process is.
type Roles struct{ NameServer, Broker bool }

// Server is a running process's parts.
//
// Close stops in this order: the broker makes itself unknown, answers what waits and closes its store; the name
// server's connections end; the health page goes last, so that it tells of the stop.
type Server struct {
	c     *config.Config
	log   *slog.Logger
	names *namesrv.Server
	nsrv  *remoting.Server
	nstat remoting.Stats
	b     *broker.Broker

	http     *http.Server
	httpDone chan struct{}
	ready    atomic.Bool
	stopping atomic.Bool

	NamesrvAddr, BrokerAddr, HTTPAddr string
	DataDir                           string
	Flush                             string // in plain words
	Took                              time.Duration
}

// Start starts the roles and returns when they serve. began is when the process did.
func Start(c *config.Config, roles Roles, log *slog.Logger, began time.Time) (s *Server, err error) {
	s = &Server{c: c, log: log}
	begun := s
	defer func() {
		if err != nil { // what was started by then goes again
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = begun.Close(ctx)
		}
	}()
	if s.DataDir, err = c.DataDir(); err != nil {
		return nil, err
	}
	listen, err := netip.ParseAddr(c.Text("bindAddress"))
	if err != nil {
		return nil, fmt.Errorf("bindAddress=%s: want an IP address", c.Text("bindAddress"))
	}
	var nameListener, mainListener, fastListener net.Listener
	if roles.NameServer {
		if nameListener, err = remoting.Listen(netip.AddrPortFrom(listen, uint16(c.Int("namesrvPort")))); err != nil {
			return nil, err
		}
		s.NamesrvAddr = nameListener.Addr().String()
	}
	if roles.Broker {
		// The store first: a second broker on the folder must be told so, not that a port is taken.
		if err = s.openBroker(listen, roles); err != nil {
			if nameListener != nil {
				_ = nameListener.Close()
			}
			return nil, err
		}
		if mainListener, fastListener, err = listenPair(listen, uint16(c.Int("listenPort"))); err != nil {
			if nameListener != nil {
				_ = nameListener.Close()
			}
			return nil, err
		}
		s.BrokerAddr = mainListener.Addr().String()
	}
	if roles.NameServer {
		if err = s.startNames(nameListener); err != nil {
			return nil, err
		}
	}
	if roles.Broker {
		s.b.Start(mainListener, fastListener)
	}
	if err = s.startHTTP(); err != nil {
		return nil, err
	}
	s.ready.Store(true)
	s.Took = time.Since(began)
	return s, nil
}

// listenPair opens the broker's two listeners: port, and two below it. Port 0 picks a pair that is free.
func listenPair(ip netip.Addr, port uint16) (main, fast net.Listener, err error) {
	for range 50 {
		if main, err = remoting.Listen(netip.AddrPortFrom(ip, port)); err != nil {
			return nil, nil, err
		}
		got := main.Addr().(*net.TCPAddr).AddrPort().Port()
		if fast, err = remoting.Listen(netip.AddrPortFrom(ip, got-2)); err == nil {
			return main, fast, nil
		}
		_ = main.Close()
		if port != 0 {
			return nil, nil, fmt.Errorf("the VIP listener is two below listenPort: %w", err)
		}
	}
	return nil, nil, err
}

func (s *Server) limits() remoting.Limits {
	return remoting.Limits{IdleTimeout: time.Duration(s.c.Int("serverChannelMaxIdleTimeSeconds")) * time.Second, MaxConns: int(s.c.Int("maxConnections"))}
}

func (s *Server) startNames(l net.Listener) error {
	c := s.c
	kv := c.Text("kvConfigPath")
	if kv == "" {
		kv = filepath.Join(s.DataDir, "namesrv", "kvConfig.json")
	}
	o := namesrv.Options{FS: vfs.OS(), KVPath: kv, OrderMessages: c.Bool("orderMessageEnable"), ReturnOrder: c.Bool("returnOrderTopicConfigToBroker"),
		TopicLists: c.Bool("enableTopicList"), AllTopicList: c.Bool("enableAllTopicList"), DeleteUnreported: c.Bool("deleteTopicWithBrokerRegistration"),
		ActingMaster: c.Bool("supportActingMaster"), ScanEvery: s.ms("scanNotActiveBrokerInterval"), Settings: c.Render, Logger: s.log}
	if s.b != nil {
		o.EnsureRetryTopic = s.b.EnsureRetryTopic
	}
	names, err := namesrv.New(o)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	s.names = names
	s.nsrv = remoting.NewServer(remoting.ServerOptions{Handler: names, Limits: s.limits(), Stats: &s.nstat, Logger: s.log, Closed: names.ConnClosed})
	s.nsrv.Serve(l)
	return nil
}

func (s *Server) ms(key string) time.Duration { return time.Duration(s.c.Int(key)) * time.Millisecond }

func (s *Server) openBroker(listen netip.Addr, roles Roles) error {
	c := s.c
	levels, err := delay.ParseLevels(c.Text("messageDelayLevel"))
	if err != nil {
		return err
	}
	var ip netip.Addr
	if v := c.Text("brokerIP1"); v != "" {
		if ip, err = netip.ParseAddr(v); err != nil {
			return fmt.Errorf("brokerIP1=%s: want an IP address", v)
		}
	}
	flush := store.SyncFlush
	s.Flush = "flushed to disk before the answer"
	if c.Text("flushDiskType") == "ASYNC_FLUSH" {
		flush = store.AsyncFlush
		s.Flush = fmt.Sprintf("answered from the page cache, flushed every %d ms", c.Int("flushIntervalCommitLog"))
	}
	ratio := int(c.Int("accessMessageInMemoryMaxRatio"))
	if ratio == 0 {
		ratio = -1
	}
	o := broker.Options{
		Name: c.BrokerName(), Cluster: c.Text("brokerClusterName"), ID: c.Int("brokerId"), IP: ip, Region: c.Text("regionId"), Trace: c.Bool("traceOn"),
		Permission: int32(c.Int("brokerPermission")), AutoTopic: c.Bool("autoCreateTopicEnable"), AutoGroup: c.Bool("autoCreateSubscriptionGroup"),
		DefaultQueues: int32(c.Int("defaultTopicQueueNums")), ClusterTopic: c.Bool("clusterTopicEnable"), BrokerTopic: c.Bool("brokerTopicEnable"), Levels: levels,
		LongPolling: c.Bool("longPollingEnable"), ShortPollingTime: s.ms("shortPollingTimeMills"), MaxHold: 10 * time.Minute, MaxParked: int(c.Int("maxParkedPulls")),
		DefaultQueryMaxNum: int(c.Int("defaultQueryMaxNum")), NotifyIdsChanged: c.Bool("notifyConsumerIdsChangedEnable"),
		Members:        member.Options{Lease: s.ms("rebalanceLockMaxLiveTime"), Grace: s.ms("lockReleaseGraceMillis"), Expiry: s.ms("channelExpiredTimeout")},
		OffsetInterval: s.ms("flushConsumerOffsetInterval"), DelayInterval: s.ms("flushDelayOffsetInterval"), RegisterEvery: s.ms("registerNameServerPeriod"),
		Clean: broker.CleanOptions{Keep: time.Duration(c.Int("fileReservedTime")) * time.Hour, When: c.Text("deleteWhen"), Every: s.ms("cleanResourceInterval"),
			CleanRatio: int(c.Int("diskMaxUsedSpaceRatio")), ForceRatio: int(c.Int("diskSpaceCleanForciblyRatio")), Force: c.Bool("cleanFileForciblyEnable"),
			RefuseRatio: int(c.Int("diskSpaceWarningLevelRatio"))},
		Settings: c.Render, Limits: s.limits(), Logger: s.log,
		Store: store.Options{Dir: s.DataDir, LogDir: c.Text("storePathCommitLog"), Flush: flush, FlushInterval: s.ms("flushIntervalCommitLog"),
			SegmentSize: c.Int("mappedFileSizeCommitLog"), QueueSize: c.Int("mappedFileSizeConsumeQueue"), IndexOff: !c.Bool("messageIndexEnable"),
			IndexSlots: int(c.Int("maxHashSlotNum")), IndexSize: int(c.Int("maxIndexNum")), MaxMessage: int(c.Int("maxMessageSize")),
			MemoryBytes: memory(), InMemoryRatio: ratio,
			MaxCountInMemory: int(c.Int("maxTransferCountOnMessageInMemory")), MaxBytesInMemory: int(c.Int("maxTransferBytesOnMessageInMemory")),
			MaxCountOnDisk: int(c.Int("maxTransferCountOnMessageInDisk")), MaxBytesOnDisk: int(c.Int("maxTransferBytesOnMessageInDisk"))},
	}
	if c.Bool("traceTopicEnable") {
		o.TraceTopic = c.Text("msgTraceTopicName")
	}
	if roles.NameServer {
		o.Names = append(o.Names, localNames{s})
	}
	for _, addr := range strings.FieldsFunc(c.Text("namesrvAddr"), func(r rune) bool { return r == ';' || r == ',' }) {
		o.Names = append(o.Names, broker.RemoteNames(strings.TrimSpace(addr), listen, s.log))
	}
	if len(o.Names) == 0 {
		return errors.New("a broker alone needs name servers: give --namesrv ADDR[;ADDR], or start `apogee server`")
	}
	s.b, err = broker.Open(o)
	if errors.Is(err, store.ErrLocked) {
		return fmt.Errorf("another broker has the data folder %s open: stop it first, or give --data another folder", s.DataDir)
	}
	return err
}

// memory returns the machine's memory in bytes.
func memory() int64 {
	var i unix.Sysinfo_t
	if unix.Sysinfo(&i) != nil {
		return 8 << 30
	}
	return int64(i.Totalram) * int64(i.Unit)
}

// localNames is the name server of this process, as the broker sees it.
type localNames struct{ s *Server }

func (n localNames) report(r broker.Registration) namesrv.Report {
	return namesrv.Report{Cluster: r.Cluster, Name: r.Name, ID: r.ID, Addr: netip.AddrPortFrom(addrOr(r.IP), r.Port).String(),
		ByClient: !r.IP.IsValid(), RetryQueues: r.RetryQueues, Topics: r.Topics}
}

func addrOr(ip netip.Addr) netip.Addr {
	if ip.IsValid() {
		return ip
	}
	return netip.IPv4Unspecified()
}

// Register implements broker.Names.
func (n localNames) Register(_ context.Context, r broker.Registration) ([]string, error) {
	_, err := n.s.names.Register(n.report(r))
	var ordered []string
	for topic := range n.s.names.OrderedTopics() {
		ordered = append(ordered, topic)
	}
	return ordered, err
}

// Unregister implements broker.Names.
func (n localNames) Unregister(_ context.Context, r broker.Registration) error {
	n.s.names.Table().Unregister(r.Name, n.report(r).Addr, r.ID)
	return nil
}

// Local implements broker.Names.
func (n localNames) Local() bool { return true }

// Close implements broker.Names.
func (n localNames) Close() {}

// startHTTP serves /healthz, /readyz and /metrics.
func (s *Server) startHTTP() error {
	addr := net.JoinHostPort(s.c.Text("httpAddress"), fmt.Sprint(s.c.Int("httpPort")))
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("health page: %w: give --http-port another port", err)
	}
	s.HTTPAddr = l.Addr().String()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), figures{s})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { s.status(w, s.healthReasons()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		reasons := s.healthReasons()
		if s.stopping.Load() {
			reasons = append(reasons, "the server is stopping")
		} else if !s.ready.Load() {
			reasons = append(reasons, "the server is starting")
		}
		s.status(w, reasons)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	s.http = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	s.httpDone = make(chan struct{})
	go func() {
		defer close(s.httpDone)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("health page ended", "error", err)
		}
	}()
	return nil
}

func (s *Server) healthReasons() []string {
	if s.b != nil {
		if err := s.b.Health(); err != nil {
			return []string{err.Error()}
		}
	}
	return nil
}

func (s *Server) status(w http.ResponseWriter, reasons []string) {
	w.Header().Set("Content-Type", "application/json")
	answer := map[string]any{"status": "ok"}
	if len(reasons) > 0 {
		answer = map[string]any{"status": "failing", "reasons": reasons}
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// figures hands the parts' numbers to the metrics page.
type figures struct{ s *Server }

// Describe implements prometheus.Collector: what is collected depends on what happened.
func (figures) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (f figures) Collect(ch chan<- prometheus.Metric) {
	var all []broker.Figure
	if f.s.b != nil {
		all = append(f.s.b.Figures(), netFigures("broker", f.s.b.NetStats())...)
	}
	if f.s.nsrv != nil {
		all = append(all, netFigures("namesrv", &f.s.nstat)...)
	}
	for _, g := range all {
		kind := prometheus.GaugeValue
		if g.Counter {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(g.Name, g.Help, nil, g.Labels), kind, g.Value)
	}
}

// netFigures are the numbers of a role's connections.
func netFigures(role string, st *remoting.Stats) []broker.Figure {
	figure := func(name, help string, n int64) broker.Figure {
		return broker.Figure{Name: name, Help: help, Value: float64(n), Counter: true, Labels: map[string]string{"role": role}}
	}
	out := []broker.Figure{
		figure("apogee_connections_accepted_total", "connections accepted", st.Accepted.Load()),
		figure("apogee_connections_refused_total", "connections over the limit", st.Refused.Load()),
		figure("apogee_connections_idle_total", "connections closed for idleness", st.Idle.Load()),
		figure("apogee_connections_slow_total", "connections cut off for not reading", st.Slow.Load()),
		figure("apogee_handler_panics_total", "requests whose handler panicked", st.Panics.Load()),
	}
	bad := st.BadFrames()
	for _, kind := range slices.Sorted(maps.Keys(bad)) {
		g := figure("apogee_bad_frames_total", "connections closed for what can't be a frame", bad[kind])
		g.Labels["kind"] = kind
		out = append(out, g)
	}
	return out
}

// DropConnections closes the connections of all clients, as a network that fails does. The server goes on.
func (s *Server) DropConnections() {
	if s.b != nil {
		s.b.DropConnections()
	}
	if s.nsrv != nil {
		s.nsrv.DropConns()
	}
}

// Close stops everything in order; ctx bounds it.
func (s *Server) Close(ctx context.Context) error {
	if !s.stopping.CompareAndSwap(false, true) {
		return nil
	}
	var errs []error
	if s.b != nil {
		errs = append(errs, s.b.Close(ctx))
	}
	if s.nsrv != nil {
		errs = append(errs, s.nsrv.Close(ctx))
	}
	if s.names != nil {
		s.names.Close()
	}
	if s.http != nil {
		errs = append(errs, s.http.Shutdown(ctx))
		<-s.httpDone
	}
	return errors.Join(errs...)
}
