package message

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestVector checks the record that was computed with the JDK.
func TestVector(t *testing.T) {
	const want = "00000065DAA320A758932AAC0000000300000000000000000000000700000000000004000000000" +
		"00000018BCFE568007F000001000013880000018BCFE568010A00000200002A9F00000000000000000000000000000002" +
		"686901540007544147530161" + "02"
	m := Message{
		Topic: "T", QueueID: 3, QueueOffset: 7, PhysicalOffset: 1024, Body: []byte("hi"), Properties: []byte("TAGS\x01a\x02"),
		BornHost: netip.MustParseAddrPort("127.0.0.1:5000"), BornTimestamp: 1700000000000,
		StoreHost: netip.MustParseAddrPort("10.0.0.2:10911"), StoreTimestamp: 1700000000001,
	}
	rec := AppendRecord(nil, &m)
	if got := strings.ToUpper(hex.EncodeToString(rec)); got != want {
		t.Errorf("record\n got %s\nwant %s", got, want)
	}
	if id := OffsetID(m.StoreHost, 1024); id != "0A00000200002A9F0000000000000400" {
		t.Errorf("offset id %s", id)
	}
	host, at, err := ParseOffsetID("0A00000200002A9F0000000000000400")
	if err != nil || host != m.StoreHost || at != 1024 {
		t.Errorf("parsed %v %d %v", host, at, err)
	}
	for _, id := range []string{"", "0A", strings.Repeat("Z", 32)} {
		if _, _, err := ParseOffsetID(id); err == nil {
			t.Errorf("id %q was taken", id)
		}
	}
}

func TestHashes(t *testing.T) {
	for s, want := range map[string]int32{"TagA": 2598919, "a": 97, "订单": 1129459, "😀": 1772899, "": 0} {
		if got := HashCode(s); got != want {
			t.Errorf("HashCode(%q) = %d, want %d", s, got, want)
		}
		if got := TagsCode([]byte(s)); got != int64(want) {
			t.Errorf("TagsCode(%q) = %d, want %d", s, got, want)
		}
	}
	if got := IndexHash("TopicTest#K1"); got != 2745032 {
		t.Errorf("IndexHash = %d", got)
	}
	if got := IndexHash("polygenelubricants"); got != 0 { // its Java hash code is the smallest int
		t.Errorf("IndexHash of the smallest hash = %d", got)
	}
}

func TestProperties(t *testing.T) {
	p := []byte("A\x011\x02B\x012\x02A\x013\x02empty\x01\x02\x01x\x02C\x01last")
	for key, want := range map[string]string{"A": "3", "B": "2", "C": "last"} {
		if got, ok := Property(p, key); !ok || string(got) != want {
			t.Errorf("%s = %q, %v", key, got, ok)
		}
	}
	for _, key := range []string{"empty", "", "D", "AB"} {
		if _, ok := Property(p, key); ok {
			t.Errorf("%q found", key)
		}
	}
	if got := RemoveProperty(nil, p, "A"); string(got) != "B\x012\x02C\x01last\x02" {
		t.Errorf("removed: %q", got)
	}
	if n := testing.AllocsPerRun(100, func() { Property(p, "B") }); n != 0 {
		t.Errorf("Property allocates %v times", n)
	}
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		host := rapid.Custom(func(t *rapid.T) netip.AddrPort {
			ip := netip.AddrFrom4([4]byte{10, 1, 2, byte(rapid.IntRange(0, 255).Draw(t, "b"))})
			if rapid.Bool().Draw(t, "v6") {
				ip = netip.MustParseAddr("2001:db8::7")
			}
			return netip.AddrPortFrom(ip, rapid.Uint16().Draw(t, "port"))
		})
		m := Message{
			Topic: rapid.StringMatching(`[%a-zA-Z0-9_-]{1,255}`).Draw(t, "topic"), QueueID: rapid.Int32().Draw(t, "q"),
			Flag: rapid.Int32().Draw(t, "f"), BornTimestamp: rapid.Int64().Draw(t, "bt"), BornHost: host.Draw(t, "bh"),
			StoreTimestamp: rapid.Int64().Draw(t, "st"), StoreHost: host.Draw(t, "sh"), ReconsumeTimes: rapid.Int32().Draw(t, "rt"),
			Body: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "body"), Properties: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "props"),
		}
		rec := AppendRecord(nil, &m)
		if len(rec) != m.RecordSize() {
			t.Fatalf("%d bytes, RecordSize says %d", len(rec), m.RecordSize())
		}
		SetQueueOffset(rec, 11)
		SetPhysicalOffset(rec, 12)
		SetStoreTimestamp(rec, 13)
		var d Message
		n, err := DecodeRecord(append(rec, "behind"...), &d, true)
		if err != nil || n != len(rec) {
			t.Fatalf("%d, %v", n, err)
		}
		if d.QueueOffset != 11 || d.PhysicalOffset != 12 || d.StoreTimestamp != 13 || d.Topic != m.Topic || d.BornHost != m.BornHost || d.StoreHost != m.StoreHost ||
			!bytes.Equal(d.Body, m.Body) || !bytes.Equal(d.Properties, m.Properties) || d.BornTimestamp != m.BornTimestamp || d.ReconsumeTimes != m.ReconsumeTimes {
			t.Fatalf("got %+v\nwant %+v", d, m)
		}
		h, err := DecodeHeader(rec)
		if err != nil || int(h.Size) != n || h.StoreTimestamp != 13 {
			t.Fatalf("header %+v, %v", h, err)
		}
		for cut := range len(rec) {
			if _, err := DecodeRecord(rec[:cut], &d, false); err == nil {
				t.Fatalf("decoded from %d of %d bytes", cut, len(rec))
			}
		}
		if len(m.Body) > 0 {
			rec[len(rec)-len(m.Properties)-2-len(m.Topic)-2] ^= 1 // the body's last byte, or near it
			if _, err := DecodeRecord(rec, &d, true); err == nil && len(m.Topic) <= 127 {
				t.Fatal("a flipped body passed its CRC")
			}
		}
	})
}

