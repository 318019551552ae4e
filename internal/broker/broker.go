package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apogeemq/apogee/internal/broker/delay"
	"github.com/apogeemq/apogee/internal/broker/longpoll"
	"github.com/apogeemq/apogee/internal/broker/member"
	"github.com/apogeemq/apogee/internal/broker/offset"
	"github.com/apogeemq/apogee/internal/broker/subgroup"
	"github.com/apogeemq/apogee/internal/broker/topic"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/run"
	"github.com/apogeemq/apogee/internal/store"
	"github.com/apogeemq/apogee/internal/vfs"
)

// Options are a broker's settings. The names in comments are RocketMQ's.
type Options struct {
	Name    string // brokerName
	Cluster string // brokerClusterName
	ID      int64  // brokerId
	// IP is brokerIP1; invalid: clients are told the address through which they reached the name server, and
	// messages are stamped with the one through which they came in.
	IP     netip.Addr
	Region string // regionId
	Trace  bool   // traceOn

	Permission    int32 // brokerPermission
	AutoTopic     bool  // autoCreateTopicEnable
	AutoGroup     bool  // autoCreateSubscriptionGroup
	DefaultQueues int32 // defaultTopicQueueNums
	ClusterTopic  bool  // clusterTopicEnable
	BrokerTopic   bool  // brokerTopicEnable
	TraceTopic    string
	Levels        delay.Levels // messageDelayLevel

	LongPolling        bool          // longPollingEnable
	ShortPollingTime   time.Duration // shortPollingTimeMills
	MaxHold            time.Duration // the longest a pull is parked, whatever it asks for
	MaxParked          int           // pulls that may be parked at once
	DefaultQueryMaxNum int           // defaultQueryMaxNum
	NotifyIdsChanged   bool          // notifyConsumerIdsChangedEnable

	Members member.Options

	OffsetInterval time.Duration // flushConsumerOffsetInterval
	DelayInterval  time.Duration // flushDelayOffsetInterval

	Clean         CleanOptions
	RegisterEvery time.Duration // registerNameServerPeriod
	Settings      func() string // GET_BROKER_CONFIG's text
	Store         store.Options
	Limits        remoting.Limits
	Logger        *slog.Logger
	Now           func() time.Time // default time.Now
	// Names are the name servers the broker makes itself known to.
	Names []Names
}

// CleanOptions say when old commit-log files go.
type CleanOptions struct {
	Keep       time.Duration // fileReservedTime
	When       string        // deleteWhen: hours, separated by ;
	Every      time.Duration // cleanResourceInterval
	CleanRatio int           // diskMaxUsedSpaceRatio
	ForceRatio int           // diskSpaceCleanForciblyRatio
	Force      bool          // cleanFileForciblyEnable
	// RefuseRatio is diskSpaceWarningLevelRatio: above it sends are refused. 0: never.
	RefuseRatio int
}

// Broker is one broker. It serves requests from NewBroker on; Serve is safe for concurrent use.
type Broker struct {
	o       Options
	log     *slog.Logger
	now     func() time.Time
	booted  time.Time
	traceOn string

	store   *store.Store
	topics  *topic.Table
	groups  *subgroup.Table
	offsets *offset.Table
	delayed *delay.Scheduler
	clients *clients
	parked  *longpoll.Table
	early   earlyPulls

	uniqueIDs *message.UniqueIDs
	sends     sendPool
	results   resultPool
	counters  counters
	stats     *stats
	unread    unread

	main, fast *remoting.Server
	netStats   remoting.Stats
	port       uint16
	nextID     atomic.Uint64
	registrar  *registrar

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	relays *run.Group   // requests that wait for a client's answer
	armed  atomic.Int64 // unix nanoseconds at which the clock wakes
	rearm  chan struct{}
	closed atomic.Bool
}

// counters count what has no other place.
type counters struct {
	sendsRefused, sendsFailed, pullsRefused, deadLetters, fencedCommits, backwardCommits atomic.Int64
}

