package client_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/apogeemq/apogee/client"
)

// BenchmarkSend sends 1 KiB to a server in the same process, whose work is in the figures.
func BenchmarkSend(b *testing.B) {
	for name, opts := range map[string][]client.ProducerOption{"plain": {client.WithCompression(client.NoCompression, 0, 0)}} {
		body := make([]byte, 1024)
		b.Run("one at a time/"+name, func(b *testing.B) {
			p := newProducer(b, newClient(b, nameServer(b)), opts...)
			warm(b, p, "Bench")
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Send(context.Background(), &client.Message{Topic: "Bench", Body: body}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("async/"+name, func(b *testing.B) {
			p := newProducer(b, newClient(b, nameServer(b)), opts...)
			warm(b, p, "Bench")
			b.ReportAllocs()
			for b.Loop() {
				p.SendAsync(context.Background(), &client.Message{Topic: "Bench", Body: body}, func(_ *client.SendResult, err error) {
					if err != nil {
						b.Error(err)
					}
				})
			}
			if err := p.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
		b.Run("async batched/"+name, func(b *testing.B) {
			p := newProducer(b, newClient(b, nameServer(b)), append(opts, client.WithAutoBatch(1e6, 32<<10))...)
			warm(b, p, "Bench")
			b.ReportAllocs()
			for b.Loop() {
				p.SendAsync(context.Background(), &client.Message{Topic: "Bench", Body: body}, func(_ *client.SendResult, err error) {
					if err != nil {
						b.Error(err)
					}
				})
			}
			if err := p.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkCompressedSend sends 8 KiB of text.
func BenchmarkCompressedSend(b *testing.B) {
	body := bytes.Repeat([]byte("a line of a log that compresses well\n"), 220)
	for _, kind := range []client.Compression{client.NoCompression, client.ZLIB, client.LZ4, client.ZSTD} {
		b.Run(fmt.Sprint(kind), func(b *testing.B) {
			p := newProducer(b, newClient(b, nameServer(b)), client.WithCompression(kind, 4096, 0))
			warm(b, p, "Bench")
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Send(context.Background(), &client.Message{Topic: "Bench", Body: body}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