func TestBatch(t *testing.T) {
	body := AppendBatchItem(nil, 1, []byte("one"), []byte("K\x01v\x02"))
	body = AppendBatchItem(body, 2, []byte("two"), nil)
	var got []string
	for item, err := range SplitBatch(body) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d %s %q", item.Flag, item.Body, item.Properties))
	}
	if fmt.Sprint(got) != `[1 one "K\x01v\x02" 2 two ""]` {
		t.Fatal(got)
	}
	for cut := 1; cut < len(body); cut++ {
		var last error
		n := 0
		for _, err := range SplitBatch(body[:cut]) {
			last = err
			n++
		}
		if last == nil && n != 1 {
			t.Fatalf("cut at %d: no error", cut)
		}
	}
}

func TestCompression(t *testing.T) {
	body := bytes.Repeat([]byte("compress me "), 1000)
	for _, kind := range []SysFlag{CompressedZLIB, CompressedLZ4, CompressedZSTD} {
		z, err := compress(kind, body)
		if err != nil || len(z) >= len(body) {
			t.Fatalf("%x: %d bytes, %v", kind, len(z), err)
		}
		back, err := Decompress(Compressed|kind, z, 1<<20)
		if err != nil || !bytes.Equal(back, body) {
			t.Fatalf("%x: %v", kind, err)
		}
		if _, err := Decompress(Compressed|kind, z, 100); err == nil {
			t.Fatalf("%x: limit ignored", kind)
		}
		if _, err := Decompress(Compressed|kind, z[:len(z)/2], 1<<20); err == nil {
			t.Fatalf("%x: half a body decompressed", kind)
		}
	}
	if _, err := Decompress(Compressed|0x500, body, 1<<20); err == nil {
		t.Error("unknown type taken")
	}
}

func TestUniqueIDs(t *testing.T) {
	u := NewUniqueIDs(netip.MustParseAddr("10.0.0.2"), 77, 5)
	now := time.Date(2026, 12, 1, 0, 0, 1, 0, time.UTC)
	a, b := u.Next(now), u.Next(now)
	if len(a) != 32 || a == b || a[:8] != "0A000002" || a[20:28] != "000003E8" {
		t.Fatalf("%s %s", a, b)
	}
}

func FuzzProperties(f *testing.F) {
	f.Add([]byte("A\x01b\x02"), "A")
	f.Fuzz(func(t *testing.T, p []byte, key string) {
		v, ok := Property(p, key)
		if strings.ContainsAny(key, "\x01\x02") || key == "" {
			return
		}
		want, wantOK := PropertyMap(p)[key]
		if ok != wantOK || string(v) != want {
			t.Fatalf("Property %q %v, map %q %v", v, ok, want, wantOK)
		}
	})
}

func FuzzSplitBatch(f *testing.F) {
	f.Add(AppendBatchItem(nil, 1, []byte("one"), []byte("K\x01v\x02")))
	f.Fuzz(func(t *testing.T, b []byte) {
		var again []byte
		for item, err := range SplitBatch(b) {
			if err != nil {
				return
			}
			again = AppendBatchItem(again, item.Flag, item.Body, item.Properties)
		}
		if len(again) != len(b) {
			t.Fatalf("%d bytes from %d", len(again), len(b))
		}
	})
}

func compress(kind SysFlag, body []byte) ([]byte, error) {
	c, err := NewCompressor(kind, 0)
	if err != nil {
		return nil, err
	}
	return c.Compress(body)
}

// TestACompressorIsUsedByMany at all levels, and its writers again and again.
func TestACompressorIsUsedByMany(t *testing.T) {
	for _, kind := range []SysFlag{CompressedZLIB, CompressedLZ4, CompressedZSTD} {
		for level := range 10 {
			c, err := NewCompressor(kind, level)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					for i := range 5 {
						body := bytes.Repeat(fmt.Appendf(nil, "line %d of %d\n", i, g), 500)
						z, err := c.Compress(body)
						if err != nil || len(z) > len(body)/4 {
							t.Errorf("kind %#x level %d: %d bytes of %d, %v", kind, level, len(z), len(body), err)
						}
						if got, err := Decompress(Compressed|kind, z, 1<<20); err != nil || !bytes.Equal(got, body) {
							t.Errorf("kind %#x level %d: %d bytes back, %v", kind, level, len(got), err)
						}
					}
				})
			}
			wg.Wait()
		}
		for _, level := range []int{-1, 10} {
			if _, err := NewCompressor(kind, level); err == nil {
				t.Errorf("level %d was taken", level)
			}
		}
	}
	if _, err := NewCompressor(0, 0); err == nil {
		t.Error("no kind was taken")
	}
}
