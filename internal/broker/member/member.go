// Package member knows who is connected: the producers and consumers of each group, their subscriptions, and the
// queue locks of ordered consumption, which live and die with their members.
//
// It is pure: every method takes the time and returns what is to be done; the caller serialises and does it.
//
// # How a member with locks goes
//
//   - It says so (Unregister, Unlock). Its last commits may still be on their way on the same connection, behind the
//     goodbye even (Java sends them from another thread): its locks settle for a moment, until they are in or the
//     connection ends. Then locks go, then the others are told, so that their next attempt succeeds.
//   - Its connection ends without a word. It may be alive, behind a network device that cut the connection: an
//     Apache client is back after about 3 s. It stays a member, locks included, for Grace. Back within it under its
//     client id: nothing has happened. Clients come back with a pull, which carries no client id; that one belongs
//     to the member in grace which holds the pulled queue's lock and has the same address.
//   - Its host vanishes: keepalive ends the connection, then as above.
//
// While a member holds a queue's lock, a commit for that queue from another member's connection, or from an
// unknown connection at the address of a former owner that was lost, doesn't count.
package member

import (
	"net/netip"
	"sort"
	"time"

	"github.com/apogeemq/apogee/internal/broker/lock"
	"github.com/apogeemq/apogee/internal/filter"
	"github.com/apogeemq/apogee/internal/protocol"
)

// Conn names a connection.
type Conn struct {
	ID uint64
	IP netip.Addr
}

// Options are the registry's times.
type Options struct {
	Lease          time.Duration // of queue locks; default 60 s
	Settle         time.Duration // of locks that are let go; default 200 ms
	Grace          time.Duration // lockReleaseGraceMillis; default 4 s
	PromisedGrace  time.Duration // of clients that stop work when their connection is lost; default 1 s
	Expiry         time.Duration // without a heartbeat; default 120 s
	FormerOwnerFor time.Duration // how long a lost owner is remembered; default 10 min
}

// Notice is one NOTIFY_CONSUMER_IDS_CHANGED (40) to be sent.
type Notice struct {
	Conn  uint64
	Group string
}

// Registry holds all members. The caller serialises.
type Registry struct {
	o       Options
	locks   *lock.Table
	groups  map[string]*group
	conns   map[uint64]map[string]bool // connection → groups (consumers' and producers') it is bound in
	formers map[formerKey]former
	grace   int // members in grace

	producers map[string]map[uint64]*producer
}

type group struct {
	name         string
	members      map[string]*member // by client id
	bound        map[uint64]string  // connection → client id; stays until the connection ends
	consumeType  string
	model        string
	fromWhere    string
	subs         map[string]*Subscription
	fingerprint  int32
	fingerprints bool // fingerprint is set
	quiet        bool // no notices: broadcasting, or switched off for the group
}

type member struct {
	client   string
	conn     Conn
	language protocol.Language
	version  int32
	seen     time.Time
	promised bool
	lost     time.Time // zero, or when its connection ended: it is in grace
	leaving  bool      // said goodbye, its locks settle
}

type producer struct {
	client   string
	conn     Conn
	language protocol.Language
	version  int32
	seen     time.Time
}

type formerKey struct {
	group, topic string
	queue        int32
}

type former struct {
	client string
	ip     netip.Addr
	until  time.Time
}

// Subscription is one group's subscription of one topic.
type Subscription struct {
	Data      protocol.SubscriptionData
	Filter    *filter.Tags // nil: everything
	FilterErr error        // the expression can't be served
}

// New returns an empty registry.
func New(o Options) *Registry {
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Lease, 60*time.Second)
	def(&o.Settle, 200*time.Millisecond)
	def(&o.Grace, 4*time.Second)
	def(&o.PromisedGrace, time.Second)
	def(&o.Expiry, 120*time.Second)
	def(&o.FormerOwnerFor, 10*time.Minute)
	return &Registry{o: o, locks: lock.NewTable(o.Lease, o.Settle), groups: map[string]*group{}, conns: map[uint64]map[string]bool{},
		formers: map[formerKey]former{}, producers: map[string]map[uint64]*producer{}}
}

