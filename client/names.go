package client

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
)

// names is the list of name servers. The client talks to the first; one that fails goes to the end.
type names struct {
	mu    sync.Mutex
	addrs []string
}

func newNames(addrs []string) *names {
	addrs = slices.Clone(addrs)
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	return &names{addrs: addrs}
}

// list returns the servers in the order in which they are to be asked.
func (n *names) list(context.Context) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.addrs)
}

// failed puts a server that didn't answer behind the others.
func (n *names) failed(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.addrs) > 1 && n.addrs[0] == addr {
		n.addrs = append(n.addrs[1:], addr)
	}
}
