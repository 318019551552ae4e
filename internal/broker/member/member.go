// Package member knows who is connected: the producers and consumers of each group, their subscriptions, and the
// queue locks of ordered consumption, which live and die with their members.
//
// It is pure: every method takes the time and returns what is to be done; the caller serialises and does it.
//
// # How a member with locks goes
//
//   - It says so (Unregister, Unlock). Its last commits may still be on their way on the same connection, behind the
//     goodbye even (Java sends them from another thread): its locks settle for a moment, until they are in or the
//     connection ends. Then locks go, then the others are told, so that their next attempt succeeds. An owner that
//     unlocks everything is about to say goodbye: the others are told once, then.
//   - Its connection ends without a word. It may be alive, behind a network device that cut the connection: an
//     Apache client is back after about 3 s. It stays a member, locks included, for Grace. Back within it under its
//     client id: nothing has happened, but that it is told of changes which it missed. Clients come back with a
//     pull, which carries no client id; that one belongs to the member in grace which holds the pulled queue's lock
//     and has the same address. Only one end of a connection may know that it is cut: the client may be back before
//     the old connection ends, and is recognised in the same way.
//   - Its host vanishes: keepalive ends the connection, then as above.
//
// While a member holds a queue's lock, a commit for that queue from another member's connection, or from an
// unknown connection at the address of a former owner that was lost, doesn't count.
//
// A client that locks without ever having sent a heartbeat (a proxy locks for its own clients) is no member: its
// locks are leases only, as all are in Java.
package member

import (
	"cmp"
	"net/netip"
	"slices"
	"sort"
	"time"

	"github.com/apogeemq/apogee/internal/broker/lock"
	"github.com/apogeemq/apogee/internal/filter"
	"github.com/apogeemq/apogee/internal/protocol"
)

// Conn names a connection. Ids are never used again, and a connection that opened later has a greater one.
type Conn struct {
	ID uint64
	IP netip.Addr
}

func (c Conn) sameHost(o Conn) bool { return c.IP.Unmap() == o.IP.Unmap() }

// Options are the registry's times.
type Options struct {
	Lease          time.Duration // of queue locks; default 60 s
	Settle         time.Duration // of locks that are let go; default 200 ms
	Grace          time.Duration // lockReleaseGraceMillis; default 4 s
	PromisedGrace  time.Duration // of clients that stop work when their connection is lost; default 1 s
	Expiry         time.Duration // without a heartbeat; default 120 s
	FormerOwnerFor time.Duration // how long a lost owner is remembered; default 10 min
	MaxLocks       int           // of all groups together; default 500,000
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
	conns   map[uint64]map[string]bool // open connection → groups (consumers' and producers') it is bound in
	formers map[string]map[queueKey][]former
	grace   map[*member]*group // members whose connection ended without a word
	scanned time.Time          // when expiry was last looked at

	producers map[string]map[uint64]*producer
}

type group struct {
	name         string
	members      map[string]*member // by client id
	bound        map[uint64]binding // connection → client; stays until the connection ends
	consumeType  string
	model        string
	fromWhere    string
	subs         map[string]*Subscription
	fingerprint  int32
	fingerprints bool // fingerprint is set
	quiet        bool // no notices: broadcasting, or switched off for the group
}

// binding says whose a connection is in a group.
type binding struct {
	client  string
	guessed bool // from what it pulls, not from what it says
	bye     bool // it said goodbye and nothing since
}

type member struct {
	client   string
	conn     Conn
	also     []Conn // other open connections of the client, oldest first, at most maxAlso
	language protocol.Language
	version  int32
	seen     time.Time
	promised bool
	lost     time.Time // zero, or when its connection ended: it is in grace
	missed   bool      // a notice wasn't sent for want of a connection
	leaving  bool      // said goodbye, its locks settle
}

const maxAlso = 8

type producer struct {
	client   string
	conn     Conn
	language protocol.Language
	version  int32
	seen     time.Time
}

type queueKey struct {
	topic string
	queue int32
}

// former is an owner that lost a queue's lock because its connection did not come back.
type former struct {
	client string
	conn   Conn
	lost   time.Time
}

// maxFormers bounds how many former owners of a queue are remembered: the newest ones.
const maxFormers = 4

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
	if o.MaxLocks == 0 {
		o.MaxLocks = 500_000
	}
	locks := lock.NewTable(o.Lease, o.Settle)
	locks.Max = o.MaxLocks
	return &Registry{o: o, locks: locks, groups: map[string]*group{}, conns: map[uint64]map[string]bool{},
		formers: map[string]map[queueKey][]former{}, grace: map[*member]*group{}, producers: map[string]map[uint64]*producer{}}
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