// Client is what a heartbeat says of its sender.
type Client struct {
	ID       string
	Language protocol.Language
	Version  int32
	Promised bool // it stops work when its connection is lost
}

// Consumer is one consumer group of a heartbeat.
type Consumer struct {
	Data  protocol.ConsumerData
	Quiet bool // notices are switched off for the group
}

// Heartbeat takes one consumer group of a heartbeat. withoutSub leaves subscriptions as they are; fingerprint is
// heartbeat V2's, 0 for none. changed is the answer's IS_SUB_CHANGE.
func (r *Registry) Heartbeat(c Conn, who Client, cons Consumer, fingerprint int32, withoutSub bool, now time.Time) (notices []Notice, changed bool) {
	d := cons.Data
	g := r.groups[d.GroupName]
	if g == nil {
		g = &group{name: d.GroupName, members: map[string]*member{}, bound: map[uint64]string{}, subs: map[string]*Subscription{}}
		r.groups[d.GroupName] = g
	}
	g.consumeType, g.model, g.fromWhere = d.ConsumeType, d.MessageModel, d.ConsumeFromWhere
	g.quiet = cons.Quiet || d.MessageModel == "BROADCASTING"
	m := g.members[who.ID]
	joined := m == nil || m.leaving
	if m == nil {
		m = &member{client: who.ID}
		g.members[who.ID] = m
	}
	r.bind(g, m, c)
	m.language, m.version, m.promised, m.seen, m.leaving = who.Language, who.Version, who.Promised, now, false
	r.forgetFormer(d.GroupName, who.ID)

	subsChanged := false
	if !withoutSub {
		subsChanged = g.subscribe(d.SubscriptionDataSet)
	}
	changed = true
	if fingerprint != 0 {
		changed = g.fingerprints && g.fingerprint != fingerprint
		g.fingerprint, g.fingerprints = fingerprint, true
	}
	if joined || subsChanged {
		notices = g.notify(nil, "")
	}
	return notices, changed
}

// bind makes c the connection of m. If it was in grace, that is over and nothing has happened.
func (r *Registry) bind(g *group, m *member, c Conn) {
	if old, ok := g.bound[c.ID]; ok && old != m.client {
		// Another client id on the same connection: the old one is gone with it (Java replaces it, too).
		if o := g.members[old]; o != nil && o.conn.ID == c.ID {
			r.remove(g, o)
		}
	}
	if !m.lost.IsZero() {
		m.lost = time.Time{}
		r.grace--
	}
	m.conn = c
	g.bound[c.ID] = m.client
	r.attach(c.ID, g.name)
}

func (r *Registry) attach(conn uint64, group string) {
	if r.conns[conn] == nil {
		r.conns[conn] = map[string]bool{}
	}
	r.conns[conn][group] = true
}

// remove takes m out of the group with its locks.
func (r *Registry) remove(g *group, m *member) {
	if !m.lost.IsZero() {
		r.grace--
	}
	r.locks.Drop(g.name, m.client)
	delete(g.members, m.client)
	r.prune(g)
}

func (r *Registry) prune(g *group) {
	if len(g.members) == 0 && len(g.bound) == 0 {
		delete(r.groups, g.name)
	}
}

func (r *Registry) forgetFormer(group, client string) {
	for k, f := range r.formers {
		if k.group == group && f.client == client {
			delete(r.formers, k)
		}
	}
}

// subscribe takes a heartbeat's subscriptions: a newer version replaces, and what isn't among them goes, for the
// whole group. It reports whether topics came or went.
func (g *group) subscribe(list []protocol.SubscriptionData) (changed bool) {
	named := map[string]bool{}
	for _, d := range list {
		named[d.Topic] = true
		old := g.subs[d.Topic]
		if old != nil && old.Data.SubVersion >= d.SubVersion {
			continue
		}
		changed = changed || old == nil
		s := &Subscription{Data: d}
		s.Filter, s.FilterErr = filter.Compile(d.ExpressionType, d.SubString)
		g.subs[d.Topic] = s
	}
	for topic := range g.subs {
		if !named[topic] {
			delete(g.subs, topic)
			changed = true
		}
	}
	return changed
}

