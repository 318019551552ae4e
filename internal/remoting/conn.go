package remoting

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/apogeemq/apogee/internal/protocol"
)

// Handler serves requests.
type Handler interface {
	// Serve handles one request on its connection's reader goroutine: the next one waits until it returns. req is
	// valid until then. A request that wants an answer gets exactly one, through Conn.Reply or a Ticket.
	Serve(c *Conn, req *Command)
}

// Limits bound what a connection may cost. Zero fields take the defaults.
type Limits struct {
	MaxFrame     int           // bytes; default MaxFrame
	IdleTimeout  time.Duration // without a byte in either direction; default 120 s, as Java
	WriteTimeout time.Duration // without the peer taking anything; default 30 s. The kernel's user timeout may be sooner: 15 s
	HighWater    int           // bytes waiting to be written above which no request is read; default 8 MiB
	MaxPending   int           // bytes waiting to be written above which the peer is cut off; default 256 MiB
	MaxConns     int           // of a server; default 100,000
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&l.MaxFrame, MaxFrame)
	set(&l.HighWater, 8<<20)
	set(&l.MaxPending, 256<<20)
	set(&l.MaxConns, 100_000)
	if l.IdleTimeout == 0 {
		l.IdleTimeout = 120 * time.Second
	}
	if l.WriteTimeout == 0 {
		l.WriteTimeout = 30 * time.Second
	}
	return l
}

// Errors of connections.
var (
	// ErrClosed: the connection is closed, or was while the caller waited.
	ErrClosed = errors.New("connection closed")
	// ErrSlowReader: the peer doesn't take what is sent to it.
	ErrSlowReader = errors.New("the peer doesn't read its answers")
	// ErrIdle: no byte went either way for the idle timeout.
	ErrIdle = errors.New("idle for too long")
)

// Conn is one connection, of a server or of a client.
type Conn struct {
	id            uint64
	nc            net.Conn
	local, remote netip.AddrPort
	handler       Handler
	limits        Limits
	stats         *Stats
	log           *slog.Logger
	onClose       func(*Conn, error)

	value     atomic.Value // the owner's state
	lastWrite atomic.Int64 // unix nanoseconds

	readArmed  time.Time // when the read deadline was set; the reader's
	writeArmed time.Time // when the write deadline was set; the writer's

	mu       sync.Mutex
	out      batch // what waits to be written
	outBytes int   // bytes in out and in the batch being written
	closed   bool
	closeErr error
	calls    map[int32]chan *Command
	opaque   int32

	wake    chan struct{} // writer: there is something to write, capacity 1
	drained chan struct{} // reader: outBytes fell below the high-water mark, capacity 1
	gone    chan struct{} // closed with the connection
	done    chan struct{} // closed when both goroutines ended
}

func newConn(nc net.Conn, id uint64, h Handler, l Limits, stats *Stats, log *slog.Logger, onClose func(*Conn, error)) *Conn {
	c := &Conn{
		id: id, nc: nc, handler: h, limits: l, stats: stats, log: log, onClose: onClose,
		local: addrPort(nc.LocalAddr()), remote: addrPort(nc.RemoteAddr()),
		wake: make(chan struct{}, 1), drained: make(chan struct{}, 1), gone: make(chan struct{}), done: make(chan struct{}),
	}
	c.lastWrite.Store(time.Now().UnixNano())
	if t, ok := nc.(*net.TCPConn); ok {
		tune(t)
	}
	return c
}

// tune sets what finds a vanished peer within 15 s: keepalive probes on an idle connection, and a limit on
// unacknowledged bytes on one that writes.
func tune(t *net.TCPConn) {
	_ = t.SetNoDelay(true)
	_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 6 * time.Second, Interval: 3 * time.Second, Count: 3})
	if raw, err := t.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 15_000)
		})
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

func (c *Conn) start() {
	var wg sync.WaitGroup
	wg.Go(c.read)
	wg.Go(c.write)
	go func() {
		wg.Wait()
		close(c.done)
	}()
}

// ID is unique among the connections of this process's servers and dials.
func (c *Conn) ID() uint64 { return c.id }

// LocalAddr is the address through which the peer reached us.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// Value returns what SetValue stored, or nil.
func (c *Conn) Value() any { return c.value.Load() }

// SetValue keeps one value of the owner's with the connection; all values must have one type.
func (c *Conn) SetValue(v any) { c.value.Store(v) }

// Done is closed when the connection is.
func (c *Conn) Done() <-chan struct{} { return c.gone }

// Err returns why the connection closed, nil while it is open.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closeErr
}

