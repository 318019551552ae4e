package apogeetest

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// heldPort is a socket that is bound to a port and does not listen. Whoever connects is refused, and the system gives
// the port to nobody who asks for a free one; but a listener with SO_REUSEADDR, which Go's have, may take it.
type heldPort int

func holdPort(addr string) (heldPort, error) {
	a, err := netip.ParseAddrPort(addr)
	if err != nil {
		return -1, err
	}
	family, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(a.Port()), Addr: [4]byte{}})
	if a.Addr().Is4() {
		to.(*unix.SockaddrInet4).Addr = a.Addr().As4()
	} else {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("SO_REUSEADDR: %w", err)
	}
	if err := unix.Bind(fd, to); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("bind: %w", err)
	}
	return heldPort(fd), nil
}

func release(held []heldPort) {
	for _, h := range held {
		_ = unix.Close(int(h))
	}
}
