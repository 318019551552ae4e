// Package rebalance holds the allocation strategies: who of a group's consumers reads which of a topic's queues.
//
// Every member of a group computes its own share from the same two sorted lists, so members agree only when they
// compute alike: the strategies are those of the Java client (org.apache.rocketmq.client.consumer.rebalance, 4.9.8 and
// 5.3.3, which answer alike), down to the hashes, and testdata/allocations.jsonl holds what it answers. They are pure
// values: no clock, no network, no state, safe for concurrent use. Getting the lists and acting on the shares is the
// client's.
package rebalance

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Queue is one queue of a topic on one broker.
type Queue struct {
	Topic  string
	Broker string
	ID     int32
}

// String is Java's MessageQueue.toString: the consistent hash is taken over it, so it may never change.
func (q Queue) String() string {
	return "MessageQueue [topic=" + q.Topic + ", brokerName=" + q.Broker + ", queueId=" + strconv.Itoa(int(q.ID)) + "]"
}

// Strategy decides a member's share. An implementation must be pure, and safe for concurrent use.
type Strategy interface {
	// Name is Java's name of the strategy: what a broker is asked for and what tools show.
	Name() string
	// Allocate returns the share of clientID, in the order in which Java lists it. queues must be in the order of
	// SortQueues and clients in that of SortClients; neither is changed or kept. A clientID that isn't among the
	// clients has no share. An error means that nothing can be said: the member keeps what it has and asks again.
	Allocate(group, clientID string, queues []Queue, clients []string) ([]Queue, error)
}

// Errors of Allocate.
var (
	// ErrNoClientID: the member doesn't say who it is.
	ErrNoClientID = errors.New("the own client id is empty: give the client one before it joins a group")
	// ErrNoQueues: the topic has no queues, or its route isn't known.
	ErrNoQueues = errors.New("there are no queues to allocate: the topic has none, or its route isn't known yet")
	// ErrNoClients: the broker knows of no member.
	ErrNoClients = errors.New("there are no clients to allocate to: the broker knows no member of the group yet")
)

// member checks what every strategy is asked with and returns the index of clientID, -1 when it isn't a client.
// Source: AbstractAllocateMessageQueueStrategy.check.
func member(clientID string, queues []Queue, clients []string) (int, error) {
	switch {
	case clientID == "":
		return -1, ErrNoClientID
	case len(queues) == 0:
		return -1, ErrNoQueues
	case len(clients) == 0:
		return -1, ErrNoClients
	}
	return slices.Index(clients, clientID), nil
}

// SortQueues sorts as Java's MessageQueue.compareTo: by topic, then broker, then id.
func SortQueues(queues []Queue) { slices.SortFunc(queues, CompareQueues) }

// CompareQueues is the order of SortQueues.
func CompareQueues(a, b Queue) int {
	if n := Compare(a.Topic, b.Topic); n != 0 {
		return n
	}
	if n := Compare(a.Broker, b.Broker); n != 0 {
		return n
	}
	switch {
	case a.ID < b.ID:
		return -1
	case a.ID > b.ID:
		return 1
	}
	return 0
}

// SortClients sorts client ids as Java sorts strings.
func SortClients(clients []string) { slices.SortFunc(clients, Compare) }

// Compare is Java's String.compareTo of two UTF-8 texts, reduced to its sign: by UTF-16 code unit. It differs from the
// order of the bytes where a character above U+FFFF, whose first unit is a surrogate from 0xD800 on, meets one from
// U+E000 to U+FFFF. Malformed UTF-8 counts as U+FFFD, as Java decodes it.
func Compare(a, b string) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	if i == len(a) && i == len(b) {
		return 0
	}
	for i > 0 && (continues(a, i) || continues(b, i)) { // to the start of the character they differ in
		i--
	}
	return compareRunes(a[i:], b[i:])
}

// continues reports whether the byte at i may belong to a character that began before it.
func continues(s string, i int) bool { return i < len(s) && !utf8.RuneStart(s[i]) }

func compareRunes(a, b string) int {
	for a != "" && b != "" {
		ra, na := utf8.DecodeRuneInString(a)
		rb, nb := utf8.DecodeRuneInString(b)
		if ra != rb {
			if unitOrder(ra) < unitOrder(rb) {
				return -1
			}
			return 1
		}
		a, b = a[na:], b[nb:]
	}
	switch {
	case a != "":
		return 1
	case b != "":
		return -1
	}
	return 0
}

// unitOrder maps a character to a number by which two characters compare as their UTF-16 code units do.
func unitOrder(r rune) rune {
	switch {
	case r >= 0x10000: // a surrogate pair: above U+D7FF, below U+E000, in order among themselves
		return 0xD800 + (r - 0x10000)
	case r >= 0xE000:
		return r + utf8.MaxRune
	}
	return r
}

// by asks an inner strategy and wraps its error with what it was asked for.
func by(s Strategy, group, clientID string, queues []Queue, clients []string, what string) ([]Queue, error) {
	out, err := s.Allocate(group, clientID, queues, clients)
	if err != nil {
		return nil, fmt.Errorf("%s by %s: %w", what, s.Name(), err)
	}
	return out, nil
}
