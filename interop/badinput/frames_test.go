package badinput

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// everywhere runs a test against each listener.
func everywhere(t *testing.T, f func(t *testing.T, addr string)) {
	for name, addr := range map[string]string{"name server": target.names, "broker": target.broker, "VIP": target.vip} {
		t.Run(name, func(t *testing.T) { f(t, addr) })
	}
}

func u32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// Frames that can't be one: the connection is closed without an answer, and counted.
func TestFramesThatAreNone(t *testing.T) {
	unharmed(t)
	legal := request(31999, 1, 0, nil, nil)
	json := `{"code":31999,"language":"JAVA","version":401,"opaque":1,"flag":0}`
	cases := map[string][]byte{
		"length -1":                     u32(0xFFFFFFFF),
		"length -2^31":                  u32(0x80000000),
		"length 0":                      append(u32(0), legal...),
		"length 3":                      append(u32(3), 0, 0, 0),
		"length 2^31-1":                 append(u32(0x7FFFFFFF), legal[4:]...),
		"one byte over 16 MiB":          append(u32(16<<20-3), legal[4:]...),
		"header longer than the frame":  append(append(u32(20), u32(17)...), make([]byte, 16)...),
		"header of 16 MiB in 100 bytes": append(append(u32(100), u32(0xFFFFFF)...), make([]byte, 96)...),
		"type 2":                        frame(2, []byte(json), nil),
		"type 255":                      frame(255, []byte(json), nil),
		"no header":                     frame(0, nil, []byte("body")),
		"header null":                   frame(0, []byte("null"), nil),
		"header is an array":            frame(0, []byte("["+json+"]"), nil),
		"header is a number":            frame(0, []byte("42"), nil),
		"header is text":                frame(0, []byte(`"code"`), nil),
		"half a header":                 frame(0, []byte(json[:30]), nil),
		"header ends in a string":       frame(0, []byte(`{"code":10,"remark":"abc`), nil),
		"header of brackets":            frame(0, []byte(strings.Repeat("[", 1<<20)), nil),
		"header of objects":             frame(0, []byte(strings.Repeat(`{"a":`, 200_000)), nil),
		"binary: empty":                 frame(1, nil, nil),
		"binary: too short":             frame(1, make([]byte, 20), nil),
		"binary: remark too long":       frame(1, binaryHeader(u32(1000), u32(0)), nil),
		"binary: negative remark":       frame(1, binaryHeader(u32(0xFFFFFFFF), u32(0)), nil),
		"binary: fields too long":       frame(1, binaryHeader(u32(0), u32(1000)), nil),
		"binary: negative fields":       frame(1, binaryHeader(u32(0), u32(0xFFFFFFF0)), nil),
		"binary: key too long":          frame(1, binaryHeader(u32(0), u32(8), []byte{0x7F, 0xFF, 'k', 0, 0, 0, 1, 'v'}), nil),
		"binary: negative key":          frame(1, binaryHeader(u32(0), u32(8), []byte{0xFF, 0xFF, 'k', 0, 0, 0, 1, 'v'}), nil),
		"binary: value too long":        frame(1, binaryHeader(u32(0), u32(8), []byte{0, 1, 'k', 0x7F, 0xFF, 0xFF, 0xFF, 'v'}), nil),
		"binary: negative value":        frame(1, binaryHeader(u32(0), u32(8), []byte{0, 1, 'k', 0x80, 0, 0, 0, 'v'}), nil),
		"binary: half an entry":         frame(1, binaryHeader(u32(0), u32(4), []byte{0, 1, 'k', 0}), nil),
		"HTTP":                          []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"TLS":                           append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3}, make([]byte, 506)...),
		"SSH":                           []byte("SSH-2.0-OpenSSH_9.6\r\n"),
		"Redis":                         []byte("*1\r\n$4\r\nPING\r\n"),
	}
	before := badFrames(target.metrics(t))
	sent := 0
	everywhere(t, func(t *testing.T, addr string) {
		for name, b := range cases {
			c := connect(t, addr)
			if _, err := c.Write(b); err != nil {
				continue // closed while it was written to: that is what is wanted
			}
			if n, err := c.ends(answersWithin); err != nil || n != 0 {
				t.Errorf("%s: %d answers, %v", name, n, err)
			}
			sent++
		}
	})
	eventually(t, answersWithin, "all are counted", func() bool { return badFrames(target.metrics(t)) >= before+float64(sent) })
}

// badFrames adds up the frame errors of all kinds.
func badFrames(m map[string]float64) (n float64) {
	for name, v := range m {
		if strings.HasPrefix(name, "apogee_bad_frames_total") {
			n += v
		}
	}
	return n
}

// binaryHeader is a header in the binary encoding up to its remark, and what follows.
func binaryHeader(rest ...[]byte) []byte {
	b := []byte{0, 10, 0, 1, 0x91, 0, 0, 0, 1, 0, 0, 0, 0} // code, language, version, opaque, flag
	for _, r := range rest {
		b = append(b, r...)
	}
	return b
}

