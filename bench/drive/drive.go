// Package drive starts brokers, ours and Java's, as processes of their own, and talks to them over the wire: what the
// programs beside it have in common.
package drive

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// Waiting for a process or an answer takes no longer than this.
const (
	StartWithin = 5 * time.Minute
	StopWithin  = time.Minute
	CallWithin  = 20 * time.Second
)

// Process is a running server.
type Process struct {
	Name  string
	Addr  string // of the broker, or of a name server alone
	Began time.Time

	cmd  *exec.Cmd
	out  *tail
	done chan struct{}
	err  error
}

// tail keeps the end of what a process prints.
type tail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.b.Len() > 1<<16 {
		t.b.Next(1 << 15)
	}
	return t.b.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// readyAddr finds the addresses in the line with which a server says that it is ready.
var readyAddr = regexp.MustCompile(`(namesrv|broker)=(\S+)`)

// Ours starts `BIN COMMAND ARGS…` and waits until it says that it is ready.
func Ours(bin string, args ...string) (*Process, error) {
	p := &Process{Name: "apogee", cmd: exec.Command(bin, args...), out: &tail{}, done: make(chan struct{})}
	p.cmd.Stderr = p.out
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.Began = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	late := time.AfterFunc(StartWithin, func() { _ = p.cmd.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	late.Stop()
	p.watch()
	for _, m := range readyAddr.FindAllStringSubmatch(line, -1) { // the broker's comes last
		p.Addr = m[2]
	}
	if p.Addr == "" {
		p.Kill()
		return nil, fmt.Errorf("%s %v didn't start: %q, %v\n%s", bin, args, line, err, p.out)
	}
	return p, nil
}

// Java starts the Java broker of a script that works as scripts/mixed says, on DIR/store, and waits until it serves.
func Java(peer, dir string, port int, names string, settings ...string) (*Process, error) {
	args := append([]string{"broker", dir, fmt.Sprint(port), names}, settings...)
	p := &Process{Name: "Java", cmd: exec.Command(peer, args...), out: &tail{}, done: make(chan struct{}), Addr: fmt.Sprintf("127.0.0.1:%d", port)}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.Began = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.watch()
	deadline := time.Now().Add(StartWithin)
	for {
		c, err := Dial(p.Addr)
		if err == nil {
			_, err = Call(c, protocol.GetBrokerRuntimeInfo, nil, nil)
			CloseConn(c)
		}
		if err == nil {
			return p, nil
		}
		select {
		case <-p.done:
			return nil, fmt.Errorf("the Java broker ended: %w\n%s", p.err, p.out)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.Kill()
			return nil, fmt.Errorf("the Java broker doesn't serve after %v: %w\n%s", StartWithin, err, p.out)
		}
	}
}

func (p *Process) watch() {
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
}

// Kill ends the process with kill -9 and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop ends the process with SIGTERM and waits until it is gone.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(StopWithin):
		p.Kill()
		return fmt.Errorf("%s didn't stop within %v\n%s", p.Name, StopWithin, p.out)
	}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) && exit.ExitCode() == 128+int(syscall.SIGTERM) { // how a JVM ends
		return nil
	}
	if p.err != nil {
		return fmt.Errorf("%s stopped: %w\n%s", p.Name, p.err, p.out)
	}
	return nil
}

// Log is the end of what the process printed.
func (p *Process) Log() string { return p.out.String() }

// FreePort returns a port that is free, and whose neighbours, which a broker takes as well, are.
func FreePort() (int, error) {
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, err
		}
		port := l.Addr().(*net.TCPAddr).Port
		free := true
		for _, n := range []int{port - 2, port + 1} {
			if o, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", n)); err != nil {
				free = false
			} else {
				_ = o.Close()
			}
		}
		if err := l.Close(); err != nil {
			return 0, err
		}
		if free {
			return port, nil
		}
	}
	return 0, errors.New("no port is free with its neighbours")
}

// Dial connects to a broker.
func Dial(addr string) (*remoting.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), CallWithin)
	defer cancel()
	return remoting.Dial(ctx, addr, remoting.DialOptions{})
}

// CloseConn closes a connection and waits for its goroutines.
func CloseConn(c *remoting.Conn) {
	c.Close(nil)
	c.Wait()
}

// Refused is an answer with another code than success.
type Refused struct {
	Code   protocol.ResponseCode
	Remark string
}

