package badinput

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// Requests without their fields: the answer is an error that names a field, and the connection goes on.
func TestMissingFields(t *testing.T) {
	unharmed(t)
	for where, k := range map[string]struct {
		addr     string
		requests map[int][]string // code → the fields of which one must be named
	}{
		"broker": {target.broker, map[int][]string{
			sendMessage: {"producerGroup", "topic", "queueId"}, 310: {"producerGroup", "topic", "queueId"}, 320: {"producerGroup", "topic", "queueId"},
			pullMessage: {"consumerGroup", "topic", "queueId"}, 361: {"consumerGroup", "topic", "queueId"}, 12: {"topic", "key"},
			queryOffset: {"consumerGroup", "topic", "queueId"}, updateOffset: {"consumerGroup", "topic", "queueId"}, 29: {"topic", "queueId", "timestamp"},
			maxOffset: {"topic", "queueId"}, 31: {"topic", "queueId"}, 32: {"topic", "queueId"}, 33: {"offset"}, 35: {"clientID"}, 36: {"offset", "group"},
			38: {"consumerGroup"}, 17: {"topic"}, 215: {"topic"}, 207: {"groupName"}, 202: {"topic"}, 208: {"consumerGroup"},
		}},
		"name server": {target.names, map[int][]string{
			routeOfTopic: {"topic"}, 100: {"namespace", "key"}, 101: {"namespace", "key"}, 102: {"namespace", "key"}, 219: {"namespace"}, 103: {"brokerName", "clusterName"},
			104: {"brokerName"}, 216: {"topic"}, 205: {"brokerName"}, 224: {"cluster"}, 217: {"topic"},
		}},
	} {
		t.Run(where, func(t *testing.T) {
			c := connect(t, k.addr)
			for code, names := range k.requests {
				for what, fields := range map[string]map[string]string{"no fields": nil, "other fields": {"unknown": "x", "": ""}} {
					a, err := c.call(code, fields, nil)
					if err != nil {
						t.Fatalf("code %d with %s: %v", code, what, err)
					}
					named := false
					for _, n := range names {
						named = named || strings.Contains(a.Remark, n)
					}
					if a.Code == success || a.Code == notSupported || !named {
						t.Errorf("code %d with %s: %d %q, want an error that names one of %v", code, what, a.Code, a.Remark, names)
					}
				}
			}
			c.stillServes(t, "requests without their fields")
		})
	}
}

// Bodies that are missing or no JSON: an error, and the connection goes on.
func TestBadBodies(t *testing.T) {
	unharmed(t)
	for addr, codes := range map[string][]int{target.broker: {heartbeat, 41, 42, 46, 200, 320}, target.names: {103}} {
		c := connect(t, addr)
		for _, code := range codes {
			fields := map[string]string{"brokerName": "x", "brokerAddr": "127.0.0.1:1", "clusterName": "x", "haServerAddr": "127.0.0.1:2", "brokerId": "0"}
			if code == 320 {
				fields = map[string]string{"a": "g", "b": "batch", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "m": "true"}
			}
			for _, body := range []string{"", "{", "[]", "null", `"x"`, "\x00\x01\x02", strings.Repeat("[", 100_000), `{"consumerDataSet":7}`,
				`{"clientID":{"a":1},"consumerDataSet":[[[]]],"mqSet":[1,2,3]}`, string(batchItem(-1, 0)), string(batchItem(1<<30, 0)), string(batchItem(10, 30_000))} {
				a, err := c.call(code, fields, []byte(body))
				if err != nil {
					t.Fatalf("code %d with the body %.40q: %v", code, body, err)
				}
				if a.Code == success && body != "null" && body != "" && body != "[]" && code != 103 {
					t.Errorf("code %d takes the body %.40q: %+v", code, body, a.header)
				}
			}
		}
		c.stillServes(t, "bad bodies")
	}
}

// batchItem is a message of a batch that lies about its lengths.
func batchItem(bodyLength int32, propertiesLength uint16) []byte {
	var b []byte
	b = binary.BigEndian.AppendUint32(b, 30) // total
	b = binary.BigEndian.AppendUint32(b, 0)  // magic
	b = binary.BigEndian.AppendUint32(b, 0)  // crc
	b = binary.BigEndian.AppendUint32(b, 0)  // flag
	b = binary.BigEndian.AppendUint32(b, uint32(bodyLength))
	b = append(b, "12345678"...)
	return binary.BigEndian.AppendUint16(b, propertiesLength)
}

