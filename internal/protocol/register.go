package protocol

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/apogeemq/apogee/internal/fastjson"
)

// RegisterBrokerBody is the body of REGISTER_BROKER.
type RegisterBrokerBody struct {
	FilterServerList []string           `json:"filterServerList"`
	TopicConfig      TopicConfigWrapper `json:"topicConfigSerializeWrapper"`
}

// maxRegisterBody bounds a decompressed registration: 64 MiB hold about 300,000 topics.
const maxRegisterBody = 64 << 20

// DecodeRegisterBroker reads the body of a registration as a broker of the given version sent it: plain or
// compressed (told by the header, or by the zlib magic that a 5.3.3 broker sends although its header denies it),
// or, below version 37, the bare topic table.
func DecodeRegisterBroker(body []byte, compressed bool, version int32) (RegisterBrokerBody, error) {
	b := RegisterBrokerBody{TopicConfig: TopicConfigWrapper{TopicConfigTable: map[string]TopicConfig{}}}
	if len(body) == 0 {
		return b, nil
	}
	if version < VersionV3_0_11 {
		err := fastjson.Unmarshal(body, &b.TopicConfig)
		return b, err
	}
	if compressed || len(body) > 2 && body[0] == 0x78 && binary.BigEndian.Uint16(body)%31 == 0 {
		return decodeCompressedRegister(body, version)
	}
	err := fastjson.Unmarshal(body, &b)
	return b, err
}

// The compressed body is a zlib stream of: length + DataVersion as JSON; count of topics, then each as length +
// text "name read write perm filterType attributes"; length + filter servers as JSON; from version 5.0.0 on a
// count of mappings, each length + JSON. Lengths and counts are 4 bytes.
func decodeCompressedRegister(body []byte, version int32) (RegisterBrokerBody, error) {
	b := RegisterBrokerBody{TopicConfig: TopicConfigWrapper{TopicConfigTable: map[string]TopicConfig{}}}
	z, err := zlib.NewReader(bytes.NewReader(body))
	if err != nil {
		return b, fmt.Errorf("registration body: %w", err)
	}
	defer z.Close()
	raw, err := io.ReadAll(io.LimitReader(z, maxRegisterBody+1))
	if err != nil {
		return b, fmt.Errorf("registration body: %w", err)
	}
	if len(raw) > maxRegisterBody {
		return b, fmt.Errorf("registration body is larger than %d bytes when decompressed", maxRegisterBody)
	}
	word := func() (int, error) {
		if len(raw) < 4 {
			return 0, fmt.Errorf("registration body: cut off")
		}
		n := int(int32(binary.BigEndian.Uint32(raw)))
		raw = raw[4:]
		if n < 0 || n > len(raw) {
			return 0, fmt.Errorf("registration body: length %d with %d bytes left", n, len(raw))
		}
		return n, nil
	}
	text := func() ([]byte, error) {
		n, err := word()
		if err != nil {
			return nil, err
		}
		t := raw[:n]
		raw = raw[n:]
		return t, nil
	}
	t, err := text()
	if err != nil {
		return b, err
	}
	if err := fastjson.Unmarshal(t, &b.TopicConfig.DataVersion); err != nil {
		return b, err
	}
	n, err := word()
	if err != nil {
		return b, err
	}
	for range n {
		t, err := text()
		if err != nil {
			return b, err
		}
		c, err := parseTopicText(string(t))
		if err != nil {
			return b, err
		}
		b.TopicConfig.TopicConfigTable[c.TopicName] = c
	}
	if t, err = text(); err != nil {
		return b, err
	}
	if err := fastjson.Unmarshal(t, &b.FilterServerList); err != nil {
		return b, err
	}
	if version < VersionV5_0_0 || len(raw) == 0 {
		return b, nil
	}
	if n, err = word(); err != nil {
		return b, err
	}
	for range n {
		t, err := text()
		if err != nil {
			return b, err
		}
		var info struct{ Topic string }
		if err := fastjson.Unmarshal(t, &info); err != nil {
			return b, err
		}
		if b.TopicConfig.TopicQueueMappingInfo == nil {
			b.TopicConfig.TopicQueueMappingInfo = map[string]json.RawMessage{}
		}
		b.TopicConfig.TopicQueueMappingInfo[info.Topic] = append(json.RawMessage(nil), t...)
	}
	return b, nil
}

func parseTopicText(s string) (TopicConfig, error) {
	f := strings.SplitN(s, " ", 6)
	if len(f) < 5 {
		return TopicConfig{}, fmt.Errorf("registration body: topic %q has %d fields, want at least 5", s, len(f))
	}
	c := TopicConfig{TopicName: f[0], TopicFilterType: f[4], Attributes: map[string]string{}}
	for i, dst := range []*int32{&c.ReadQueueNums, &c.WriteQueueNums, &c.Perm} {
		n, err := strconv.ParseInt(f[i+1], 10, 32)
		if err != nil {
			return c, fmt.Errorf("registration body: topic %q: %w", s, err)
		}
		*dst = int32(n)
	}
	if len(f) == 6 && f[5] != "" {
		if err := fastjson.Unmarshal([]byte(f[5]), &c.Attributes); err != nil {
			return c, fmt.Errorf("registration body: topic %q: %w", s, err)
		}
	}
	return c, nil
}