// Close closes the connection for the given reason; nil means ErrClosed. Calls that wait fail with it. Only the
// first close counts.
func (c *Conn) Close(reason error) {
	if reason == nil {
		reason = ErrClosed
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	if c.outBytes > 0 && (errors.Is(reason, os.ErrDeadlineExceeded) || errors.Is(reason, syscall.ETIMEDOUT)) {
		// Nothing was taken for the write timeout, or for the kernel's user timeout (see tune), or the host is gone.
		c.stats.Slow.Add(1)
		reason = fmt.Errorf("%w: %w", ErrSlowReader, reason)
	}
	c.closed, c.closeErr = true, reason
	out := c.out
	c.out = batch{}
	calls := c.calls
	c.calls = nil
	c.mu.Unlock()

	close(c.gone)
	_ = c.nc.Close()
	out.release()
	for _, ch := range calls {
		close(ch)
	}
	if c.onClose != nil {
		c.onClose(c, reason)
	}
}

// read is the reader goroutine: cut frames, serve requests in place, hand answers to those who wait.
func (c *Conn) read() {
	reason := c.readLoop()
	var f *FrameError
	switch {
	case errors.As(reason, &f):
		c.stats.badFrame(f.Kind)
		if c.stats.mayLog() {
			c.log.Warn("closed a connection that doesn't speak the protocol", "remote", c.remote, "reason", f.Text)
		}
	case errors.Is(reason, ErrIdle):
		c.stats.Idle.Add(1)
	}
	c.Close(reason)
}

const (
	firstBuffer = 4 << 10   // of an idle connection
	keepBuffer  = 256 << 10 // a larger one is given back after the frame that needed it
)

func (c *Conn) readLoop() error {
	buf := make([]byte, firstBuffer)
	var d decoder
	var cmd Command
	begin, end := 0, 0
	frameSince := time.Time{} // when the frame that is incomplete began
	for {
		// Serve every whole frame in the buffer.
		for end-begin >= 4 {
			size, err := frameSize(buf[begin:end], c.limits.MaxFrame)
			if err != nil {
				return err
			}
			if end-begin < size {
				break
			}
			if size < frameHeader {
				return frameError("short_length", "frame of %d bytes", size)
			}
			if err := d.decode(buf[begin:begin+size], &cmd); err != nil {
				return err
			}
			begin += size
			frameSince = time.Time{}
			c.stats.Frames.Add(1)
			if cmd.IsResponse() {
				c.answered(&cmd)
			} else {
				c.serve(&cmd)
			}
			if err := c.waitForRoom(); err != nil {
				return err
			}
		}
		if begin < end && frameSince.IsZero() {
			frameSince = time.Now()
		}
		if begin == end {
			begin, end = 0, 0
			if len(buf) > keepBuffer {
				buf = make([]byte, firstBuffer)
			}
			if cap(d.scratch) > keepBuffer {
				d.scratch = nil
			}
		} else if begin > 0 && len(buf)-end < len(buf)/2 {
			end = copy(buf, buf[begin:end])
			begin = 0
		}
		if end == len(buf) { // grow by what has arrived, not by what the length claims
			next := make([]byte, 2*len(buf))
			end = copy(next, buf[begin:end])
			begin, buf = 0, next
		}
		n, err := c.fill(buf[end:], frameSince)
		end += n
		if err != nil {
			if errors.Is(err, io.EOF) && begin == end {
				return io.EOF
			}
			return err
		}
	}
}

// lax is the part of a timeout by which it may come late: deadlines are set anew that rarely, not at each call.
const lax = 16

// fill reads some bytes. It ends with ErrIdle when nothing went either way for the idle timeout, or when a frame
// that began at since isn't complete after it.
func (c *Conn) fill(b []byte, since time.Time) (int, error) {
	for {
		if now := time.Now(); now.Sub(c.readArmed) > c.limits.IdleTimeout/lax {
			c.readArmed = now
			_ = c.nc.SetReadDeadline(now.Add(c.limits.IdleTimeout + c.limits.IdleTimeout/lax))
		}
		n, err := c.nc.Read(b)
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			c.readArmed = time.Time{}
			if quiet := time.Since(time.Unix(0, c.lastWrite.Load())); quiet < c.limits.IdleTimeout && since.IsZero() {
				continue
			}
			return 0, ErrIdle
		}
		if err == nil && !since.IsZero() && time.Since(since) > c.limits.IdleTimeout {
			return n, ErrIdle
		}
		return n, err
	}
}