// notify adds a notice for every connected member but one.
func (g *group) notify(notices []Notice, except string) []Notice {
	if g.quiet {
		return notices
	}
	for _, m := range g.members {
		if m.client != except && m.lost.IsZero() && !m.leaving {
			notices = append(notices, Notice{m.conn.ID, g.name})
		}
	}
	return notices
}

// Unregister takes a goodbye (35) for a consumer group.
func (r *Registry) Unregister(c Conn, client, groupName string, now time.Time) []Notice {
	g := r.groups[groupName]
	if g == nil {
		return nil
	}
	m := g.members[client]
	if m == nil || m.leaving {
		return nil
	}
	r.forgetFormer(groupName, client)
	if r.locks.UnlockAll(groupName, client, now) {
		r.bind(g, m, c)
		m.leaving = true
		return nil // Tick, a commit or the connection's end does the rest
	}
	r.remove(g, m)
	return g.notify(nil, client)
}

// UnregisterProducer takes a goodbye for a producer group.
func (r *Registry) UnregisterProducer(client, groupName string) {
	for id, p := range r.producers[groupName] {
		if p.client == client {
			delete(r.producers[groupName], id)
		}
	}
	if len(r.producers[groupName]) == 0 {
		delete(r.producers, groupName)
	}
}

// Closed takes the end of a connection.
func (r *Registry) Closed(conn uint64, now time.Time) (notices []Notice) {
	for name := range r.conns[conn] {
		if ps := r.producers[name]; ps != nil {
			if delete(ps, conn); len(ps) == 0 {
				delete(r.producers, name)
			}
		}
		g := r.groups[name]
		if g == nil {
			continue
		}
		client, ok := g.bound[conn]
		delete(g.bound, conn)
		m := g.members[client]
		switch {
		case !ok || m == nil || m.conn.ID != conn || !m.lost.IsZero():
		case m.leaving:
			notices = r.finish(g, m, notices)
		case g.model == "CLUSTERING" && r.locks.Held(name, client, now):
			m.lost = now
			r.grace++
			continue
		default:
			r.remove(g, m)
			notices = g.notify(notices, client)
		}
		r.prune(g)
	}
	delete(r.conns, conn)
	return notices
}

// finish ends a goodbye: locks go, the member goes, the others are told.
func (r *Registry) finish(g *group, m *member, notices []Notice) []Notice {
	r.remove(g, m)
	return g.notify(notices, m.client)
}

// Lock takes LOCK_BATCH_MQ (41): it returns the queues that the client holds now.
func (r *Registry) Lock(c Conn, groupName, client string, queues []lock.Queue, now time.Time) []lock.Queue {
	r.named(c, groupName, client, now)
	return r.locks.Lock(groupName, client, queues, now)
}

// Unlock takes UNLOCK_BATCH_MQ (42). Only the owner's connection unlocks: a former owner frees nothing.
func (r *Registry) Unlock(c Conn, groupName, client string, queues []lock.Queue, now time.Time) {
	r.named(c, groupName, client, now)
	r.locks.Unlock(groupName, client, queues, now)
}

// named takes a request that names its client: a member in grace is back.
func (r *Registry) named(c Conn, groupName, client string, now time.Time) {
	g := r.groups[groupName]
	if g == nil {
		return
	}
	if m := g.members[client]; m != nil && !m.lost.IsZero() {
		r.bind(g, m, c)
		m.seen = now
	}
}

