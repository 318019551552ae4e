package message

import (
	"bytes"
	"cmp"
	"fmt"
	"io"

	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// maxWindow bounds the memory, in bytes, that a zstd body makes its reader take, whatever limit says: encoders ask
// for up to 8 MiB below their ultra levels, and Java's streams ask for it even when the body is small.
const maxWindow = 16 << 20

// Decompress returns the body as the producer had it. A body without the Compressed flag is returned as it is.
// limit bounds the result in bytes, against bodies made to explode.
func Decompress(flag SysFlag, body []byte, limit int) ([]byte, error) {
	if flag&Compressed == 0 {
		return body, nil
	}
	var r io.Reader
	switch kind := flag.Compression(); kind {
	case 0, CompressedZLIB:
		z, err := zlib.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, fmt.Errorf("decompress zlib body of %d bytes: %w", len(body), err)
		}
		defer z.Close()
		r = z
	case CompressedLZ4:
		r = lz4.NewReader(bytes.NewReader(body))
	case CompressedZSTD:
		z, err := zstd.NewReader(bytes.NewReader(body), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("decompress zstd body of %d bytes: %w", len(body), err)
		}
		defer z.Close()
		r = z
	default:
		return nil, fmt.Errorf("decompress body: unknown compression type %#x", int32(kind))
	}
	out, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("decompress body of %d bytes: %w", len(body), err)
	}
	if len(out) > limit {
		return nil, fmt.Errorf("decompress body of %d bytes: larger than %d bytes", len(body), limit)
	}
	return out, nil
}

// Compress compresses a body; kind is CompressedZLIB, CompressedLZ4 or CompressedZSTD. level goes from 1 (fast) to 9
// (small), 0 is Java's default: 5 for ZLIB and ZSTD, the fast one for LZ4.
func Compress(kind SysFlag, level int, body []byte) ([]byte, error) {
	if level < 0 || level > 9 {
		return nil, fmt.Errorf("compress body: level %d is not within 0 and 9", level)
	}
	var buf bytes.Buffer
	var w io.WriteCloser
	var err error
	switch kind {
	case CompressedZLIB:
		w, err = zlib.NewWriterLevel(&buf, cmp.Or(level, 5))
	case CompressedLZ4:
		z := lz4.NewWriter(&buf)
		if level > 0 {
			err = z.Apply(lz4.CompressionLevelOption(lz4.CompressionLevel(1 << (8 + level)))) // Level1 to Level9
		}
		w = z
	case CompressedZSTD:
		w, err = zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(cmp.Or(level, 5))))
	default:
		return nil, fmt.Errorf("compress body: unknown compression type %#x", int32(kind))
	}
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(body); err != nil {
		return nil, fmt.Errorf("compress body: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress body: %w", err)
	}
	return buf.Bytes(), nil
}