// Random bytes, and legal frames with some bytes changed: whatever comes of it, each connection ends when the other end
// says that it has no more to say.
func TestRandomBytes(t *testing.T) {
	unharmed(t)
	everywhere(t, func(t *testing.T, addr string) {
		for seed := range uint64(300) {
			r := rand.New(rand.NewPCG(seed, 1))
			var b []byte
			if seed%3 == 0 {
				b = make([]byte, 1+r.IntN(4096))
				for i := range b {
					b[i] = byte(r.Uint32())
				}
			} else {
				for range 3 {
					b = append(b, request([]int{sendMessage, pullMessage, heartbeat, routeOfTopic, queryOffset, 41, 103, 310}[r.IntN(8)], 1, 0,
						pullFields("random", 0), []byte(`{"clientID":"x"}`))...)
				}
				for range 1 + r.IntN(5) {
					b[r.IntN(len(b))] = byte(r.Uint32())
				}
			}
			c, err := dial(addr)
			if err != nil {
				t.Fatal(err)
			}
			for len(b) > 0 { // in pieces
				n := 1 + r.IntN(len(b))
				if _, err := c.Write(b[:n]); err != nil {
					break
				}
				b = b[n:]
			}
			_ = c.Conn.(*net.TCPConn).CloseWrite()
			if _, err := c.ends(answersWithin); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			_ = c.Close()
		}
	})
}

// What Java reads though it is no proper JSON is read, and text that isn't UTF-8 harms nobody.
func TestLaxHeaders(t *testing.T) {
	unharmed(t)
	everywhere(t, func(t *testing.T, addr string) {
		for _, head := range []string{
			`{"code":31999,"language":"JAVA","version":401,"opaque":77,"flag":0}`,
			`{'code':31999,'opaque':77,'flag':0}`,
			`{code:31999,opaque:77,flag:0}`,
			`{"code":"31999","opaque":"77","flag":"0"}`,
			`{"code":31999,"opaque":77,"flag":0,}`,
			` {  "code" : 31999 , "opaque" : 77 , "extFields" : null , "remark" : null } `,
			`{"code":31999,"opaque":77,"extFields":{"a":1,"b":true,"c":null,"d":{"e":[1,2]}}}`,
			`{"code":31999,"opaque":77,"unknown":{"nested":[{"deep":[]}]},"language":"KLINGON"}`,
			"{\"code\":31999,\"opaque\":77,\"remark\":\"\xff\xfe\x80\",\"extFields\":{\"\xff\":\"\xff\"}}",
			`{"code":1,"code":31999,"opaque":1,"opaque":77}`,
		} {
			c := connect(t, addr)
			if _, err := c.Write(frame(0, []byte(head), nil)); err != nil {
				t.Fatal(err)
			}
			a, err := c.read(answersWithin)
			if err != nil || a.Opaque != 77 || a.Code != notSupported {
				t.Errorf("%s is answered %+v, %v", head, a.header, err)
			}
		}
	})
}

// A legal frame may come byte by byte, and thousands of them in one piece.
func TestSlowAndFast(t *testing.T) {
	unharmed(t)
	everywhere(t, func(t *testing.T, addr string) {
		c := connect(t, addr)
		for _, b := range request(31999, 1, 0, nil, []byte("body")) {
			if _, err := c.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		if a, err := c.read(answersWithin); err != nil || a.Opaque != 1 {
			t.Errorf("byte by byte: %+v, %v", a.header, err)
		}
		const many = 3000
		var all []byte
		for i := range many {
			all = append(all, request(31999, i, 0, nil, nil)...)
		}
		go func() { _, _ = c.Write(all) }()
		var got []int
		for range many {
			a, err := c.read(answersWithin)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, a.Opaque)
		}
		slices.Sort(got)
		if got[0] != 0 || got[many-1] != many-1 || len(slices.Compact(got)) != many {
			t.Errorf("%d answers, from %d to %d", len(got), got[0], got[many-1])
		}
	})
}

// Answers that nobody asked for are passed over, and a request that wants no answer gets none, not even to say what is
// wrong with it.
func TestUnwanted(t *testing.T) {
	unharmed(t)
	everywhere(t, func(t *testing.T, addr string) {
		c := connect(t, addr)
		var b []byte
		for i := range 100 {
			b = append(b, request(0, i, flagAnswer, nil, bytes.Repeat([]byte("x"), 100))...)
			b = append(b, request(31999, i, flagOneWay, nil, nil)...)
			b = append(b, request(sendMessage, i, flagOneWay, nil, nil)...)
			b = append(b, request(-7, i, flagOneWay|flagAnswer, nil, nil)...)
		}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		c.opaque = 5000
		c.stillServes(t, "answers that nobody asked for") // its own answer is the first that comes
	})
}

func TestUnknownCodes(t *testing.T) {
	unharmed(t)
	everywhere(t, func(t *testing.T, addr string) {
		c := connect(t, addr)
		for _, code := range []int{-1, -2147483648, 0, 1, 9, 999, 31999, 65535, 70000, 200050, 2147483647} {
			a, err := c.call(code, nil, nil)
			if err != nil || a.Code != notSupported || a.Remark != fmt.Sprintf(" request type %d not supported", code) {
				t.Errorf("code %d: %+v, %v", code, a.header, err)
			}
		}
	})
	// The VIP listener has no pulls.
	a, err := connect(t, target.vip).call(pullMessage, pullFields("behaved", 0), nil)
	if err != nil || a.Code != notSupported {
		t.Errorf("a pull at the VIP listener: %+v, %v", a.header, err)
	}
	// In the binary encoding a code has 16 bits.
	c := connect(t, target.broker)
	head := append([]byte{0x7C, 0xFF, 9, 1, 0x91, 0, 0, 0, 5, 0, 0, 0, 0}, append(u32(0), u32(0)...)...)
	if _, err := c.Write(frame(1, head, nil)); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, 29)
	_ = c.SetReadDeadline(time.Now().Add(answersWithin))
	if _, err := c.Read(reply); err != nil || reply[4] != 1 || binary.BigEndian.Uint16(reply[8:]) != notSupported || binary.BigEndian.Uint32(reply[13:]) != 5 {
		t.Errorf("a binary request is answered %x, %v", reply, err)
	}
}