// Opened takes a new connection. What comes through a connection that isn't open counts for nothing: a request may
// be in work while its connection ends, and must not make members that nothing ends any more.
func (r *Registry) Opened(conn uint64) { r.conns[conn] = map[string]bool{} }

func (r *Registry) open(c Conn) bool { return r.conns[c.ID] != nil }

// Heartbeat takes one consumer group of a heartbeat. withoutSub leaves subscriptions as they are; fingerprint is
// heartbeat V2's, 0 for none. changed is the answer's IS_SUB_CHANGE: the sender is to send its subscriptions. That
// is what a group without a fingerprint answers to a heartbeat without subscriptions; Java says no, so that a
// broker which was started again never learns them.
func (r *Registry) Heartbeat(c Conn, who Client, cons Consumer, fingerprint int32, withoutSub bool, now time.Time) (notices []Notice, changed bool) {
	if !r.open(c) {
		return nil, true
	}
	d := cons.Data
	g := r.groups[d.GroupName]
	if g == nil {
		g = &group{name: d.GroupName, members: map[string]*member{}, bound: map[uint64]binding{}, subs: map[string]*Subscription{}}
		r.groups[d.GroupName] = g
	}
	g.consumeType, g.model, g.fromWhere = d.ConsumeType, d.MessageModel, d.ConsumeFromWhere
	g.quiet = cons.Quiet || d.MessageModel == modelBroadcasting
	m := g.members[who.ID]
	joined := m == nil || m.leaving
	if m == nil {
		m = &member{client: who.ID, conn: c}
		g.members[who.ID] = m
	}
	notices = r.bind(g, m, c, now)
	m.language, m.version, m.promised, m.leaving = who.Language, who.Version, who.Promised, false
	r.forgetFormer(d.GroupName, who.ID)

	subsChanged := false
	if !withoutSub {
		subsChanged = g.subscribe(d.SubscriptionDataSet)
	}
	changed = true
	if fingerprint != 0 {
		changed = withoutSub
		if g.fingerprints {
			changed = g.fingerprint != fingerprint
		}
		g.fingerprint, g.fingerprints = fingerprint, true
	}
	if joined || subsChanged {
		notices = g.notify(notices[:0], "")
	}
	return notices, changed
}

// bind makes c the connection of m, which said so itself. If m was in grace, that is over and nothing has
// happened; the notice that it missed, if any, is returned.
func (r *Registry) bind(g *group, m *member, c Conn, now time.Time) []Notice {
	old, known := g.bound[c.ID]
	g.bound[c.ID] = binding{client: m.client}
	notices := r.connect(g, m, c, now)
	o := g.members[old.client]
	if !known || o == nil || o == m {
		return notices
	}
	o.also = without(o.also, c.ID)
	switch {
	case o.conn.ID != c.ID:
		return notices
	case old.guessed: // and guessed wrong
		return append(notices, r.disconnect(g, o, now)...)
	default: // another client id on the same connection: the old one is gone with it (Java replaces it, too)
		return r.finish(g, o, notices)
	}
}

// connect makes c the connection of m.
func (r *Registry) connect(g *group, m *member, c Conn, now time.Time) (notices []Notice) {
	r.conns[c.ID][g.name] = true
	if m.lost.IsZero() && m.conn.ID != c.ID {
		m.addLink(m.conn)
	}
	m.also = without(m.also, c.ID)
	m.conn, m.seen = c, now
	if !m.lost.IsZero() {
		m.lost = time.Time{}
		delete(r.grace, m)
	}
	if m.missed {
		m.missed = false
		if !g.quiet {
			notices = append(notices, Notice{c.ID, g.name})
		}
	}
	return notices
}

// addLink notes another open connection of m's.
func (m *member) addLink(c Conn) {
	m.also = append(without(m.also, c.ID), c)
	if len(m.also) > maxAlso {
		m.also = slices.Delete(m.also, 0, 1)
	}
}

func without(list []Conn, id uint64) []Conn {
	return slices.DeleteFunc(list, func(c Conn) bool { return c.ID == id })
}

// remove takes m out of the group with its locks.
func (r *Registry) remove(g *group, m *member) {
	delete(r.grace, m)
	r.locks.Drop(g.name, m.client)
	delete(g.members, m.client)
	if len(g.members) == 0 {
		clear(g.subs)
		g.fingerprints = false
	}
	r.prune(g)
}

