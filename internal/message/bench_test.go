package message

import (
	"fmt"
	"testing"
)

func BenchmarkAppendRecord(b *testing.B) {
	for _, size := range []int{16, 1024, 65536} {
		b.Run(fmt.Sprintf("body=%d", size), func(b *testing.B) {
			m := sample()
			m.Body = make([]byte, size)
			buf := make([]byte, 0, m.RecordSize())
			b.SetBytes(int64(m.RecordSize()))
			b.ReportAllocs()
			for b.Loop() {
				buf = AppendRecord(buf[:0], &m)
			}
		})
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	m := sample()
	rec := AppendRecord(nil, &m)
	for _, verify := range []bool{false, true} {
		b.Run(fmt.Sprintf("crc=%v", verify), func(b *testing.B) {
			var d Message
			b.SetBytes(int64(len(rec)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeRecord(rec, &d, verify); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkProperty(b *testing.B) {
	m := sample()
	for _, key := range []string{PropertyKeys, PropertyCluster, "NONE"} {
		b.Run(key, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Property(m.Properties, key)
			}
		})
	}
}

func BenchmarkRemoveProperty(b *testing.B) {
	m := sample()
	buf := make([]byte, 0, len(m.Properties))
	b.ReportAllocs()
	for b.Loop() {
		buf = RemoveProperty(buf[:0], m.Properties, PropertyDelayLevel, PropertyTags)
	}
}

func BenchmarkSplitBatch(b *testing.B) {
	m := sample()
	var body []byte
	for range 32 {
		body = AppendBatchItem(body, 0, m.Body, m.Properties)
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for _, err := range SplitBatch(body) {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != 32 {
			b.Fatal(n)
		}
	}
}

func BenchmarkTagsCode(b *testing.B) {
	tag := []byte("TagA-of-some-length")
	b.ReportAllocs()
	for b.Loop() {
		TagsCode(tag)
	}
}