// serve calls the handler. A panic in it answers the request with SYSTEM_ERROR and harms nobody else.
func (c *Conn) serve(req *Command) {
	defer func() {
		if p := recover(); p != nil {
			c.stats.Panics.Add(1)
			c.log.Error("a handler panicked", "code", req.Code, "remote", c.remote, "panic", p, "stack", string(debug.Stack()))
			_ = c.Reply(req, &Response{Code: protocol.SystemError, Remark: fmt.Sprintf("internal error: %v", p)})
		}
	}()
	c.handler.Serve(c, req)
}

// waitForRoom holds the reader while too much waits to be written.
func (c *Conn) waitForRoom() error {
	for {
		c.mu.Lock()
		full := c.outBytes > c.limits.HighWater && !c.closed
		c.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-c.drained:
		case <-c.gone:
			return ErrClosed
		}
	}
}

// batch is what the writer writes with one system call: runs of buf, and slices that belong to others.
type batch struct {
	buf      []byte
	segments []segment
	releases []func()
	size     int
}

// segment is a run of buf, or a foreign slice.
type segment struct {
	begin, end int
	foreign    []byte
}

func (b *batch) release() {
	for _, f := range b.releases {
		f()
	}
	clear(b.releases)
	b.releases = b.releases[:0]
}

// owned notes that buf grew from begin on.
func (b *batch) owned(begin int) {
	if n := len(b.segments); n > 0 && b.segments[n-1].foreign == nil && b.segments[n-1].end == begin {
		b.segments[n-1].end = len(b.buf)
		return
	}
	b.segments = append(b.segments, segment{begin: begin, end: len(b.buf)})
}

