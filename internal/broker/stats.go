package broker

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/store"
)

// stats counts what was put and got, by topic and group, for the admin requests. Rates are made of samples taken
// every sampleEvery.
type stats struct {
	mu    sync.Mutex
	items map[statKey]*statItem

	putTotal, getTotal, getMissed int64
	samples                       []totals // newest last, up to 600 s of them
	// Totals at the last two midnights, for the admin's daily figures.
	midnight, midnightBefore totals
}

const (
	sampleEvery = 10 * time.Second
	sampleKeep  = 61 // 600 s and one more to subtract
)

type statKey struct{ name, key string }

type statItem struct {
	sum     int64
	times   int64
	samples []statSample
}

type statSample struct {
	at         time.Time
	sum, times int64
}

type totals struct {
	at               time.Time
	put, get, missed int64
	bytes            int64
}

func newStats() *stats { return &stats{items: map[statKey]*statItem{}} }

func (s *stats) addLocked(name, key string, n int64) {
	k := statKey{name, key}
	i := s.items[k]
	if i == nil {
		i = &statItem{}
		s.items[k] = i
	}
	i.sum += n
	i.times++
}

// put counts a stored message, or a batch of them.
func (s *stats) put(topicName string, count, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putTotal += int64(count)
	s.addLocked("TOPIC_PUT_NUMS", topicName, int64(count))
	s.addLocked("TOPIC_PUT_SIZE", topicName, int64(bytes))
}

// get counts messages handed to a group, none for a pull that found nothing.
func (s *stats) get(topicName, group string, count, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if count == 0 {
		s.getMissed++
		return
	}
	s.getTotal += int64(count)
	s.addLocked("GROUP_GET_NUMS", topicName+"@"+group, int64(count))
	s.addLocked("GROUP_GET_SIZE", topicName+"@"+group, int64(bytes))
}

func (s *stats) forgetTopic(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.items {
		if k.key == name || strings.HasPrefix(k.key, name+"@") {
			delete(s.items, k)
		}
	}
}

// sample remembers the sums, so that rates can be told.
func (s *stats) sample(now time.Time, b *Broker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := totals{now, s.putTotal, s.getTotal, s.getMissed, b.store.Counters().Bytes.Load()}
	if n := len(s.samples); n > 0 && s.samples[n-1].at.Local().YearDay() != now.Local().YearDay() {
		s.midnightBefore, s.midnight = s.midnight, t
	}
	s.samples = keepLast(append(s.samples, t))
	for _, i := range s.items {
		if n := len(i.samples); n > 0 && i.samples[n-1].sum == i.sum && n >= 2 && i.samples[n-2].sum == i.sum {
			i.samples[n-1].at = now // idle: one sample is enough to say so
			continue
		}
		i.samples = keepLast(append(i.samples, statSample{now, i.sum, i.times}))
	}
}

func keepLast[T any](list []T) []T {
	if n := len(list) - sampleKeep; n > 0 {
		list = append(list[:0], list[n:]...)
	}
	return list
}

// rate returns a figure's sum a second over the last minute.
func (s *stats) rate(name, key string) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.items[statKey{name, key}]
	if i == nil {
		return 0
	}
	return i.window(time.Now(), time.Minute).rate
}

type window struct {
	sum, times int64
	rate       float64
}

// window sums what came in the time before now, as far as there are samples of it.
func (i *statItem) window(now time.Time, d time.Duration) window {
	w := window{sum: i.sum, times: i.times}
	for _, p := range i.samples {
		if now.Sub(p.at) <= d {
			break
		}
		w.sum, w.times = i.sum-p.sum, i.times-p.times
	}
	w.rate = float64(w.sum) / d.Seconds()
	return w
}

// brokerStats handles VIEW_BROKER_STATS_DATA (315).
func (b *Broker) brokerStats(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.BrokerStatsRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	b.stats.mu.Lock()
	defer b.stats.mu.Unlock()
	i := b.stats.items[statKey{h.StatsName, h.StatsKey}]
	if i == nil {
		return nil, refuse(protocol.SystemError, "The stats <%s> <%s> not exist", h.StatsName, h.StatsKey)
	}
	now := b.now()
	item := func(d time.Duration) protocol.StatsItem {
		w := i.window(now, d)
		out := protocol.StatsItem{Sum: w.sum, TPS: protocol.Double(w.rate)}
		if w.times > 0 {
			out.AvgPt = protocol.Double(float64(w.sum) / float64(w.times))
		}
		return out
	}
	return withBody(nil, protocol.BrokerStatsData{StatsMinute: item(time.Minute), StatsHour: item(10 * time.Minute), StatsDay: item(24 * time.Hour)})
}

// tps returns a total's rate over the last 10, 60 and 600 s as Java prints it.
func (s *stats) tpsLocked(now time.Time, current int64, of func(totals) int64) string {
	var out [3]string
	for n, d := range []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute} {
		rate := 0.0
		for i := len(s.samples) - 1; i >= 0; i-- {
			if age := now.Sub(s.samples[i].at); age >= d || i == 0 && age > 0 {
				rate = float64(current-of(s.samples[i])) / age.Seconds()
				break
			}
		}
		out[n] = strconv.FormatFloat(rate, 'f', -1, 64)
	}
	return strings.Join(out[:], " ")
}

