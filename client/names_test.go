package client_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apogeemq/apogee/client"
)

func TestNameServersFromTheEnvironment(t *testing.T) {
	f := startFake(t, 1, "a")
	t.Setenv("NAMESRV_ADDR", "127.0.0.1:1;"+f.names)
	c, err := client.New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(short(t))
	if _, err := newProducer(t, c).Send(short(t), msg("")); err != nil {
		t.Error(err)
	}
	t.Setenv("NAMESRV_ADDR", "nonsense")
	if _, err := client.New(); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "NAMESRV_ADDR") {
		t.Errorf("error %v", err)
	}
	t.Setenv("NAMESRV_ADDR", "")
	if _, err := client.New(); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "WithNameServers") {
		t.Errorf("error %v", err)
	}
}

func TestNameServersOverHTTP(t *testing.T) {
	f := startFake(t, 1, "a")
	var asked atomic.Int32
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 { // the address server is away at first
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "%s;127.0.0.1:1\nanother line\n", f.names)
	}))
	defer h.Close()
	c, err := client.New(client.WithNameServerURL(h.URL + "/rocketmq/nsaddr"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(short(t))
	p := newProducer(t, c)
	deadline := time.Now().Add(15 * time.Second)
	for {
		_, err := p.Send(short(t), msg(""))
		if err == nil {
			break
		}
		if !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), "503") || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	for what, opts := range map[string][]client.Option{
		"not an http:":       {client.WithNameServerURL("jmenv.tbsite.net:8080")},
		"exclude each other": {client.WithNameServers("a:1"), client.WithNameServerURL("http://a/")},
		"exclude each":       {client.WithNameServerURL("http://a/"), client.WithNameServers("a:1")},
	} {
		if _, err := client.New(opts...); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want ErrInvalid with %q", err, what)
		}
	}
}

// selfSigned is a certificate for 127.0.0.1 that nobody vouches for, and its root.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// TestTLSVerifies: a server that nobody vouches for is refused, unless its root is given.
func TestTLSVerifies(t *testing.T) {
	cert, roots := selfSigned(t)
	f := startFakeTLS(t, &tls.Config{Certificates: []tls.Certificate{cert}}, 1, "a")
	_, err := newProducer(t, newClient(t, f.names, client.WithTLS(&tls.Config{}))).Send(short(t), msg(""))
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) || !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("an unknown authority: %v", err)
	}
	if _, err := newProducer(t, newClient(t, f.names, client.WithTLS(&tls.Config{RootCAs: roots}))).Send(short(t), msg("")); err != nil {
		t.Errorf("with its root: %v", err)
	}
	if _, err := newProducer(t, newClient(t, f.names, client.WithTLS(&tls.Config{RootCAs: roots, ServerName: "example.com"}))).Send(short(t), msg("")); err == nil {
		t.Error("another host's certificate was accepted")
	}
	if _, err := newProducer(t, newClient(t, f.names)).Send(short(t), msg("")); err == nil {
		t.Error("plain text reached a TLS server")
	}
}