// Open opens the store and the metadata of a broker. It serves nothing yet: see Start.
func Open(o Options) (*Broker, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Store.FS == nil {
		o.Store.FS = vfs.OS()
	}
	b := &Broker{o: o, log: o.Logger, now: o.Now, booted: o.Now(), traceOn: fmt.Sprint(o.Trace), parked: longpoll.New(o.MaxParked),
		clients: newClients(o.Members), stats: newStats(), rearm: make(chan struct{}, 1)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.relays = run.NewGroup(b.ctx)
	o.Store.Listener = b
	o.Store.Dropped = b.Dropped
	o.Store.DelayLevels = o.Levels
	o.Store.Logger = o.Logger
	s, err := store.Open(o.Store)
	if err != nil {
		return nil, err
	}
	b.store = s
	if err := b.openTables(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	b.uniqueIDs = message.NewUniqueIDs(netip.AddrFrom4([4]byte{127, 0, 0, 1}), int(b.booted.UnixNano()), uint32(b.booted.UnixNano()>>16))
	b.registrar = newRegistrar(b)
	return b, nil
}

func (b *Broker) openTables() error {
	fsys, dir, now := b.o.Store.FS, path.Join(b.o.Store.Dir, "config"), b.now()
	var notes, n []string
	var err error
	if b.topics, n, err = topic.Open(topic.Options{FS: fsys, Dir: dir, Cluster: b.o.Cluster, Broker: b.o.Name, AutoCreate: b.o.AutoTopic,
		DefaultQueues: b.o.DefaultQueues, ClusterTopic: b.o.ClusterTopic, BrokerTopic: b.o.BrokerTopic, TraceTopic: b.o.TraceTopic,
		DelayLevels: int32(b.o.Levels.Max()), Changed: b.topicsChanged}, now); err != nil {
		return err
	}
	notes = append(notes, n...)
	if b.groups, n, err = subgroup.Open(subgroup.Options{FS: fsys, Dir: dir, AutoCreate: b.o.AutoGroup}, now); err != nil {
		return err
	}
	notes = append(notes, n...)
	if b.offsets, n, err = offset.Open(fsys, dir); err != nil {
		return err
	}
	notes = append(notes, n...)
	if b.delayed, n, err = delay.Open(delay.Options{FS: fsys, Dir: dir, Store: b.store, Levels: b.o.Levels, Logger: b.log,
		Prepare: b.stampDelivered, PersistInterval: b.o.DelayInterval}); err != nil {
		return err
	}
	for _, note := range append(notes, n...) {
		b.log.Warn("metadata: " + note)
	}
	return nil
}

// stampDelivered gives a delayed message that is delivered now this broker's address. The original's host says
// through which address it came in, so it stays when brokerIP1 doesn't name another.
func (b *Broker) stampDelivered(m *message.Message) {
	if b.o.IP.IsValid() {
		m.StoreHost = netip.AddrPortFrom(b.o.IP, b.port)
	}
}

// Start serves on the two listeners (the second for clients in VIP mode) and makes the broker known. It returns
// when the name servers in reach know it.
func (b *Broker) Start(mainListener, fastListener net.Listener) {
	b.port = mainListener.Addr().(*net.TCPAddr).AddrPort().Port()
	options := remoting.ServerOptions{Handler: b, Limits: b.o.Limits, Stats: &b.netStats, Logger: b.log,
		NextID: func() uint64 { return b.nextID.Add(1) }, Opened: b.clients.opened, Closed: b.connClosed}
	b.main = remoting.NewServer(options)
	options.Handler = fastHandler{b}
	b.fast = remoting.NewServer(options)
	b.main.Serve(mainListener)
	b.fast.Serve(fastListener)
	b.wg.Go(b.clock)
	b.wg.Go(b.persist)
	b.wg.Go(func() { _ = b.delayed.Run(b.ctx) })
	b.registrar.start()
}

// DropConnections closes the connections of all clients, as a network that fails does. The broker goes on.
func (b *Broker) DropConnections() {
	b.main.DropConns()
	b.fast.DropConns()
}

// Close stops the broker in the order that doc.go names. ctx bounds the waiting for connections.
func (b *Broker) Close(ctx context.Context) error {
	if !b.closed.CompareAndSwap(false, true) {
		return nil
	}
	b.registrar.stop(ctx)
	var errs []error
	if b.main != nil {
		b.main.StopAccepting()
		b.fast.StopAccepting()
	}
	b.refuseParked()
	b.cancel()
	b.wg.Wait()
	errs = append(errs, b.relays.Close(ctx))
	if b.main != nil {
		errs = append(errs, b.main.Close(ctx), b.fast.Close(ctx))
	}
	errs = append(errs, b.offsets.Save(b.now()), b.delayed.Save(b.now()), b.store.Close())
	return errors.Join(errs...)
}

// Health returns why the broker can't do its work, or nil.
func (b *Broker) Health() error { return b.store.Health() }

// Serve implements remoting.Handler: one request, on its connection's reader goroutine.
func (b *Broker) Serve(c *remoting.Conn, req *remoting.Command) {
	switch protocol.RequestCode(req.Code) {
	case protocol.SendMessage, protocol.SendMessageV2, protocol.SendBatchMessage:
		b.serveSend(c, req)
	case protocol.PullMessage, protocol.LitePullMessage:
		b.servePull(c, req)
	case protocol.ConsumerSendMsgBack:
		b.serveSendBack(c, req)
	case protocol.GetConsumerRunningInfo, protocol.ConsumeMessageDirectly:
		b.serveRelay(c, req)
	default:
		b.serveCold(c, req)
	}
}

// handler serves a request that is answered at once.
type handler func(*Broker, *remoting.Conn, *remoting.Command) (*remoting.Response, error)

func (b *Broker) serveCold(c *remoting.Conn, req *remoting.Command) {
	h := handlerOf(protocol.RequestCode(req.Code))
	if h == nil {
		_ = c.Reply(req, remoting.NotSupported(req.Code))
		return
	}
	r, err := h(b, c, req)
	if err != nil {
		r = response(err)
	}
	_ = c.Reply(req, r)
}

func handlerOf(code protocol.RequestCode) handler {
	switch code {
	case protocol.QueryConsumerOffset:
		return (*Broker).queryConsumerOffset
	case protocol.UpdateConsumerOffset:
		return (*Broker).updateConsumerOffset
	case protocol.HeartBeat:
		return (*Broker).heartbeat
	case protocol.UnregisterClient:
		return (*Broker).unregisterClient
	case protocol.GetConsumerListByGroup:
		return (*Broker).consumerList
	case protocol.CheckClientConfig:
		return (*Broker).checkClient
	case protocol.LockBatchMQ:
		return (*Broker).lockQueues
	case protocol.UnlockBatchMQ:
		return (*Broker).unlockQueues
	case protocol.SearchOffsetByTimestamp:
		return (*Broker).searchOffset
	case protocol.GetMaxOffset:
		return (*Broker).maxOffset
	case protocol.GetMinOffset:
		return (*Broker).minOffset
	case protocol.GetEarliestMsgStoretime:
		return (*Broker).earliestStoreTime
	case protocol.ViewMessageByID:
		return (*Broker).viewMessage
	case protocol.QueryMessage:
		return (*Broker).queryMessage
	case protocol.UpdateAndCreateTopic:
		return (*Broker).updateTopic
	case protocol.UpdateAndCreateTopicList:
		return (*Broker).updateTopicList
	case protocol.DeleteTopicInBroker:
		return (*Broker).deleteTopic
	case protocol.GetAllTopicConfig:
		return (*Broker).allTopics
	case protocol.GetTopicConfig:
		return (*Broker).topicConfig
	case protocol.GetTopicStatsInfo:
		return (*Broker).topicStats
	case protocol.GetSystemTopicListFromBroker:
		return (*Broker).systemTopics
	case protocol.UpdateAndCreateSubscriptionGroup:
		return (*Broker).updateGroup
	case protocol.UpdateAndCreateSubscriptionGroupList:
		return (*Broker).updateGroupList
	case protocol.DeleteSubscriptionGroup:
		return (*Broker).deleteGroup
	case protocol.GetAllSubscriptionGroupConfig:
		return (*Broker).allGroups
	case protocol.GetSubscriptionGroupConfig:
		return (*Broker).groupConfig
	case protocol.UpdateAndGetGroupForbidden:
		return (*Broker).groupForbidden
	case protocol.GetConsumeStats:
		return (*Broker).consumeStats
	case protocol.GetConsumerConnectionList:
		return (*Broker).consumerConnections
	case protocol.GetProducerConnectionList:
		return (*Broker).producerConnections
	case protocol.GetAllProducerInfo:
		return (*Broker).allProducers
	case protocol.InvokeBrokerToResetOffset:
		return (*Broker).resetOffset
	case protocol.QueryTopicConsumeByWho:
		return (*Broker).topicConsumers
	case protocol.QueryTopicsByConsumer:
		return (*Broker).topicsOfConsumer
	case protocol.QuerySubscriptionByConsumer:
		return (*Broker).subscriptionOfConsumer
	case protocol.QueryConsumeTimeSpan:
		return (*Broker).consumeTimeSpan
	case protocol.GetAllConsumerOffset:
		return (*Broker).allOffsets
	case protocol.GetAllDelayOffset:
		return (*Broker).allDelayOffsets
	case protocol.GetBrokerRuntimeInfo:
		return (*Broker).runtimeInfo
	case protocol.GetBrokerConfig:
		return (*Broker).brokerConfig
	case protocol.UpdateBrokerConfig:
		return (*Broker).updateBrokerConfig
	case protocol.ViewBrokerStatsData:
		return (*Broker).brokerStats
	case protocol.CleanExpiredConsumeQueue, protocol.DeleteExpiredCommitLog:
		return (*Broker).cleanNow
	case protocol.CleanUnusedTopic:
		return (*Broker).cleanUnusedTopics
	case protocol.EndTransaction, protocol.RecallMessage:
		return (*Broker).notServed
	}
	return nil
}

// notServed refuses what this version doesn't serve although it knows the code.
func (b *Broker) notServed(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	return nil, refuse(protocol.NoPermission, "%s (%d) is not served by this version", protocol.RequestCode(req.Code), req.Code)
}

// fastHandler serves the VIP listener: everything but pulls, as Java's does.
type fastHandler struct{ b *Broker }

// Serve implements remoting.Handler.
func (h fastHandler) Serve(c *remoting.Conn, req *remoting.Command) {
	switch protocol.RequestCode(req.Code) {
	case protocol.PullMessage, protocol.LitePullMessage:
		_ = c.Reply(req, remoting.NotSupported(req.Code))
	default:
		h.b.Serve(c, req)
	}
}

func (b *Broker) connClosed(c *remoting.Conn, _ error) {
	b.parked.DropConn(c.ID())
	b.notify(b.clients.connClosed(c, b.now()))
	b.wakeClock()
}

// storeHost is the address that a message which came through c is stamped with.
func (b *Broker) storeHost(c *remoting.Conn) netip.AddrPort {
	if b.o.IP.IsValid() {
		return netip.AddrPortFrom(b.o.IP, b.port)
	}
	return netip.AddrPortFrom(c.LocalAddr().Addr(), b.port)
}

// group returns a group's configuration, making it where groups are made by themselves.
func (b *Broker) group(name []byte) (subgroup.Config, bool, error) {
	if g, ok := b.groups.GetBytes(name); ok {
		return g, true, nil
	}
	return b.groups.Ensure(string(name), b.now())
}

// Arrived implements store.Listener: a message is readable.
func (b *Broker) Arrived(topicName string, queueID int32, _ int64, tagsCode int64) {
	for _, p := range b.parked.Arrived(topicName, queueID, tagsCode) {
		b.pullNow(p.(*pull))
	}
	if topicName == message.ScheduleTopic {
		b.delayed.Wake()
	}
}

// storeRefusal gives a store's error its response code.
func (b *Broker) storeRefusal(err error) error {
	switch {
	case errors.Is(err, store.ErrIllegal):
		return refuse(protocol.MessageIllegal, "the message is illegal, maybe msg body or properties length not matched. msg body length limit %dB, msg properties length limit 32KB. %s", b.o.Store.MaxMessage, err)
	case errors.Is(err, store.ErrDiskFull), errors.Is(err, store.ErrLogFailed), errors.Is(err, store.ErrClosed):
		return refuse(protocol.ServiceNotAvailable, "service not available now: %s", err)
	}
	return refuse(protocol.SystemError, "%s", err)
}

// clock wakes at the nearest deadline: of parked pulls, of members in grace, of the periodic scans.
func (b *Broker) clock() {
	t := time.NewTimer(0)
	defer t.Stop()
	nextSample := b.now()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-b.rearm:
		case <-t.C:
		}
		now := b.now()
		for _, p := range b.parked.Expire(now) {
			b.pullNow(p.(*pull))
		}
		notices, next := b.clients.tick(now)
		b.notify(notices)
		if !now.Before(nextSample) {
			b.stats.sample(now, b)
			nextSample = now.Add(sampleEvery)
		}
		if nextSample.Before(next) {
			next = nextSample
		}
		if at, ok := b.parked.Next(); ok && at.Before(next) {
			next = at
		}
		b.armed.Store(next.UnixNano())
		t.Reset(max(next.Sub(b.now()), 0))
	}
}

// wakeClock lets the clock look at its deadlines again.
func (b *Broker) wakeClock() {
	select {
	case b.rearm <- struct{}{}:
	default:
	}
}

// armHold wakes the clock when a pull was parked that ends before the clock would look.
func (b *Broker) armHold(deadline time.Time) {
	if deadline.UnixNano() < b.armed.Load() {
		b.wakeClock()
	}
}

// persist writes offsets when they changed and cleans the store.
func (b *Broker) persist() {
	offsets := time.NewTicker(b.o.OffsetInterval)
	defer offsets.Stop()
	clean := time.NewTicker(b.o.Clean.Every)
	defer clean.Stop()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-offsets.C:
			if err := b.offsets.Save(b.now()); err != nil {
				b.log.Error("consumer offsets could not be written, it is tried again", "error", err)
			}
		case <-clean.C:
			if _, err := b.clean(false); err != nil {
				b.log.Error("cleaning the store failed, it is tried again", "error", err)
			}
		}
	}
}
