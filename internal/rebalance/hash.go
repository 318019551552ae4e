package rebalance

import (
	"crypto/md5" // the hash Java's router uses; nothing here is a secret
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
)

// DefaultVirtualNodes is how often a client is on the ring of a ConsistentHash in Java's default.
const DefaultVirtualNodes = 10

// ConsistentHash puts clients on a ring by hash and gives a queue to the first client at or after the queue's own
// hash: when a client comes or goes, only queues between it and its neighbours move. Shares may be uneven, and a client
// may get nothing.
//
//	a client's places   MD5("<client id>-<k>"), k = 0 … VirtualNodes-1: the first four bytes, big-endian, unsigned
//	a queue's place     the same of Queue.String
//
// Of two clients in one place the later one has it.
// Source: AllocateMessageQueueConsistentHash, common.consistenthash.ConsistentHashRouter.
type ConsistentHash struct {
	VirtualNodes int // places of a client; 0 means DefaultVirtualNodes. All members of a group must have the same.
}

// Name implements Strategy.
func (ConsistentHash) Name() string { return "CONSISTENT_HASH" }

// Allocate implements Strategy.
func (s ConsistentHash) Allocate(_, clientID string, queues []Queue, clients []string) ([]Queue, error) {
	nodes := s.VirtualNodes
	if nodes < 0 {
		return nil, fmt.Errorf("consistent hash with %d virtual nodes: want a positive number, or 0 for %d", nodes, DefaultVirtualNodes)
	}
	if nodes == 0 {
		nodes = DefaultVirtualNodes
	}
	i, err := member(clientID, queues, clients)
	if err != nil || i < 0 {
		return nil, err
	}
	r := newRing(clients, nodes)
	var out []Queue
	for _, q := range queues {
		if r.owner(ringHash(q.String())) == clientID {
			out = append(out, q)
		}
	}
	return out, nil
}

// ring is the places of all clients in ascending order.
type ring struct {
	places []uint32
	owners []string // by place
}

func newRing(clients []string, nodes int) ring {
	at := make(map[uint32]string, len(clients)*nodes)
	on := make(map[string]int, len(clients)) // places a client has: an id that is listed twice goes on counting
	for _, c := range clients {
		first := on[c]
		for k := range nodes {
			h := ringHash(c + "-" + strconv.Itoa(first+k))
			if was, taken := at[h]; taken {
				on[was]--
			}
			at[h] = c
			on[c]++
		}
	}
	var r ring
	for h := range at {
		r.places = append(r.places, h)
	}
	slices.Sort(r.places)
	for _, h := range r.places {
		r.owners = append(r.owners, at[h])
	}
	return r
}

func (r ring) owner(h uint32) string {
	i, _ := slices.BinarySearch(r.places, h)
	if i == len(r.places) {
		i = 0
	}
	return r.owners[i]
}

func ringHash(s string) uint32 {
	sum := md5.Sum([]byte(s))
	return binary.BigEndian.Uint32(sum[:4])
}
