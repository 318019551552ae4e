package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// names is the list of name servers. The client talks to the first; one that fails goes to the end. The list is fixed,
// or fetched over HTTP now and then.
type names struct {
	url   string // "": fixed
	first chan struct{}

	mu    sync.Mutex
	addrs []string
	err   error // of the last fetch, when there is no list
}

// How a list is fetched (Java's TopAddressing, and its period).
const (
	namesPeriod  = 120 * time.Second
	namesRetry   = time.Second // while there is no list at all
	namesTimeout = 3 * time.Second
	namesMaxBody = 64 << 10
)

// WithNameServerURL fetches the list of name servers over HTTP: a GET whose body's first line is host:port, several of
// them separated by semicolons. That is what Java's address servers give at
// http://jmenv.tbsite.net:8080/rocketmq/nsaddr, the address Java clients use by default. It is fetched when the client is made
// and then every 120 s; when that fails the last list stays. Calls wait for the first list. It excludes
// WithNameServers, and goes before NAMESRV_ADDR.
func WithNameServerURL(address string) Option {
	return func(o *options) error {
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return invalid("WithNameServerURL: %q is not an http:// or https:// address", address)
		}
		if o.names != nil {
			return invalid("WithNameServerURL and WithNameServers exclude each other")
		}
		o.namesURL = address
		return nil
	}
}

func newNames(addrs []string, url string) *names {
	n := &names{url: url, first: make(chan struct{})}
	if url == "" {
		n.set(addrs)
		close(n.first)
	}
	return n
}

func (n *names) set(addrs []string) {
	addrs = slices.Clone(addrs)
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addrs, n.err = addrs, nil
}

// start fetches the list until the client closes.
func (n *names) start(c *Client) {
	if n.url == "" {
		return
	}
	c.run.Go(func(ctx context.Context) {
		h := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}}
		for first := true; ; first = false {
			n.fetchOnce(ctx, h, c.log)
			if first {
				close(n.first)
			}
			n.mu.Lock()
			wait := namesPeriod
			if len(n.addrs) == 0 {
				wait = namesRetry
			}
			n.mu.Unlock()
			t := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				t.Stop()
				return
			case <-t.C:
			}
		}
	})
}

// fetchOnce replaces the list, unless that fails or nothing changed.
func (n *names) fetchOnce(ctx context.Context, h *http.Client, log *slog.Logger) {
	addrs, err := fetchNames(ctx, h, n.url)
	if err != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.err = err; ctx.Err() == nil {
			log.Warn("can't fetch the list of name servers", "url", n.url, "error", err, "kept", len(n.addrs))
		}
		return
	}
	n.mu.Lock()
	a, b := slices.Clone(n.addrs), slices.Clone(addrs)
	n.mu.Unlock()
	slices.Sort(a)
	slices.Sort(b)
	if !slices.Equal(a, b) {
		log.Info("list of name servers", "url", n.url, "addrs", addrs)
		n.set(addrs)
	}
}

func fetchNames(ctx context.Context, h *http.Client, address string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, namesTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := h.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, namesMaxBody))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", address, resp.Status)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	addrs := splitAddrs(strings.TrimSpace(line))
	if len(addrs) == 0 {
		return nil, errors.New("the answer of " + address + " names no server")
	}
	return addrs, checkAddrs(addrs)
}

// list returns the servers in the order in which they are to be asked. It waits for the first list.
func (n *names) list(ctx context.Context) ([]string, error) {
	select {
	case <-n.first:
	default:
		select {
		case <-n.first:
		case <-ctx.Done():
			return nil, fmt.Errorf("no list of name servers yet from %s: %w: %w", n.url, ErrUnreachable, ctx.Err())
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.addrs) == 0 {
		return nil, fmt.Errorf("no list of name servers from %s: %w: %w", n.url, ErrUnreachable, n.err)
	}
	return slices.Clone(n.addrs), nil
}

// failed puts a server that didn't answer behind the others.
func (n *names) failed(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.addrs) > 1 && n.addrs[0] == addr {
		n.addrs = append(n.addrs[1:], addr)
	}
}

// current returns the servers that are known now.
func (n *names) current() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.addrs)
}
