package message

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"sync"

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

// Compressor compresses bodies, keeping its writers: one takes up to 2 MB, and longer to make than a body takes to
// compress. It is safe for concurrent use.
type Compressor struct {
	kind SysFlag
	pool sync.Pool     // of resetWriter
	zstd *zstd.Encoder // has a pool of its own
}

type resetWriter interface {
	io.WriteCloser
	Reset(io.Writer)
}

// NewCompressor returns a compressor; kind is CompressedZLIB, CompressedLZ4 or CompressedZSTD. level goes from 1 (fast)
// to 9 (small), 0 is Java's default: 5 for ZLIB and ZSTD, the fast one for LZ4.
func NewCompressor(kind SysFlag, level int) (*Compressor, error) {
	if level < 0 || level > 9 {
		return nil, fmt.Errorf("compress body: level %d is not within 0 and 9", level)
	}
	c := &Compressor{kind: kind}
	switch kind {
	case CompressedZLIB:
		c.pool.New = func() any {
			w, err := zlib.NewWriterLevel(nil, cmp.Or(level, 5))
			if err != nil {
				panic(err) // the level is legal
			}
			return w
		}
	case CompressedLZ4:
		c.pool.New = func() any {
			w := lz4.NewWriter(nil)
			if level > 0 {
				if err := w.Apply(lz4.CompressionLevelOption(lz4.CompressionLevel(1 << (8 + level)))); err != nil { // Level1 to Level9
					panic(err) // the level is legal
				}
			}
			return w
		}
	case CompressedZSTD:
		var err error
		if c.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(cmp.Or(level, 5)))); err != nil {
			return nil, fmt.Errorf("compress body: %w", err)
		}
	default:
		return nil, fmt.Errorf("compress body: unknown compression type %#x", int32(kind))
	}
	return c, nil
}

// Compress returns the compressed body.
func (c *Compressor) Compress(body []byte) ([]byte, error) {
	if c.zstd != nil {
		return c.zstd.EncodeAll(body, make([]byte, 0, len(body)/2)), nil
	}
	w := c.pool.Get().(resetWriter)
	defer c.pool.Put(w)
	var buf bytes.Buffer
	w.Reset(&buf)
	if _, err := w.Write(body); err != nil {
		return nil, fmt.Errorf("compress body: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress body: %w", err)
	}
	return buf.Bytes(), nil
}