// Error implements error.
func (r *Refused) Error() string { return fmt.Sprintf("code %d: %s", r.Code, r.Remark) }

// IsCode reports whether an error is an answer with one of the codes.
func IsCode(err error, codes ...protocol.ResponseCode) bool {
	var r *Refused
	if !errors.As(err, &r) {
		return false
	}
	for _, c := range codes {
		if r.Code == c {
			return true
		}
	}
	return false
}

// Call sends a request and waits for its answer; another code than success is a *Refused.
func Call(c *remoting.Conn, code protocol.RequestCode, header any, body []byte) (*remoting.Command, error) {
	ctx, cancel := context.WithTimeout(context.Background(), CallWithin)
	defer cancel()
	a, err := c.Invoke(ctx, &remoting.Request{Code: code, Header: header, Body: body, Language: protocol.Go})
	if err != nil {
		return nil, err
	}
	if a.Code != 0 {
		return a, &Refused{protocol.ResponseCode(a.Code), a.Remark}
	}
	return a, nil
}

// Send sends one message, or several as a batch, to one queue and returns the first one's offset.
func Send(c *remoting.Conn, topic string, queue int32, ms ...message.Message) (int64, error) {
	h := &protocol.SendMessageRequest{ProducerGroup: []byte("drive"), Topic: []byte(topic), DefaultTopic: []byte("TBW102"), DefaultTopicQueueNums: 4, QueueID: queue, BornTimestamp: time.Now().UnixMilli()}
	code, body := protocol.SendMessageV2, ms[0].Body
	if len(ms) == 1 {
		h.Properties = ms[0].Properties
	} else {
		code, h.Batch, body = protocol.SendBatchMessage, true, nil
		for _, m := range ms {
			body = message.AppendBatchItem(body, 0, m.Body, m.Properties)
		}
	}
	a, err := Call(c, code, h, body)
	if err != nil {
		return 0, fmt.Errorf("send to topic %s queue %d: %w", topic, queue, err)
	}
	var r protocol.SendMessageResponse
	if err := r.DecodeFields(a.Fields); err != nil {
		return 0, err
	}
	return r.QueueOffset, nil
}

// Pull pulls once and calls f for each message. It returns where to go on; moved is false when there was nothing.
func Pull(c *remoting.Conn, group, topic string, queue int32, from int64, f func(m *message.Message) error) (next int64, moved bool, err error) {
	h := &protocol.PullMessageRequest{ConsumerGroup: []byte(group), Topic: []byte(topic), QueueID: queue, QueueOffset: from, MaxMsgNums: 32, SysFlag: protocol.PullSubscription, Subscription: []byte("*")}
	a, err := Call(c, protocol.PullMessage, h, nil)
	if IsCode(err, protocol.PullNotFound, protocol.PullRetryImmediately, protocol.PullOffsetMoved) {
		var r protocol.PullMessageResponse
		if e := r.DecodeFields(a.Fields); e == nil && r.NextBeginOffset > from {
			return r.NextBeginOffset, true, nil
		}
		return from, false, nil
	}
	if err != nil {
		return from, false, fmt.Errorf("pull topic %s queue %d at %d: %w", topic, queue, from, err)
	}
	for records := a.Body; len(records) > 0; {
		var m message.Message
		n, err := message.DecodeRecord(records, &m, true)
		if err != nil {
			return from, false, fmt.Errorf("pull topic %s queue %d at %d: %w", topic, queue, from, err)
		}
		records = records[n:]
		if m.QueueOffset != from {
			return from, false, fmt.Errorf("pull topic %s queue %d: offset %d came, %d was next", topic, queue, m.QueueOffset, from)
		}
		if err := f(&m); err != nil {
			return from, false, err
		}
		from++
	}
	return from, true, nil
}

// CheckStore runs `BIN store check` over a folder and returns what it printed; an error when there are findings.
func CheckStore(bin, dir string) (string, error) {
	out, err := exec.Command(bin, "store", "check", filepath.Clean(dir)).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("apogee store check %s: %w\n%s", dir, err, out)
	}
	return string(out), nil
}

// BytesRead is how many bytes the process read with system calls so far, from the disk or from the page cache.
func (p *Process) BytesRead() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(b), "\n") {
		if v, ok := strings.CutPrefix(line, "rchar: "); ok {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, errors.New("the system doesn't count what a process reads")
}