// enqueue lets put append a frame and wakes the writer.
func (c *Conn) enqueue(put func(*batch), release func()) error {
	c.mu.Lock()
	if c.closed {
		err := c.closeErr
		c.mu.Unlock()
		if release != nil {
			release()
		}
		return err
	}
	before := c.out.size
	put(&c.out)
	if release != nil {
		c.out.releases = append(c.out.releases, release)
	}
	c.outBytes += c.out.size - before
	over := c.outBytes > c.limits.MaxPending
	c.mu.Unlock()
	if over {
		c.stats.Slow.Add(1)
		c.Close(ErrSlowReader)
		return ErrSlowReader
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// inlineBody is the size up to which a body is copied behind its header: cheaper than one more piece to gather.
const inlineBody = 4 << 10

func (b *batch) frame(h head, header any, extra protocol.Fields, body []byte, parts [][]byte) {
	n := len(body)
	for _, p := range parts {
		n += len(p)
	}
	begin := len(b.buf)
	b.buf = appendFrame(b.buf, h, header, extra, n)
	b.size += len(b.buf) - begin + n
	if n <= inlineBody {
		b.buf = append(b.buf, body...)
		for _, p := range parts {
			b.buf = append(b.buf, p...)
		}
		b.owned(begin)
		return
	}
	b.owned(begin)
	if len(body) > 0 {
		b.segments = append(b.segments, segment{foreign: body})
	}
	for _, p := range parts {
		if len(p) > 0 {
			b.segments = append(b.segments, segment{foreign: p})
		}
	}
}

// write is the writer goroutine.
func (c *Conn) write() {
	var spare batch
	var pieces net.Buffers
	for {
		select {
		case <-c.wake:
		case <-c.gone:
			return
		}
		c.mu.Lock()
		now := c.out
		c.out = spare
		c.mu.Unlock()
		if now.size == 0 {
			spare = now
			continue
		}
		pieces = pieces[:0]
		for _, s := range now.segments {
			if s.foreign != nil {
				pieces = append(pieces, s.foreign)
			} else {
				pieces = append(pieces, now.buf[s.begin:s.end])
			}
		}
		err := c.writePieces(pieces)
		if err != nil {
			c.Close(err)
		}
		now.release()
		c.mu.Lock()
		c.outBytes -= now.size
		room := c.outBytes <= c.limits.HighWater
		c.mu.Unlock()
		if err != nil {
			return
		}
		if room {
			select {
			case c.drained <- struct{}{}:
			default:
			}
		}
		clear(now.segments)
		if cap(now.buf) > keepBuffer {
			now.buf = nil
		}
		spare = batch{buf: now.buf[:0], segments: now.segments[:0], releases: now.releases[:0]}
	}
}

// writeStep is how much may be written under one deadline, so that a slow honest reader makes progress.
const writeStep = 1 << 20

func (c *Conn) writePieces(pieces net.Buffers) error {
	for len(pieces) > 0 {
		n, k := 0, 0
		for k < len(pieces) && (k == 0 || n+len(pieces[k]) <= writeStep) {
			n += len(pieces[k])
			k++
		}
		step := pieces[:k:k]
		pieces = pieces[k:]
		now := time.Now()
		c.lastWrite.Store(now.UnixNano())
		if now.Sub(c.writeArmed) > c.limits.WriteTimeout/lax {
			c.writeArmed = now
			if err := c.nc.SetWriteDeadline(now.Add(c.limits.WriteTimeout + c.limits.WriteTimeout/lax)); err != nil {
				return err
			}
		}
		var err error
		if k == 1 {
			_, err = c.nc.Write(step[0])
		} else {
			_, err = step.WriteTo(c.nc)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Response is the answer to a request.
type Response struct {
	Code   protocol.ResponseCode
	Remark string
	Header any             // as protocol.Encode takes it; nil: no fields, protocol.Empty{}: an empty object
	Extra  protocol.Fields // behind Header's
	Body   []byte          // stays untouched until written
	Parts  [][]byte        // gathered behind Body; stay untouched until Release
	// Release is called exactly once, after the answer was written or dropped.
	Release func()
}

// Ticket keeps what is needed to answer a request later. It is a small value; Reply is safe from any goroutine.
type Ticket struct {
	c      *Conn
	opaque int32
	typ    Type
	oneWay bool
}

// Ticket returns the request's ticket.
func (c *Command) Ticket(conn *Conn) Ticket {
	return Ticket{c: conn, opaque: c.Opaque, typ: c.Type, oneWay: c.IsOneWay()}
}

// Conn returns the connection the request came through.
func (t Ticket) Conn() *Conn { return t.c }

// Reply answers the request, in its encoding. For a one-way request it only releases.
func (t Ticket) Reply(r *Response) error {
	if t.oneWay {
		if r.Release != nil {
			r.Release()
		}
		return nil
	}
	h := head{typ: t.typ, code: int32(r.Code), language: protocol.Java, version: protocol.Version, opaque: t.opaque, flag: flagResponse, remark: r.Remark}
	return t.c.enqueue(func(b *batch) { b.frame(h, r.Header, r.Extra, r.Body, r.Parts) }, r.Release)
}

// Reply answers req; see Ticket.Reply.
func (c *Conn) Reply(req *Command, r *Response) error { return req.Ticket(c).Reply(r) }

// Request is a request to the peer.
type Request struct {
	Code     protocol.RequestCode
	Header   any             // as protocol.Encode takes it, or nil
	Extra    protocol.Fields // behind Header's
	Remark   string
	Body     []byte // stays untouched until the answer, or until OneWay's frame is written
	Language protocol.Language
}

// Invoke sends a request and waits for its answer, which is the caller's. It returns when ctx ends, at once.
func (c *Conn) Invoke(ctx context.Context, r *Request) (*Command, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ch := make(chan *Command, 1)
	c.mu.Lock()
	if c.closed {
		err := c.closeErr
		c.mu.Unlock()
		return nil, fmt.Errorf("%w: %w", ErrClosed, err)
	}
	c.opaque++
	opaque := c.opaque
	if c.calls == nil {
		c.calls = make(map[int32]chan *Command)
	}
	c.calls[opaque] = ch
	c.mu.Unlock()
	if err := c.request(r, opaque, 0); err != nil {
		c.forget(opaque)
		return nil, err
	}
	select {
	case a, ok := <-ch:
		if !ok {
			return nil, fmt.Errorf("%w: %w", ErrClosed, c.Err())
		}
		return a, nil
	case <-ctx.Done():
		c.forget(opaque)
		return nil, ctx.Err()
	}
}

// OneWay sends a request that gets no answer.
func (c *Conn) OneWay(r *Request) error {
	c.mu.Lock()
	c.opaque++
	opaque := c.opaque
	c.mu.Unlock()
	return c.request(r, opaque, flagOneWay)
}

func (c *Conn) request(r *Request, opaque, flag int32) error {
	h := head{typ: JSON, code: int32(r.Code), language: r.Language, version: protocol.Version, opaque: opaque, flag: flag, remark: r.Remark}
	var body []byte
	if len(r.Body) > inlineBody {
		body = append([]byte(nil), r.Body...) // the caller may use its own again as soon as ctx ends
	} else {
		body = r.Body
	}
	return c.enqueue(func(b *batch) { b.frame(h, r.Header, r.Extra, body, nil) }, nil)
}

func (c *Conn) forget(opaque int32) {
	c.mu.Lock()
	delete(c.calls, opaque)
	c.mu.Unlock()
}

// answered hands an answer to its caller; one that nobody waits for is dropped.
func (c *Conn) answered(a *Command) {
	c.mu.Lock()
	ch, ok := c.calls[a.Opaque]
	delete(c.calls, a.Opaque)
	c.mu.Unlock()
	if ok {
		ch <- a.Clone()
	}
}

// isReset reports whether err means that the peer is gone, which is nothing to log.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}