// Values that can't be: each is refused or put right, none harms the connection, and no file appears outside the data
// folder.
func TestIllegalValues(t *testing.T) {
	unharmed(t)
	outside := filepath.Dir(target.dir)
	before := files(t, outside, target.dir)
	c := connect(t, target.broker)
	refused := func(what string, code int, fields map[string]string, body []byte) {
		t.Helper()
		a, err := c.call(code, fields, body)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if a.Code == success || a.Remark == "" {
			t.Errorf("%s: %+v, want a refusal that says why", what, a.header)
		}
	}
	answered := func(what string, code int, fields map[string]string, body []byte) answer {
		t.Helper()
		a, err := c.call(code, fields, body)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return a
	}
	body := []byte("x")
	for _, name := range []string{"", " ", "a b", "../../etc/passwd", "..", ".", "a/b", "/", "\x00", "a\x01b", "ü", "a@b", strings.Repeat("t", 128), strings.Repeat("t", 100_000),
		"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"} {
		refused(fmt.Sprintf("send to topic %.30q", name), sendMessage, sendFields(name), body)
		refused(fmt.Sprintf("V2 send to topic %.30q", name), 310, map[string]string{"a": "g", "b": name, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}, body)
		if name != "SCHEDULE_TOPIC_XXXX" && name != "RMQ_SYS_TRANS_HALF_TOPIC" {
			refused(fmt.Sprintf("pull from topic %.30q", name), pullMessage, pullFields(name, 0), nil)
			refused(fmt.Sprintf("pull by group %.30q", name), pullMessage, with(pullFields("behaved", 0), "consumerGroup", name+" "), nil)
			refused(fmt.Sprintf("create topic %.30q", name), 17, map[string]string{"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
				"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}, nil)
		}
	}
	for _, q := range []string{"4", "1000", "2147483647", "-2147483648x", "99999999999999999999", "1.5", "abc"} {
		refused("send to queue "+q, sendMessage, with(sendFields("behaved"), "queueId", q), body)
		refused("pull from queue "+q, pullMessage, with(pullFields("behaved", 0), "queueId", q), nil)
	}
	refused("pull from queue -1", pullMessage, with(pullFields("behaved", 0), "queueId", "-1"), nil)
	for _, offset := range []string{"-1", "-9223372036854775808", "1000000000", "9223372036854775807"} {
		a := answered("pull from offset "+offset, pullMessage, with(pullFields("behaved", 0), "queueOffset", offset), nil)
		if a.Code != 21 || a.ExtFields["nextBeginOffset"] == "" {
			t.Errorf("pull from offset %s: %+v, want the code 21 and where to go on", offset, a.header)
		}
	}
	for _, n := range []string{"0", "-1", "2147483647"} {
		a := answered("pull of "+n, pullMessage, with(pullFields("behaved", 0), "maxMsgNums", n, "suspendTimeoutMillis", "1"), nil)
		if len(a.body) > 1<<20 {
			t.Errorf("a pull of %s messages brings %d bytes", n, len(a.body))
		}
	}
	answered("pull that wants to wait -1 ms", pullMessage, with(pullFields("quiet", 0), "suspendTimeoutMillis", "-1"), nil)
	refused("pull with a bad number", pullMessage, with(pullFields("behaved", 0), "queueOffset", "1e3"), nil)
	refused("pull with SQL", pullMessage, with(pullFields("behaved", 0), "expressionType", "SQL92", "subscription", "a > "), nil)
	refused("pull with an unknown expression", pullMessage, with(pullFields("behaved", 0), "expressionType", "XPATH", "subscription", "//a"), nil)

	refused("a body of 5 MiB", sendMessage, sendFields("behaved-not"), make([]byte, 5<<20))
	refused("properties of 40 KB", sendMessage, with(sendFields("behaved-not"), "properties", "k\x01"+strings.Repeat("v", 40_000)+"\x02"), body)
	for _, p := range []string{"\x01", "\x02", "\x01\x02", "noseparator", "k\x01", "\x01v\x02", "k\x01v\x02\x02\x02", strings.Repeat("\x01\x02", 1000),
		"DELAY\x01abc\x02", "DELAY\x01-5\x02", "DELAY\x0199999999999\x02", "KEYS\x01" + strings.Repeat("k ", 5000) + "\x02", "TIMER_DELAY_SEC\x01-1\x02", "UNIQ_KEY\x01\x02"} {
		answered(fmt.Sprintf("properties %.30q", p), sendMessage, with(sendFields("properties"), "properties", p), body)
	}
	for _, flag := range []string{"-1", "2147483647", "1", "768"} { // compressed, by algorithms that there are not
		answered("sysFlag "+flag, sendMessage, with(sendFields("flags"), "sysFlag", flag), body)
	}
	refused("commit to a topic that isn't", updateOffset, map[string]string{"consumerGroup": "badinput", "topic": "nowhere", "queueId": "0", "commitOffset": "1"}, nil)
	refused("commit of a negative offset", updateOffset, map[string]string{"consumerGroup": "badinput", "topic": "behaved", "queueId": "0", "commitOffset": "-1"}, nil)
	refused("commit to a negative queue", updateOffset, map[string]string{"consumerGroup": "badinput", "topic": "behaved", "queueId": "-1", "commitOffset": "1"}, nil)
	for _, offset := range []string{"-1", "1", "7", "9223372036854775807"} {
		refused("view the message at "+offset, 33, map[string]string{"offset": offset}, nil)
		refused("send back the message at "+offset, 36, map[string]string{"offset": offset, "group": "badinput", "delayLevel": "0"}, nil)
	}
	c.stillServes(t, "illegal values")

	n := connect(t, target.names)
	for _, name := range []string{"", "..", "a b", strings.Repeat("t", 100_000), "\x00", "nowhere"} {
		a, err := n.call(routeOfTopic, map[string]string{"topic": name}, nil)
		if err != nil || a.Code == success || a.Remark == "" {
			t.Errorf("route of %.30q: %+v, %v", name, a.header, err)
		}
	}
	n.stillServes(t, "illegal topics")
	if after := files(t, outside, target.dir); after != before {
		t.Errorf("files outside the data folder: before %s, after %s", before, after)
	}
}

// files lists a folder's files, but for those in one of its folders.
func files(t *testing.T, dir, but string) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == but {
			return fs.SkipDir
		}
		out = append(out, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, " ")
}