// runtimeInfo handles GET_BROKER_RUNTIME_INFO (28). Queue sizes and waiting times of thread pools are 0: requests
// are handled where they arrive, there is no queue before them.
func (b *Broker) runtimeInfo(_ *remoting.Conn, _ *remoting.Command) (*remoting.Response, error) {
	now := b.now()
	t := map[string]string{}
	num := func(k string, v int64) { t[k] = strconv.FormatInt(v, 10) }
	s := b.stats
	s.mu.Lock()
	bytes := b.store.Counters().Bytes.Load()
	t["putTps"] = s.tpsLocked(now, s.putTotal, func(x totals) int64 { return x.put })
	t["getFoundTps"] = s.tpsLocked(now, s.getTotal, func(x totals) int64 { return x.get })
	t["getTransferredTps"] = t["getFoundTps"]
	t["getMissTps"] = s.tpsLocked(now, s.getMissed, func(x totals) int64 { return x.missed })
	t["getTotalTps"] = s.tpsLocked(now, s.getTotal+s.getMissed, func(x totals) int64 { return x.get + x.missed })
	num("msgPutTotalTodayNow", s.putTotal)
	num("msgPutTotalTodayMorning", s.midnight.put)
	num("msgPutTotalYesterdayMorning", s.midnightBefore.put)
	num("msgGetTotalTodayNow", s.getTotal)
	num("msgGetTotalTodayMorning", s.midnight.get)
	num("msgGetTotalYesterdayMorning", s.midnightBefore.get)
	s.mu.Unlock()

	records := b.store.Counters().Records.Load()
	num("putMessageTimesTotal", records)
	num("putMessageSizeTotal", bytes)
	num("putMessageFailedTimes", b.counters.sendsFailed.Load()+b.counters.sendsRefused.Load())
	if records > 0 {
		t["putMessageAverageSize"] = strconv.FormatFloat(float64(bytes)/float64(records), 'f', -1, 64)
	} else {
		t["putMessageAverageSize"] = "0.0"
	}
	num("bootTimestamp", b.booted.UnixMilli())
	up := now.Sub(b.booted)
	t["runtime"] = fmt.Sprintf("[ %d days, %d hours, %d minutes, %d seconds ]", int(up.Hours())/24, int(up.Hours())%24, int(up.Minutes())%60, int(up.Seconds())%60)
	t["brokerVersionDesc"], t["brokerVersion"] = "V5_3_3", strconv.Itoa(protocol.Version)
	t["brokerActive"] = strconv.FormatBool(b.Health() == nil)
	num("startAcceptSendRequestTimeStamp", 0)
	num("commitLogMinOffset", b.store.MinPhysical())
	num("commitLogMaxOffset", b.store.MaxPhysical())
	num("dispatchBehindBytes", 0) // a message is dispatched before its send is answered
	num("pageCacheLockTimeMills", 0)
	t["remainHowManyDataToFlush"] = "0 B"
	num("earliestMessageTimeStamp", b.earliestTime())
	if total, free, err := b.o.Store.FS.Usage(b.store.LogDir()); err == nil && total > 0 {
		ratio := strconv.FormatFloat(1-float64(free)/float64(total), 'f', 2, 64)
		t["commitLogDiskRatio"], t["consumeQueueDiskRatio"], t["commitLogDiskRatio_"+b.store.LogDir()] = ratio, ratio, ratio
		t["commitLogDirCapacity"] = fmt.Sprintf("Total : %.1f GiB, Free : %.1f GiB.", float64(total)/(1<<30), float64(free)/(1<<30))
	}
	for level, at := range b.delayed.Offsets() {
		t[fmt.Sprintf("scheduleMessageOffset_%d", level)] = fmt.Sprintf("%d,%d", at, b.store.MaxOffset(message.ScheduleTopic, int32(level-1)))
	}
	for _, pool := range []string{"send", "pull", "ack", "litePull", "query"} {
		num(pool+"ThreadPoolQueueSize", 0)
		num(pool+"ThreadPoolQueueCapacity", 0)
		num(pool+"ThreadPoolQueueHeadWaitTimeMills", 0)
	}
	num("EndTransactionQueueSize", 0)
	num("EndTransactionThreadPoolQueueCapacity", 0)
	for _, k := range []string{"timerReadBehind", "timerOffsetBehind", "timerCongestNum"} {
		num(k, 0)
	}
	t["timerEnqueueTps"], t["timerDequeueTps"] = "0.0", "0.0"
	return withBody(nil, protocol.KVTable{Table: t})
}

func (b *Broker) earliestTime() int64 {
	rec, release, err := b.store.Record(b.store.MinPhysical())
	if err != nil {
		return -1
	}
	defer release()
	return storeTimeOf(rec)
}

