package message

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/apogeemq/apogee/internal/testkit"
)

// golden is a recorded store: its log from end to end, and what a Java decoder read in it.
type golden struct {
	log     []byte
	records []goldenRecord
}

// goldenRecord is a record of a manifest. A blank record has Blank and Size only.
type goldenRecord struct {
	Blank                                                      bool
	Topic, BornHost, StoreHost, OffsetMsgID, Magic, BodySha256 string
	QueueID                                                    int32
	QueueOffset, PhysicalOffset, BornTimestamp, StoreTimestamp int64
	Size, SysFlag, Flag, ReconsumeTimes, BodyLength            int32
	PreparedTransactionOffset                                  int64
	BodyCRC                                                    uint32
	Properties                                                 map[string]string
}

// readGolden reads a recorded store. Of a large file that is mostly hole, the start is all that is used.
func readGolden(t testing.TB, name string) golden {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct{ Records []goldenRecord }
	if err := json.Unmarshal(raw, &manifest); err != nil {
		t.Fatal(err)
	}
	dir := testkit.Untar(t, filepath.Join("testdata", name+".tar.gz"), t.TempDir())
	files, err := filepath.Glob(filepath.Join(dir, "store/commitlog/*"))
	if err != nil || len(files) == 0 || len(manifest.Records) == 0 {
		t.Fatalf("%s: %d files, %d records, %v", name, len(files), len(manifest.Records), err)
	}
	g := golden{records: manifest.Records}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(io.LimitReader(f, 1<<20))
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		g.log = append(g.log, b...)
	}
	return g
}

// TestGoldenStores decodes every record of the logs that Java brokers wrote, compares it with what Java's decoder
// read, and builds it again from its fields: the bytes must be Java's.
func TestGoldenStores(t *testing.T) {
	for _, name := range []string{"clean", "crash", "prop_crc", "default_config"} {
		t.Run(name, func(t *testing.T) {
			g := readGolden(t, name)
			at := 0
			for i, want := range g.records {
				var m Message
				n, err := DecodeRecord(g.log[at:], &m, true)
				if want.Blank {
					if !errors.Is(err, ErrBlank) || n != int(want.Size) {
						t.Fatalf("record %d: size %d, %v; want a blank of %d", i, n, err, want.Size)
					}
					if !bytes.Equal(AppendBlank(nil, n), g.log[at:at+BlankSize]) {
						t.Fatalf("record %d: a blank built again differs", i)
					}
					at += n
					continue
				}
				if err != nil {
					t.Fatalf("record %d at %d: %v", i, at, err)
				}
				rec := g.log[at : at+n]
				sum := sha256.Sum256(m.Body)
				got := goldenRecord{
					Topic: m.Topic, BornHost: m.BornHost.String(), StoreHost: m.StoreHost.String(), OffsetMsgID: OffsetID(m.StoreHost, m.PhysicalOffset),
					Magic: fmt.Sprintf("%08x", binary.BigEndian.Uint32(rec[4:])), BodySha256: hex.EncodeToString(sum[:]), BodyLength: int32(len(m.Body)),
					QueueID: m.QueueID, QueueOffset: m.QueueOffset, PhysicalOffset: m.PhysicalOffset, BornTimestamp: m.BornTimestamp,
					StoreTimestamp: m.StoreTimestamp, Size: m.StoreSize, SysFlag: int32(m.SysFlag), Flag: m.Flag, ReconsumeTimes: m.ReconsumeTimes,
					PreparedTransactionOffset: m.PreparedTransactionOffset, BodyCRC: m.BodyCRC, Properties: PropertyMap(m.Properties),
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Fatalf("record %d:\n got %v\nwant %v", i, got, want)
				}
				if again := AppendRecord(nil, &m); !bytes.Equal(again, rec) {
					t.Fatalf("record %d: built again it differs", i)
				}
				if p := RecordProperties(rec); !bytes.Equal(p, m.Properties) {
					t.Fatalf("record %d: RecordProperties differs", i)
				}
				h, err := DecodeHeader(rec[:96])
				if err != nil || h.Size != want.Size || h.QueueID != want.QueueID || h.QueueOffset != want.QueueOffset || h.PhysicalOffset != want.PhysicalOffset ||
					int32(h.SysFlag) != want.SysFlag || h.StoreTimestamp != want.StoreTimestamp || h.BodyCRC != want.BodyCRC {
					t.Fatalf("record %d: header %+v, %v", i, h, err)
				}
				host, physical, err := ParseOffsetID(want.OffsetMsgID)
				if err != nil || host != m.StoreHost || physical != m.PhysicalOffset {
					t.Fatalf("record %d: id %s is %v %d, %v", i, want.OffsetMsgID, host, physical, err)
				}
				at += n
			}
			// What follows the last record is what was never written, or was written for another file.
			if at < len(g.log) {
				if _, err := DecodeHeader(g.log[at:]); err == nil && !bytes.Equal(g.log[at:at+4], make([]byte, 4)) && name != "crash" {
					t.Errorf("a record that the manifest doesn't have at %d", at)
				}
			}
		})
	}
}