func (r *Registry) prune(g *group) {
	if len(g.members) == 0 && len(g.bound) == 0 {
		delete(r.groups, g.name)
	}
}

func (r *Registry) forgetFormer(groupName, client string) {
	r.forgetFormers(groupName, func(f former) bool { return f.client == client })
}

func (r *Registry) forgetFormers(groupName string, which func(former) bool) {
	queues := r.formers[groupName]
	for k, list := range queues {
		if list = slices.DeleteFunc(list, which); len(list) == 0 {
			delete(queues, k)
		} else {
			queues[k] = list
		}
	}
	if len(queues) == 0 {
		delete(r.formers, groupName)
	}
}

// wasOwner reports whether an owner of the queue, other than the one now, was lost at the address of c: it may have
// come back through it.
func (r *Registry) wasOwner(groupName, topic string, queue int32, c Conn, owner string, now time.Time) bool {
	for _, f := range r.formers[groupName][queueKey{topic, queue}] {
		if f.client != owner && f.conn.sameHost(c) && now.Sub(f.lost) < r.o.FormerOwnerFor {
			return true
		}
	}
	return false
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
		switch {
		case m.client == except || m.leaving:
		case !m.lost.IsZero():
			m.missed = true
		default:
			notices = append(notices, Notice{m.conn.ID, g.name})
		}
	}
	return notices
}

// Unregister takes a goodbye (35) for a consumer group.
func (r *Registry) Unregister(c Conn, client, groupName string, now time.Time) []Notice {
	r.forgetFormer(groupName, client)
	g := r.groups[groupName]
	if g == nil || !r.open(c) {
		return nil
	}
	m := g.members[client]
	if m == nil || m.leaving {
		return nil
	}
	if g.model == modelBroadcasting && m.unlink(c.ID) {
		delete(g.bound, c.ID)
		return nil // processes on one host share a client id
	}
	if r.locks.UnlockAll(groupName, client, now) {
		r.bind(g, m, c, now)
		g.bound[c.ID] = binding{client: client, bye: true}
		m.leaving = true
		return nil // Tick, a commit or the connection's end does the rest
	}
	if b, ok := g.bound[c.ID]; ok && b.client == client {
		b.bye = true
		g.bound[c.ID] = b
	}
	r.remove(g, m)
	return g.notify(nil, client)
}

// unlink takes one of several connections from m; it reports false when m has no other.
func (m *member) unlink(conn uint64) bool {
	n := len(m.also)
	if n == 0 || !m.lost.IsZero() {
		return false
	}
	if m.conn.ID == conn {
		m.conn, m.also = m.also[n-1], m.also[:n-1]
		return true
	}
	m.also = without(m.also, conn)
	return len(m.also) < n
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
		b, ok := g.bound[conn]
		delete(g.bound, conn)
		if m := g.members[b.client]; ok && m != nil && m.lost.IsZero() {
			if m.conn.ID == conn {
				notices = append(notices, r.disconnect(g, m, now)...)
			} else {
				m.also = without(m.also, conn)
			}
		}
		r.prune(g)
	}
	delete(r.conns, conn)
	return notices
}

// disconnect takes the end of m's connection. Where m is known to have another one, that is its connection now. Of
// a group whose members share out the queues only a younger one counts: an older one was given up by the client,
// and is cut without the broker's knowing as yet.
func (r *Registry) disconnect(g *group, m *member, now time.Time) []Notice {
	if len(m.also) > 0 && !m.leaving {
		next := slices.MaxFunc(m.also, func(a, b Conn) int { return cmp.Compare(a.ID, b.ID) })
		if g.model == modelBroadcasting || next.ID > m.conn.ID {
			m.conn, m.also = next, without(m.also, next.ID)
			return nil
		}
	}
	m.also = nil
	if !m.leaving && g.model != modelBroadcasting && r.locks.Held(g.name, m.client, now) {
		m.lost = now
		r.grace[m] = g
		return nil
	}
	return r.finish(g, m, nil)
}

// finish removes m: its locks go, it goes, the others are told.
func (r *Registry) finish(g *group, m *member, notices []Notice) []Notice {
	r.remove(g, m)
	return g.notify(notices, m.client)
}