// brokerConfig handles GET_BROKER_CONFIG (26).
func (b *Broker) brokerConfig(_ *remoting.Conn, _ *remoting.Command) (*remoting.Response, error) {
	return &remoting.Response{Header: &protocol.BrokerConfigResponse{Version: `{"counter":0,"stateVersion":0,"timestamp":` + strconv.FormatInt(b.booted.UnixMilli(), 10) + `}`},
		Body: []byte(b.o.Settings())}, nil
}

// updateBrokerConfig handles UPDATE_BROKER_CONFIG (25). Settings of this broker come from its own file, flags and
// environment; over the wire none of them may change.
func (b *Broker) updateBrokerConfig(_ *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	keys := []string{}
	for _, line := range strings.Split(string(req.Body), "\n") {
		if k, _, ok := strings.Cut(line, "="); ok {
			keys = append(keys, strings.TrimSpace(k))
		}
	}
	return nil, refuse(protocol.NoPermission, "Can not update config in black list. settings don't change over the wire here: set %s in the broker's file and start it again", strings.Join(keys, ", "))
}

// cleanNow handles CLEAN_EXPIRED_CONSUMEQUEUE (306) and DELETE_EXPIRED_COMMITLOG (329).
func (b *Broker) cleanNow(_ *remoting.Conn, _ *remoting.Command) (*remoting.Response, error) {
	if _, err := b.clean(true); err != nil {
		return nil, err
	}
	return &remoting.Response{}, nil
}

// clean deletes expired files of the store, by the clock and the disk's use, or because an admin says so.
func (b *Broker) clean(now bool) (int, error) {
	at := b.now()
	total, free, err := b.o.Store.FS.Usage(b.store.LogDir())
	if err != nil {
		return 0, err
	}
	used := 0
	if total > 0 {
		used = int((100*(total-free) + total - 1) / total) // rounded up, as Java's
	}
	defer b.logUnread()
	return b.store.Clean(store.CleanPolicy{Keep: b.o.Clean.Keep, Hour: now || isHour(b.o.Clean.When, at.Hour()), UsedRatio: used,
		CleanRatio: b.o.Clean.CleanRatio, ForceRatio: b.o.Clean.ForceRatio, ForceClean: b.o.Clean.Force, MaxFiles: 10,
		RefuseRatio: b.o.Clean.RefuseRatio}, at)
}

// isHour reports whether an hour is in deleteWhen, "04" or "04;16".
func isHour(when string, hour int) bool {
	for _, h := range strings.Split(when, ";") {
		if n, err := strconv.Atoi(strings.TrimSpace(h)); err == nil && n == hour {
			return true
		}
	}
	return false
}

// Figure is one number for the metrics page.
type Figure struct {
	Name, Help string
	Value      float64
	Counter    bool
	Labels     map[string]string
}

// NetStats returns the numbers of the broker's connections.
func (b *Broker) NetStats() *remoting.Stats { return &b.netStats }

// Figures returns the broker's numbers, but for those of its connections.
func (b *Broker) Figures() []Figure {
	b.clients.mu.RLock()
	groups, members := b.clients.reg.Size()
	b.clients.mu.RUnlock()
	b.stats.mu.Lock()
	puts, gets := b.stats.putTotal, b.stats.getTotal
	b.stats.mu.Unlock()
	c := b.store.Counters()
	return append(b.unread.figures(), []Figure{
		{Name: "apogee_messages_in_total", Help: "messages stored for producers", Value: float64(puts), Counter: true},
		{Name: "apogee_messages_out_total", Help: "messages handed to consumers", Value: float64(gets), Counter: true},
		{Name: "apogee_store_bytes_total", Help: "bytes of records stored", Value: float64(c.Bytes.Load()), Counter: true},
		{Name: "apogee_store_batches_total", Help: "batches written to the commit log", Value: float64(c.Batches.Load()), Counter: true},
		{Name: "apogee_store_flushes_total", Help: "flushes of the commit log", Value: float64(c.Flushes.Load()), Counter: true},
		{Name: "apogee_sends_refused_total", Help: "sends refused", Value: float64(b.counters.sendsRefused.Load()), Counter: true},
		{Name: "apogee_sends_failed_total", Help: "sends that the store failed", Value: float64(b.counters.sendsFailed.Load()), Counter: true},
		{Name: "apogee_pulls_refused_total", Help: "pulls refused", Value: float64(b.counters.pullsRefused.Load()), Counter: true},
		{Name: "apogee_dead_letters_total", Help: "messages put on dead-letter queues", Value: float64(b.counters.deadLetters.Load()), Counter: true},
		{Name: "apogee_fenced_commits_total", Help: "commits of former lock owners passed over", Value: float64(b.counters.fencedCommits.Load()), Counter: true},
		{Name: "apogee_backward_commits_total", Help: "commits below the committed offset", Value: float64(b.counters.backwardCommits.Load()), Counter: true},
		{Name: "apogee_parked_pulls", Help: "pulls that wait for a message", Value: float64(b.parked.Len())},
		{Name: "apogee_consumer_groups", Help: "consumer groups with members", Value: float64(groups)},
		{Name: "apogee_consumers", Help: "members of consumer groups", Value: float64(members)},
	}...)
}
