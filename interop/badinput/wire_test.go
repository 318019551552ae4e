package badinput

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
	"time"
)

// Codes of requests and answers that the tests use by name.
const (
	sendMessage   = 10
	pullMessage   = 11
	queryOffset   = 14
	updateOffset  = 15
	maxOffset     = 30
	heartbeat     = 34
	routeOfTopic  = 105
	success       = 0
	notSupported  = 3
	flagAnswer    = 1
	flagOneWay    = 2
	answersWithin = 10 * time.Second
)

// header is a frame's JSON header.
type header struct {
	Code      int               `json:"code"`
	Language  string            `json:"language"`
	Version   int               `json:"version"`
	Opaque    int               `json:"opaque"`
	Flag      int               `json:"flag"`
	Remark    string            `json:"remark,omitempty"`
	ExtFields map[string]string `json:"extFields,omitempty"`
}

// answer is a frame that came back.
type answer struct {
	header
	body []byte
}

// frame puts a frame together, whatever the header is.
//
//	0        4      5        8
//	| length | type | header | header … | body … |
func frame(kind byte, head, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(head)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(kind)<<24|uint32(len(head)))
	return append(append(b, head...), body...)
}

// request is a legal frame.
func request(code, opaque, flag int, fields map[string]string, body []byte) []byte {
	head, err := json.Marshal(header{Code: code, Language: "JAVA", Version: 401, Opaque: opaque, Flag: flag, ExtFields: fields})
	if err != nil {
		panic(err) // of strings and numbers
	}
	return frame(0, head, body)
}

// client is a connection.
type client struct {
	net.Conn
	opaque int
}

func dial(addr string) (*client, error) {
	c, err := net.DialTimeout("tcp", addr, answersWithin)
	if err != nil {
		return nil, err
	}
	return &client{Conn: c}, nil
}

func connect(t *testing.T, addr string) *client {
	t.Helper()
	c, err := dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// read reads one frame.
func (c *client) read(within time.Duration) (answer, error) {
	var a answer
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		return a, err
	}
	var head [8]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return a, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	word := binary.BigEndian.Uint32(head[4:])
	headLength := int(word & 0xFFFFFF)
	if n < 4 || n > 16<<20 || headLength > n-4 || word>>24 != 0 {
		return a, fmt.Errorf("an answer of %d bytes with a header of %d, type %d", n, headLength, word>>24)
	}
	rest := make([]byte, n-4)
	if _, err := io.ReadFull(c, rest); err != nil {
		return a, err
	}
	if err := json.Unmarshal(rest[:headLength], &a.header); err != nil {
		return a, fmt.Errorf("header %q: %w", rest[:headLength], err)
	}
	a.body = rest[headLength:]
	return a, nil
}

// call sends a legal request and reads its answer.
func (c *client) call(code int, fields map[string]string, body []byte) (answer, error) {
	c.opaque++
	if _, err := c.Write(request(code, c.opaque, 0, fields, body)); err != nil {
		return answer{}, err
	}
	a, err := c.read(answersWithin)
	if err == nil && (a.Opaque != c.opaque || a.Flag&flagAnswer == 0) {
		err = fmt.Errorf("an answer %+v to request %d", a.header, c.opaque)
	}
	return a, err
}

// stillServes fails the test unless the connection goes on.
func (c *client) stillServes(t *testing.T, after string) {
	t.Helper()
	// Any server refuses this one, with the code in the remark.
	a, err := c.call(31999, nil, nil)
	if err != nil || a.Code != notSupported {
		t.Errorf("after %s the connection answers %+v, %v", after, a.header, err)
	}
}

// ends reads until the server closes the connection, and returns how many answers came before.
func (c *client) ends(within time.Duration) (answers int, err error) {
	deadline := time.Now().Add(within)
	for {
		_, err := c.read(time.Until(deadline))
		switch {
		case err == nil:
			answers++
		case isTimeout(err):
			return answers, fmt.Errorf("the connection is open after %v", within)
		default:
			return answers, nil // its end, or a reset
		}
	}
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

// sendFields are the fields of SEND_MESSAGE.
func sendFields(topic string) map[string]string {
	return map[string]string{"producerGroup": "badinput", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
		"sysFlag": "0", "bornTimestamp": strconv.FormatInt(time.Now().UnixMilli(), 10), "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false"}
}

// pullFields are the fields of PULL_MESSAGE with its own subscription.
func pullFields(topic string, offset int64) map[string]string {
	return map[string]string{"consumerGroup": "badinput", "topic": topic, "queueId": "0", "queueOffset": strconv.FormatInt(offset, 10), "maxMsgNums": "32",
		"sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "5000", "subscription": "*", "subVersion": "0", "expressionType": "TAG"}
}

// with returns the fields with some changed; an empty name removes nothing.
func with(fields map[string]string, change ...string) map[string]string {
	for i := 0; i+1 < len(change); i += 2 {
		fields[change[i]] = change[i+1]
	}
	return fields
}
