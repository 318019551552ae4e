# Apogee's targets. `make test` is the whole check; the slow lanes have targets of their own.
SHELL := /bin/bash
GO    ?= go
BIN   := bin/apogee

.PHONY: all build test unit interop mixed client-java client-figures client-compare mixed-group chaos crash recovery java-store weight compare lint fuzz bench clean

all: build

# The binary is static: no cgo.
build:
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN) ./cmd/apogee

# Unit tests, race detector, lint rules and the interop suites; says how many ran.
test:
	scripts/test

# Only what needs no foreign client.
unit:
	scripts/test unit

# Every interop case on every client; writes docs/interop.md.
interop:
	scripts/interop docs/interop.md

# Mixed clusters with the released Java servers; see scripts/mixed for JAVA_PEER.
mixed: build
	scripts/mixed

# kill -9 at random moments under load, 200 times and more, in about ten minutes; CRASH takes flags: -rounds 20.
crash: build
	$(GO) run ./bench/crash -bin $(BIN) $(CRASH)

# How soon a broker serves with a log of 10 GB and 1,000 topics, after kill -9 and a clean stop, and what 100 GB cost on top;
# with JAVA_PEER (see scripts/mixed) the Java broker on the same folder. RECOVERY takes flags: -gb 1.
recovery: build
	$(GO) run ./bench/recovery -bin $(BIN) $(RECOVERY)

# Moves a live store from a Java broker to Apogee and back, twice; see scripts/mixed for JAVA_PEER.
java-store: build
	$(GO) run ./bench/javastore -bin $(BIN)

# Start-up time, memory and idle CPU of the server.
weight: build
	$(GO) run ./bench/weight -bin $(BIN)

# What the Go client promises, measured: the first message, a rolling restart, deadlines.
client-figures: build
	$(GO) run ./bench/clientfigures -bin $(BIN)

# Apogee, the released Java servers and NATS JetStream side by side: writes docs/benchmarks.md, in about half an hour.
# JAVA_PEER as in scripts/mixed; RMQLOAD names another load generator; COMPARE takes flags: -rows send -repeat 1.
compare: build
	cd bench/compare && CGO_ENABLED=0 $(GO) build -o ../../bin/compare . && CGO_ENABLED=0 $(GO) build -o ../../bin/ github.com/nats-io/nats-server/v2
	bin/compare $(COMPARE)

# The Go client's tests against a Java broker; see scripts/client-java for JAVA_PEER.
client-java:
	scripts/client-java

# Package client beside the Java and the Apache Go client, into docs/client.md: about 8 minutes.
client-compare: build
	scripts/client-compare

# A consumer group with members of the released Java clients and of package client.
mixed-group: build
	scripts/mixed-group

# Servers and consumers fail in every way that can be made to happen, under load and the race detector: up to 10 minutes.
chaos: build
	$(GO) run -race ./bench/chaos -bin $(BIN) -rounds 8

lint:
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo 'run gofmt -w on the files above'; exit 1; }
	$(GO) vet ./...
	$(GO) test ./internal/lint

# Each fuzz target for a short while.
fuzz:
	scripts/fuzz 20s

bench:
	$(GO) test -run '^$$' -bench . -benchmem ./internal/...

clean:
	rm -rf bin interop/java/target
