package message

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"
)

// sample is a message with everything in it.
func sample() Message {
	return Message{
		Topic: "TopicTest", QueueID: 3, Flag: 7, SysFlag: Compressed | CompressedZLIB, BornTimestamp: 1_700_000_000_000, BornHost: netip.MustParseAddrPort("10.0.0.1:40000"),
		StoreTimestamp: 1_700_000_000_001, StoreHost: netip.MustParseAddrPort("10.0.0.2:10911"), ReconsumeTimes: 2, PreparedTransactionOffset: 9,
		QueueOffset: 5, PhysicalOffset: 1024, Body: bytes.Repeat([]byte("0123456789abcdef"), 64),
		Properties: []byte("KEYS\x01order-1 order-2\x02TAGS\x01TagA\x02WAIT\x01true\x02UNIQ_KEY\x010123456789ABCDEF0123456789ABCDEF\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"),
	}
}

// TestShapes: what makes a record longer, and how much.
func TestShapes(t *testing.T) {
	v6 := netip.MustParseAddrPort("[2001:db8::1]:1")
	mapped := netip.MustParseAddrPort("[::ffff:10.0.0.1]:1")
	for _, c := range []struct {
		name  string
		m     Message
		size  int
		magic uint32
		flag  SysFlag
	}{
		{"empty", Message{}, 91, magicV1, 0},
		{"born IPv6", Message{BornHost: v6}, 103, magicV1, BornHostV6},
		{"store IPv6", Message{StoreHost: v6}, 103, magicV1, StoreHostV6},
		{"both IPv6", Message{BornHost: v6, StoreHost: v6}, 115, magicV1, BornHostV6 | StoreHostV6},
		{"IPv4 in IPv6", Message{BornHost: mapped, StoreHost: mapped}, 91, magicV1, 0},
		{"stale host bits", Message{SysFlag: BornHostV6 | StoreHostV6 | Commit}, 91, magicV1, Commit},
		{"127 of topic", Message{Topic: strings.Repeat("t", 127)}, 218, magicV1, 0},
		{"128 of topic", Message{Topic: strings.Repeat("t", 128)}, 220, magicV2, 0},
		{"255 of topic", Message{Topic: strings.Repeat("t", MaxTopic)}, 347, magicV2, 0},
		{"all properties", Message{Properties: make([]byte, MaxProperties)}, 91 + MaxProperties, magicV1, 0},
	} {
		rec := AppendRecord([]byte("before"), &c.m)[6:]
		if len(rec) != c.size || c.m.RecordSize() != c.size || binary.BigEndian.Uint32(rec[4:]) != c.magic || recordSysFlag(rec) != c.flag {
			t.Errorf("%s: %d bytes, magic %x, flag %x", c.name, len(rec), rec[4:8], recordSysFlag(rec))
		}
		SetStoreTimestamp(rec, 42)
		var m Message
		if n, err := DecodeRecord(rec, &m, true); err != nil || n != c.size || m.StoreTimestamp != 42 || m.Topic != c.m.Topic || len(m.Properties) != len(c.m.Properties) {
			t.Errorf("%s: %d, %v, %+v", c.name, n, err, m)
		}
		if p := RecordProperties(rec); len(p) != len(c.m.Properties) {
			t.Errorf("%s: %d bytes of properties", c.name, len(p))
		}
	}
}