// Saw takes a pull, commit or offset query: on an unknown connection it may be the return of a member in grace.
func (r *Registry) Saw(c Conn, groupName, topic string, queue int32, now time.Time) {
	if r.grace == 0 {
		return
	}
	g := r.groups[groupName]
	if g == nil {
		return
	}
	if _, known := g.bound[c.ID]; known {
		return
	}
	owner, ok := r.locks.Owner(groupName, topic, queue, now)
	if !ok {
		return
	}
	if m := g.members[owner]; m != nil && !m.lost.IsZero() && m.conn.IP == c.IP {
		r.bind(g, m, c)
		m.seen = now
	}
}

// InGrace reports whether any member is in grace: only then Saw does anything.
func (r *Registry) InGrace() bool { return r.grace > 0 }

// MayCommit reports whether a commit through c moves the queue's offset.
func (r *Registry) MayCommit(c Conn, groupName, topic string, queue int32, now time.Time) bool {
	owner, ok := r.locks.Owner(groupName, topic, queue, now)
	if !ok {
		return true
	}
	if g := r.groups[groupName]; g != nil {
		if client, known := g.bound[c.ID]; known {
			return client == owner
		}
	}
	f, was := r.formers[formerKey{groupName, topic, queue}]
	return !(was && now.Before(f.until) && f.client != owner && f.ip == c.IP)
}

// Committed takes a commit that counted: what its sender is letting go of may be free now.
func (r *Registry) Committed(c Conn, groupName, topic string, queue int32, now time.Time) []Notice {
	if !r.locks.HasGroup(groupName) {
		return nil
	}
	g := r.groups[groupName]
	if g == nil {
		return nil
	}
	client, known := g.bound[c.ID]
	if !known || !r.locks.Committed(groupName, client, topic, queue) {
		return nil
	}
	return r.settle(groupName, client, now)
}

// settle ends a client's letting go in a group.
func (r *Registry) settle(groupName, client string, now time.Time) []Notice {
	r.locks.DropSettled(groupName, client, now)
	g := r.groups[groupName]
	if g == nil {
		return nil
	}
	if m := g.members[client]; m != nil && m.leaving {
		return r.finish(g, m, nil)
	}
	return g.notify(nil, client)
}

// Tick does what is due.
func (r *Registry) Tick(now time.Time) (notices []Notice) {
	type pair struct{ group, client string }
	var due []pair
	r.locks.Settling(func(group, client string, until time.Time) {
		if !now.Before(until) {
			due = append(due, pair{group, client})
		}
	})
	for _, p := range due {
		notices = append(notices, r.settle(p.group, p.client, now)...)
	}
	for _, g := range r.groups {
		for _, m := range g.members {
			switch {
			case !m.lost.IsZero() && !now.Before(m.lost.Add(r.graceOf(m))):
				for _, q := range r.locks.Drop(g.name, m.client) {
					r.formers[formerKey{g.name, q.Topic, q.ID}] = former{m.client, m.conn.IP, now.Add(r.o.FormerOwnerFor)}
				}
				r.remove(g, m)
				notices = g.notify(notices, m.client)
			case m.lost.IsZero() && now.Sub(m.seen) >= r.o.Expiry:
				r.remove(g, m)
				notices = g.notify(notices, m.client)
			}
		}
	}
	for _, ps := range r.producers {
		for id, p := range ps {
			if now.Sub(p.seen) >= r.o.Expiry {
				delete(ps, id)
			}
		}
	}
	for k, f := range r.formers {
		if !now.Before(f.until) {
			delete(r.formers, k)
		}
	}
	r.locks.Expire(now)
	return notices
}

func (r *Registry) graceOf(m *member) time.Duration {
	if m.promised {
		return r.o.PromisedGrace
	}
	return r.o.Grace
}

// scan is how often expiry is looked at when nothing nearer is due (Java scans every 10 s).
const scan = 10 * time.Second

// NextDeadline returns when Tick has something to do at the latest.
func (r *Registry) NextDeadline(now time.Time) time.Time {
	next := now.Add(scan)
	nearer := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	r.locks.Settling(func(_, _ string, until time.Time) { nearer(until) })
	if r.grace > 0 {
		for _, g := range r.groups {
			for _, m := range g.members {
				if !m.lost.IsZero() {
					nearer(m.lost.Add(r.graceOf(m)))
				}
			}
		}
	}
	return next
}

