package goclient

import (
	"io"
	"net"
	"sync"
)

// resetProxy forwards connections from one address to another, and can cut them all with a reset, as a network
// device does whose table was lost.
type resetProxy struct {
	listener net.Listener
	to       string
	work     sync.WaitGroup

	mu     sync.Mutex
	conns  map[*net.TCPConn]bool // both ends of each connection
	closed bool
}

func (c *testCase) startProxy(listen, to string) *resetProxy {
	c.Helper()
	l, err := net.Listen("tcp", listen)
	c.must(err)
	p := &resetProxy{listener: l, to: to, conns: map[*net.TCPConn]bool{}}
	p.work.Go(p.accept)
	c.Cleanup(p.close)
	return p
}

func (p *resetProxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.reset()
	p.work.Wait()
}

func (p *resetProxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.work.Go(func() { p.forward(client.(*net.TCPConn)) })
	}
}

func (p *resetProxy) forward(client *net.TCPConn) {
	defer client.Close()
	c, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	broker := c.(*net.TCPConn)
	defer broker.Close()
	if !p.add(client, broker) {
		return
	}
	defer p.remove(client, broker)
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(client, broker)
		_ = client.Close()
	})
	_, _ = io.Copy(broker, client)
	_ = broker.Close()
	back.Wait()
}

func (p *resetProxy) add(ends ...*net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range ends {
		p.conns[c] = true
	}
	return !p.closed
}

func (p *resetProxy) remove(ends ...*net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range ends {
		delete(p.conns, c)
	}
}

// reset cuts all connections, towards both ends, and returns how many ends that were.
func (p *resetProxy) reset() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	return len(p.conns)
}