// TestDamagedRecords: what is no record, and what Java still takes for one.
func TestDamagedRecords(t *testing.T) {
	be := binary.BigEndian
	base := Message{Topic: "T", Body: []byte("body"), Properties: []byte("A\x01b\x02")}
	size := base.RecordSize()
	propertiesAt := size - len(base.Properties) - 2
	for _, c := range []struct {
		name   string
		change func(b []byte) []byte
		want   error
	}{
		{"as it is", func(b []byte) []byte { return b }, nil},
		{"nothing", func(b []byte) []byte { return nil }, ErrTruncated},
		{"7 bytes", func(b []byte) []byte { return b[:7] }, ErrTruncated},
		{"zeros, as behind the last record", func(b []byte) []byte { clear(b); return b }, ErrCorrupt},
		{"one byte short", func(b []byte) []byte { return b[:size-1] }, ErrTruncated},
		{"size 0", func(b []byte) []byte { be.PutUint32(b, 0); return b }, ErrCorrupt},
		{"size negative", func(b []byte) []byte { be.PutUint32(b, 1<<31); return b }, ErrCorrupt},
		{"size 90", func(b []byte) []byte { be.PutUint32(b, 90); return b }, ErrCorrupt},
		{"size too large by one", func(b []byte) []byte { be.PutUint32(b, uint32(size+1)); return append(b, 0) }, ErrCorrupt},
		{"size too small by one", func(b []byte) []byte { be.PutUint32(b, uint32(size-1)); return b }, ErrCorrupt},
		{"wrong magic", func(b []byte) []byte { be.PutUint32(b[4:], 1); return b }, ErrCorrupt},
		{"version 2 magic on version 1", func(b []byte) []byte { be.PutUint32(b[4:], magicV2); return b }, ErrCorrupt},
		{"blank magic", func(b []byte) []byte { be.PutUint32(b[4:], blankMagic); return b }, ErrBlank},
		{"wrong CRC", func(b []byte) []byte { b[8] ^= 1; return b }, ErrCorrupt},
		{"hosts said to be IPv6", func(b []byte) []byte { b[positionSysFlag+3] |= 0x30; return b }, ErrCorrupt},
		{"negative body length", func(b []byte) []byte { be.PutUint32(b[84:], 1<<31); return b }, ErrCorrupt},
		{"huge body length", func(b []byte) []byte { be.PutUint32(b[84:], 1<<30); return b }, ErrCorrupt},
		{"long topic length", func(b []byte) []byte { b[88+len(base.Body)] = 0xFF; return b }, ErrCorrupt},
		{"long properties length", func(b []byte) []byte { be.PutUint16(b[propertiesAt:], MaxProperties); return b }, ErrCorrupt},
		{"negative properties length, with properties", func(b []byte) []byte { be.PutUint16(b[propertiesAt:], 1<<15); return b }, ErrCorrupt},
		{"negative properties length, without", func(b []byte) []byte {
			b = b[:propertiesAt+2]
			be.PutUint16(b[propertiesAt:], 1<<15)
			be.PutUint32(b, uint32(len(b)))
			return b
		}, nil},
	} {
		b := c.change(AppendRecord(nil, &base))
		var m Message
		n, err := DecodeRecord(b, &m, true)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err == nil && (n != len(b) || len(RecordProperties(b)) != len(m.Properties)) {
			t.Errorf("%s: size %d of %d, properties %q and %q", c.name, n, len(b), RecordProperties(b), m.Properties)
		}
	}
}

// TestRecordsAreViews: a decoded message points into the record, and appending to one of its fields can't reach the
// next.
func TestRecordsAreViews(t *testing.T) {
	m := sample()
	rec := AppendRecord(nil, &m)
	clean := bytes.Clone(rec)
	var d Message
	if _, err := DecodeRecord(rec, &d, true); err != nil {
		t.Fatal(err)
	}
	_ = append(d.Body, "over"...)
	_ = append(d.Properties, "over"...)
	if !bytes.Equal(rec, clean) {
		t.Error("an append wrote into the record")
	}
	d.Body[0] ^= 1
	if bytes.Equal(rec, clean) {
		t.Error("the body is a copy")
	}
}

func TestOffsetIDs(t *testing.T) {
	for _, c := range []struct {
		host string
		at   int64
		id   string
	}{
		{"127.0.0.1:10911", 0, "7F00000100002A9F0000000000000000"},
		{"255.255.255.255:65535", 1<<63 - 1, "FFFFFFFF0000FFFF7FFFFFFFFFFFFFFF"},
		{"[2001:db8::1]:10911", 1024, "20010DB800000000000000000000000100002A9F0000000000000400"},
	} {
		host := netip.MustParseAddrPort(c.host)
		if id := OffsetID(host, c.at); id != c.id {
			t.Errorf("%s %d: %s", c.host, c.at, id)
		}
		for _, id := range []string{c.id, strings.ToLower(c.id)} {
			if h, at, err := ParseOffsetID(id); err != nil || h != host || at != c.at {
				t.Errorf("%s: %v %d %v", id, h, at, err)
			}
		}
	}
}