// Urgent reports whether something is due before the next scan: the owner must look at NextDeadline again.
func (r *Registry) Urgent() bool { return r.grace > 0 || !r.locks.Empty() }

// Producer takes one producer group of a heartbeat.
func (r *Registry) Producer(c Conn, who Client, groupName string, now time.Time) {
	ps := r.producers[groupName]
	if ps == nil {
		ps = map[uint64]*producer{}
		r.producers[groupName] = ps
	}
	ps[c.ID] = &producer{who.ID, c, who.Language, who.Version, now}
	r.attach(c.ID, groupName)
}

// IDs returns the client ids of a group, sorted.
func (r *Registry) IDs(groupName string) []string {
	g := r.groups[groupName]
	if g == nil {
		return nil
	}
	var out []string
	for id, m := range g.members {
		if !m.leaving {
			out = append(out, id)
		}
	}
	sort.Strings(out)
	return out
}

// HoldsLock reports whether any member of the group holds a queue lock.
func (r *Registry) HoldsLock(groupName string, now time.Time) bool {
	return r.locks.Any(groupName, now)
}

// Owner returns who holds a queue's lock.
func (r *Registry) Owner(groupName, topic string, queue int32, now time.Time) (string, bool) {
	return r.locks.Owner(groupName, topic, queue, now)
}

// Info is what admins ask of a consumer group.
type Info struct {
	ConsumeType, Model, FromWhere string
	Members                       []Peer
	Subscriptions                 map[string]protocol.SubscriptionData
}

// Peer is one connected client.
type Peer struct {
	Client   string
	Conn     Conn
	Language protocol.Language
	Version  int32
	Seen     time.Time
}

// Group returns what is known of a consumer group, and whether it has members.
func (r *Registry) Group(groupName string) (Info, bool) {
	g := r.groups[groupName]
	if g == nil || len(g.members) == 0 {
		return Info{}, false
	}
	i := Info{ConsumeType: g.consumeType, Model: g.model, FromWhere: g.fromWhere, Subscriptions: map[string]protocol.SubscriptionData{}}
	for _, m := range g.members {
		if !m.leaving {
			i.Members = append(i.Members, Peer{m.client, m.conn, m.language, m.version, m.seen})
		}
	}
	sort.Slice(i.Members, func(a, b int) bool { return i.Members[a].Client < i.Members[b].Client })
	for t, s := range g.subs {
		i.Subscriptions[t] = s.Data
	}
	return i, len(i.Members) > 0
}

// Subscription returns a group's subscription of a topic. online says whether the group has members.
func (r *Registry) Subscription(groupName []byte, topic []byte) (s *Subscription, broadcasting, online bool) {
	g := r.groups[string(groupName)]
	if g == nil || len(g.members) == 0 {
		return nil, false, false
	}
	return g.subs[string(topic)], g.model == "BROADCASTING", true
}

// Subscribers returns the groups with members that subscribe the topic, sorted.
func (r *Registry) Subscribers(topic string) []string {
	var out []string
	for name, g := range r.groups {
		if g.subs[topic] != nil && len(g.members) > 0 {
			out = append(out, name)
		}
	}
	sort.Strings(out)
	return out
}

// Producers returns the producers of a group; of all groups for "".
func (r *Registry) Producers(groupName string) map[string][]Peer {
	out := map[string][]Peer{}
	for name, ps := range r.producers {
		if groupName != "" && name != groupName {
			continue
		}
		for _, p := range ps {
			out[name] = append(out[name], Peer{p.client, p.conn, p.language, p.version, p.seen})
		}
	}
	return out
}

// Size returns how many consumer groups have members, and how many members there are.
func (r *Registry) Size() (groups, members int) {
	for _, g := range r.groups {
		if len(g.members) > 0 {
			groups++
			members += len(g.members)
		}
	}
	return groups, members
}