// Lock takes LOCK_BATCH_MQ (41): it returns the queues that the client holds now. One that said goodbye gets none.
func (r *Registry) Lock(c Conn, groupName, client string, queues []lock.Queue, now time.Time) ([]lock.Queue, []Notice) {
	if !r.open(c) {
		return nil, nil
	}
	notices, leaving := r.named(c, groupName, client, now)
	if leaving {
		return nil, nil
	}
	return r.locks.Lock(groupName, client, queues, now), notices
}

// Unlock takes UNLOCK_BATCH_MQ (42). Only the owner unlocks: a former owner frees nothing.
func (r *Registry) Unlock(c Conn, groupName, client string, queues []lock.Queue, now time.Time) []Notice {
	if !r.open(c) {
		return nil
	}
	notices, _ := r.named(c, groupName, client, now)
	r.locks.Unlock(groupName, client, queues, now)
	return notices
}

// named takes a request that names its client. A member in grace is back. A connection that nothing is known of,
// at the member's address, is another one of the member's (clients in VIP mode lock through one that no heartbeat
// comes through). leaving says that the client said goodbye, on this connection or whichever.
func (r *Registry) named(c Conn, groupName, client string, now time.Time) (notices []Notice, leaving bool) {
	g := r.groups[groupName]
	if g == nil {
		return nil, false
	}
	b, known := g.bound[c.ID]
	m := g.members[client]
	switch {
	case m == nil:
		return nil, b.bye && b.client == client
	case m.leaving:
		return nil, true
	case !m.lost.IsZero():
		return r.bind(g, m, c, now), false
	case !known && m.conn.sameHost(c):
		r.link(g, m, c)
	}
	return nil, false
}

// link notes that c, of which nothing is known, is another connection of m's.
func (r *Registry) link(g *group, m *member, c Conn) {
	g.bound[c.ID] = binding{client: m.client, guessed: true}
	r.conns[c.ID][g.name] = true
	m.addLink(c)
}

// Unknown reports whether Saw may have something to do for the connection.
func (r *Registry) Unknown(c Conn, groupName string) bool {
	g := r.groups[groupName]
	if g == nil || !r.open(c) {
		return false
	}
	b, known := g.bound[c.ID]
	if !known {
		return true
	}
	m := g.members[b.client]
	return m != nil && !m.lost.IsZero()
}

// Saw takes a pull, commit or offset query: on an unknown connection it may be the return of a member in grace, or
// of one whose old connection hasn't ended yet.
func (r *Registry) Saw(c Conn, groupName, topic string, queue int32, now time.Time) []Notice {
	g := r.groups[groupName]
	if g == nil || !r.open(c) {
		return nil
	}
	owner, ok := r.locks.Owner(groupName, topic, queue, now)
	m := g.members[owner]
	if !ok || m == nil || m.leaving {
		return nil
	}
	if b, known := g.bound[c.ID]; known {
		if b.client == owner && !m.lost.IsZero() {
			return r.connect(g, m, c, now)
		}
		return nil
	}
	// Behind one address may also be an owner before this one, back after it was given up. While the owner now is
	// connected the doubt is against the newcomer. In its grace it is for it: taking one for the other moves an
	// offset that the owner moves again, and ends with the newcomer's heartbeat; not knowing the owner again would
	// take its queues from it.
	switch {
	case !m.conn.sameHost(c):
		return nil
	case m.lost.IsZero():
		if !r.wasOwner(groupName, topic, queue, c, owner, now) {
			r.link(g, m, c)
		}
		return nil
	}
	g.bound[c.ID] = binding{client: owner, guessed: true}
	return r.connect(g, m, c, now)
}

// InGrace reports whether any member is in grace.
func (r *Registry) InGrace() bool { return len(r.grace) > 0 }

// MayCommit reports whether a commit through c moves the queue's offset.
func (r *Registry) MayCommit(c Conn, groupName, topic string, queue int32, now time.Time) bool {
	owner, ok := r.locks.Owner(groupName, topic, queue, now)
	if !ok {
		return true
	}
	if g := r.groups[groupName]; g != nil {
		if b, known := g.bound[c.ID]; known {
			return b.client == owner || r.locks.Holds(groupName, b.client, topic, queue, now)
		}
	}
	return !r.wasOwner(groupName, topic, queue, c, owner, now)
}