// TestGoldenFlips: a record with a bit flipped in any byte never passes as something of another shape, and one
// flipped in its body never passes at all.
func TestGoldenFlips(t *testing.T) {
	g := readGolden(t, "prop_crc")
	at := 0
	for i, want := range g.records {
		if want.Blank {
			at += int(want.Size)
			continue
		}
		rec := bytes.Clone(g.log[at : at+int(want.Size)])
		at += len(rec)
		bodyAt := positionBornHost + 8 + 8 + 8 + 12 + 4
		for p := range rec {
			rec[p] ^= 0x10
			var m Message
			n, err := DecodeRecord(rec, &m, true)
			inBody := p >= bodyAt && p < bodyAt+int(want.BodyLength)
			if err == nil && (n != len(rec) || inBody) {
				t.Fatalf("record %d flipped at %d passes with size %d", i, p, n)
			}
			if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrTruncated) {
				t.Fatalf("record %d flipped at %d: %v", i, p, err)
			}
			rec[p] ^= 0x10
		}
	}
}

func frameBody(f testkit.Frame) []byte {
	return f.Raw[8+int(binary.BigEndian.Uint32(f.Raw[4:])&0xFFFFFF):]
}

// TestGoldenBatches splits the batch bodies that a Java client sent, builds them again, and finds their messages in
// the pull answer, each with the batch's properties behind its own.
func TestGoldenBatches(t *testing.T) {
	var sent []BatchItem
	batches := 0
	for _, f := range testkit.Frames(t, "testdata/send_batch.jsonl") {
		if f.Header.Code == 320 {
			batches++
			body := frameBody(f)
			var again []byte
			for item, err := range SplitBatch(body) {
				if err != nil {
					t.Fatal(err)
				}
				sent = append(sent, item)
				again = AppendBatchItem(again, item.Flag, item.Body, item.Properties)
			}
			if !bytes.Equal(again, body) {
				t.Errorf("batch %d: built again it differs", batches)
			}
		}
		if f.Header.ExtFields["maxOffset"] == "" || len(frameBody(f)) == 0 {
			continue
		}
		stored := pulled(t, frameBody(f))
		if batches != 2 || len(stored) != len(sent) {
			t.Fatalf("%d messages stored of %d sent in %d batches", len(stored), len(sent), batches)
		}
		for i, m := range stored {
			if !bytes.Equal(m.Body, sent[i].Body) || m.Flag != sent[i].Flag || !bytes.HasPrefix(m.Properties, sent[i].Properties) {
				t.Errorf("message %d: stored %q with %q, sent %q with %q", i, m.Body, m.Properties, sent[i].Body, sent[i].Properties)
			}
			if n := bytes.Count(m.Properties, []byte(PropertyUniqueKey+"\x01")); n != 2 {
				t.Errorf("message %d: %d unique keys", i, n)
			}
			last := m.Properties[bytes.LastIndex(m.Properties, []byte(PropertyUniqueKey+"\x01"))+len(PropertyUniqueKey)+1:]
			if got, ok := Property(m.Properties, PropertyUniqueKey); !ok || !bytes.HasPrefix(last, got) {
				t.Errorf("message %d: unique key %q, the batch's is at the start of %q", i, got, last)
			}
		}
		return
	}
	t.Fatal("no pull answer in the recording")
}

// pulled decodes the records of a pull answer and builds each again.
func pulled(t *testing.T, body []byte) []Message {
	t.Helper()
	var out []Message
	for len(body) > 0 {
		var m Message
		n, err := DecodeRecord(body, &m, true)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(AppendRecord(nil, &m), body[:n]) {
			t.Fatalf("record %d: built again it differs", len(out))
		}
		out, body = append(out, m), body[n:]
	}
	return out
}

// TestGoldenCompression decompresses what a Java client compressed, as it was sent and as it was stored.
func TestGoldenCompression(t *testing.T) {
	kinds := map[SysFlag]int{}
	check := func(flag SysFlag, body []byte) {
		t.Helper()
		plain, err := Decompress(flag, body, 1<<20)
		if err != nil || len(plain) != 7000 || len(body) >= 7000 {
			t.Errorf("%#x: %d bytes from %d, %v", int(flag), len(plain), len(body), err)
			return
		}
		if _, err := Decompress(flag, body, 6999); err == nil {
			t.Errorf("%#x: more than the limit came out", int(flag))
		}
		if exact, err := Decompress(flag, body, 7000); err != nil || !bytes.Equal(exact, plain) {
			t.Errorf("%#x: with the exact limit: %v", int(flag), err)
		}
		kinds[flag.Compression()]++
	}
	for _, f := range testkit.Frames(t, "testdata/send_compressed.jsonl") {
		switch {
		case f.Header.Code == 310:
			flag, err := strconv.Atoi(f.Header.ExtFields["f"])
			if err != nil {
				t.Fatal(err)
			}
			check(SysFlag(flag), frameBody(f))
		case f.Header.ExtFields["maxOffset"] != "" && len(frameBody(f)) > 0:
			for _, m := range pulled(t, frameBody(f)) {
				check(m.SysFlag, m.Body)
			}
		}
	}
	for _, k := range []SysFlag{CompressedZLIB, CompressedLZ4, CompressedZSTD} {
		if kinds[k] != 2 {
			t.Errorf("%#x was met %d times", int(k), kinds[k])
		}
	}
	// Old clients name no type: that is ZLIB.
	z, err := compress(CompressedZLIB, []byte(strings.Repeat("old ", 100)))
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := Decompress(Compressed, z, 1000); err != nil || len(plain) != 400 {
		t.Errorf("%d bytes, %v", len(plain), err)
	}
	if plain, err := Decompress(CompressedZSTD, z, 1); err != nil || !bytes.Equal(plain, z) {
		t.Errorf("a body without the flag: %v", err)
	}
}