// TestHashModel compares with Java's definition: 31·h + c over UTF-16 code units.
func TestHashModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-zA-Z]{0,40}`), rapid.StringMatching(`[a-c]{3}[ä😀訂]{1,12}`)).Draw(t, "s")
		var want int32
		for _, c := range utf16.Encode([]rune(s)) {
			want = 31*want + int32(c)
		}
		if got := HashCode(s); got != want {
			t.Errorf("HashCode(%q) = %d, want %d", s, got, want)
		}
		if got := TagsCode([]byte(s)); got != int64(want) {
			t.Errorf("TagsCode(%q) = %d, want %d", s, got, want)
		}
		if got := IndexHash(s); got < 0 || got != want && got != -want && want != -1<<31 {
			t.Errorf("IndexHash(%q) = %d of %d", s, got, want)
		}
	})
}

// TestPropertyModel compares the searches in place with a list of pairs.
func TestPropertyModel(t *testing.T) {
	type pair struct{ k, v string }
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SampledFrom([]string{"A", "B", "AB", "KEYS", "TAGS"})
		pairs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) pair {
			return pair{key.Draw(t, "k"), rapid.StringMatching(`[a-z \x01]{0,5}`).Draw(t, "v")}
		}), 0, 8).Draw(t, "pairs")
		var props []byte
		model := map[string]string{}
		for _, p := range pairs {
			props = AppendProperty(props, p.k, p.v)
			if p.v != "" {
				model[p.k] = p.v
			}
		}
		if len(props) > 0 && rapid.Bool().Draw(t, "without the last separator") {
			props = props[:len(props)-1]
		}
		for _, k := range []string{"A", "B", "AB", "KEYS", "TAGS", "NONE"} {
			got, ok := Property(props, k)
			want, wantOK := model[k]
			if ok != wantOK || string(got) != want {
				t.Fatalf("%s in %q: %q %v, want %q %v", k, props, got, ok, want, wantOK)
			}
		}
		gone := []string{key.Draw(t, "gone"), key.Draw(t, "gone too")}
		left := RemoveProperty([]byte("x\x01y\x02"), props, gone...)
		for _, k := range gone {
			delete(model, k)
		}
		model["x"] = "y"
		got := PropertyMap(left)
		if len(got) != len(model) || left[len(left)-1] != PropertySeparator {
			t.Fatalf("without %v: %q, want %v", gone, left, model)
		}
		for k, v := range model {
			if got[k] != v {
				t.Fatalf("without %v: %s is %q, want %q", gone, k, got[k], v)
			}
		}
	})
}

// TestHotPathAllocates keeps the way of a message through a broker free of garbage.
func TestHotPathAllocates(t *testing.T) {
	m := sample()
	v6 := sample()
	v6.BornHost, v6.StoreHost = netip.MustParseAddrPort("[2001:db8::1]:1"), netip.MustParseAddrPort("[2001:db8::2]:2")
	rec := AppendRecord(nil, &m)
	buf := make([]byte, 0, 4096)
	batch := AppendBatchItem(AppendBatchItem(nil, 0, m.Body, m.Properties), 0, m.Body, m.Properties)
	var d Message
	for _, c := range []struct {
		name string
		most float64
		f    func()
	}{
		{"AppendRecord", 0, func() { buf = AppendRecord(buf[:0], &m) }},
		{"AppendRecord IPv6", 0, func() { buf = AppendRecord(buf[:0], &v6) }},
		{"patching", 0, func() { SetQueueOffset(rec, 1); SetPhysicalOffset(rec, 2); SetStoreTimestamp(rec, 3) }},
		{"DecodeHeader", 0, func() { _, _ = DecodeHeader(rec) }},
		{"DecodeRecord, but for its topic", 1, func() { _, _ = DecodeRecord(rec, &d, true) }},
		{"RecordProperties", 0, func() { RecordProperties(rec) }},
		{"Property", 0, func() { Property(m.Properties, PropertyTags) }},
		{"Pairs", 0, func() {
			for k, v := range Pairs(m.Properties) {
				_, _ = k, v
			}
		}},
		{"AppendProperty", 0, func() { buf = AppendProperty(buf[:0], PropertyTags, "TagA") }},
		{"RemoveProperty", 0, func() { buf = RemoveProperty(buf[:0], m.Properties, PropertyTags, PropertyKeys) }},
		{"HashCode", 0, func() { HashCode("TopicTest#order-1") }},
		{"TagsCode", 0, func() { TagsCode([]byte("TagA")) }},
		{"SplitBatch", 0, func() {
			for item, err := range SplitBatch(batch) {
				_, _ = item, err
			}
		}},
	} {
		if n := testing.AllocsPerRun(100, c.f); n > c.most {
			t.Errorf("%s allocates %v times", c.name, n)
		}
	}
}

// FuzzDecodeRecord: no bytes make the decoders read outside them, and what passes is built again to the same bytes
// unless it was written in a way that AppendRecord doesn't write.
func FuzzDecodeRecord(f *testing.F) {
	m := sample()
	f.Add(AppendRecord(nil, &m))
	f.Add(AppendRecord(nil, &Message{Topic: "T", Body: []byte("b"), Properties: []byte("A\x01b\x02")}))
	f.Add(AppendRecord(nil, &Message{Topic: strings.Repeat("t", 200), BornHost: netip.MustParseAddrPort("[2001:db8::1]:1"), StoreHost: netip.MustParseAddrPort("[::1]:2")}))
	f.Add(AppendBlank(nil, 100))
	negative := AppendRecord(nil, &Message{Topic: "T"})
	negative[len(negative)-2] = 0x80
	f.Add(negative)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Message
		n, err := DecodeRecord(b, &m, true)
		if err != nil {
			return
		}
		if n < fixedSize || n > len(b) || int32(n) != m.StoreSize {
			t.Fatalf("size %d of %d bytes", n, len(b))
		}
		if p := RecordProperties(b[:n]); !bytes.Equal(p, m.Properties) {
			t.Fatalf("properties %q and %q", p, m.Properties)
		}
		if h, err := DecodeHeader(b); err != nil || int(h.Size) != n {
			t.Fatalf("header %+v, %v", h, err)
		}
		again := AppendRecord(nil, &m)
		var d Message
		if k, err := DecodeRecord(again, &d, true); err != nil || k != len(again) {
			t.Fatalf("built again: %d, %v", k, err)
		}
		if len(again) == n && (d.Topic != m.Topic || !bytes.Equal(d.Body, m.Body) || !bytes.Equal(d.Properties, m.Properties) || d.BornTimestamp != m.BornTimestamp) {
			t.Fatalf("built again: %+v, was %+v", d, m)
		}
	})
}