// Committed takes a commit that counted: its sender may be back by it, and what it is letting go of may be free now.
func (r *Registry) Committed(c Conn, groupName, topic string, queue int32, now time.Time) []Notice {
	if !r.locks.HasGroup(groupName) {
		return nil
	}
	notices := r.Saw(c, groupName, topic, queue, now)
	g := r.groups[groupName]
	if g == nil {
		return notices
	}
	b, known := g.bound[c.ID]
	if !known || !r.locks.Committed(groupName, b.client, topic, queue) {
		return notices
	}
	m := g.members[b.client]
	if m != nil && !m.leaving && !r.locks.Held(groupName, b.client, now) {
		return notices // all is unlocked: its goodbye comes next, and tells the others; else Tick does
	}
	return append(notices, r.settle(groupName, b.client, now)...)
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
	for m, g := range r.grace {
		if !now.Before(m.lost.Add(r.graceOf(m))) {
			notices = r.release(g, m, notices)
		}
	}
	if now.Sub(r.scanned) >= scan {
		r.scanned = now
		notices = r.expire(now, notices)
	}
	return notices
}

// release ends a member's grace. What it holds is remembered, so that it can't move offsets when it comes back
// after all.
func (r *Registry) release(g *group, m *member, notices []Notice) []Notice {
	for _, q := range r.locks.Drop(g.name, m.client) {
		queues := r.formers[g.name]
		if queues == nil {
			queues = map[queueKey][]former{}
			r.formers[g.name] = queues
		}
		k := queueKey{q.Topic, q.ID}
		list := append(queues[k], former{m.client, m.conn, m.lost})
		queues[k] = list[max(0, len(list)-maxFormers):]
	}
	return r.finish(g, m, notices)
}

// expire removes who sent no heartbeat for too long, and forgets what is over.
func (r *Registry) expire(now time.Time, notices []Notice) []Notice {
	for _, g := range r.groups {
		for _, m := range g.members {
			if m.lost.IsZero() && now.Sub(m.seen) >= r.o.Expiry {
				notices = r.finish(g, m, notices)
			}
		}
	}
	for name, ps := range r.producers {
		for id, p := range ps {
			if now.Sub(p.seen) >= r.o.Expiry {
				delete(ps, id)
			}
		}
		if len(ps) == 0 {
			delete(r.producers, name)
		}
	}
	for name := range r.formers {
		r.forgetFormers(name, func(f former) bool { return now.Sub(f.lost) >= r.o.FormerOwnerFor })
	}
	for _, l := range r.locks.Expire(now) {
		// Its owner didn't renew it, perhaps gave the queue up without a word (the Go client does): whoever waits
		// for it needn't wait for its own timer.
		if g := r.groups[l.Group]; g != nil {
			notices = g.notify(notices, l.Client)
		}
	}
	return notices
}

func (r *Registry) graceOf(m *member) time.Duration {
	if m.promised {
		return r.o.PromisedGrace
	}
	return r.o.Grace
}

// scan is how often expiry is looked at (Java: 10 s, too).
const scan = 10 * time.Second

// NextDeadline returns when Tick has something to do at the latest.
func (r *Registry) NextDeadline(now time.Time) time.Time {
	next := r.scanned.Add(scan)
	if r.scanned.IsZero() {
		next = now
	}
	nearer := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	r.locks.Settling(func(_, _ string, until time.Time) { nearer(until) })
	for m := range r.grace {
		nearer(m.lost.Add(r.graceOf(m)))
	}
	return next
}

// Urgent reports whether there are locks, or members in grace: commits and pulls must be looked at.
func (r *Registry) Urgent() bool { return len(r.grace) > 0 || !r.locks.Empty() }

// Producer takes one producer group of a heartbeat.
func (r *Registry) Producer(c Conn, who Client, groupName string, now time.Time) {
	if !r.open(c) {
		return
	}
	ps := r.producers[groupName]
	if ps == nil {
		ps = map[uint64]*producer{}
		r.producers[groupName] = ps
	}
	ps[c.ID] = &producer{who.ID, c, who.Language, who.Version, now}
	r.conns[c.ID][groupName] = true
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

// modelBroadcasting is the model of groups whose members all read everything.
const modelBroadcasting = "BROADCASTING"

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
		if m.leaving {
			continue
		}
		if g.model == modelBroadcasting { // processes on one host may share a client id
			for _, c := range m.also {
				i.Members = append(i.Members, Peer{m.client, c, m.language, m.version, m.seen})
			}
		}
		i.Members = append(i.Members, Peer{m.client, m.conn, m.language, m.version, m.seen})
	}
	sort.SliceStable(i.Members, func(a, b int) bool { return i.Members[a].Client < i.Members[b].Client })
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
	return g.subs[string(topic)], g.model == modelBroadcasting, true
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
