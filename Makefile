# The commands of this repository, by name. .ci/run runs most of them in order. Those that take
# long run one part with IBVERBX_TEST_SLICE=k/n (docs/testing.md). 0/1 is the whole.

GO   ?= go
FUZZ ?= 20000x
# The packages that race runs.
RACE ?= ./...
# Of the packages with goroutines that share memory, those without and with heap memory: the two race steps of a slice run every second of them,
# and a sixth of the other packages.
SHARED     := ./files ./node ./peer ./stream ./transfer ./internal/service ./internal/shm ./internal/udp
HEAPSHARED := . ./test/engine/traffic ./softnic ./test/engine/failover
HEAPMEM    := . ./softnic/... ./test/engine/... ./verbs/...
# The tests of reliable that run with heap memory. TestCloseWithSeveralEngines writes to one buffer from two goroutines.
RELIABLE := Transfer|VirtualQP|Path|Peer|Passive
# The packages that run tests on a GPU, beside cuda.
GPU := ./cuda/cudatest ./transfer ./stream ./test/engine/matrix ./test/engine/failover ./cmd/ibverbx ./examples/kvcache

# golangci-lint and deadcode are built from source at these versions and kept between runs.
LINT_VERSION := v2.14.0
DEADCODE_VERSION := v0.52.0
CACHE        ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ibverbx
LINT         := $(CACHE)/golangci-lint-$(LINT_VERSION)/golangci-lint
DEADCODE     := $(CACHE)/deadcode-$(DEADCODE_VERSION)/deadcode

.PHONY: all build test race race-rest heapmem vet cross fmt lint bench bench-peers bench-smoke fuzz-smoke mutate planted seeds scenarios plots demo-picture test-rxe test-dropin repeat-dropin dropin-table test-nccl nccl-prebuilt test-browser test-stream test-gpu test-forward long nightly steady cover clean

all: vet test lint

build:
	CGO_ENABLED=0 $(GO) build ./...

# Tests run without vet here and below: make vet has more analyzers.
test:
	$(GO) test -count=1 -vet=off ./...

race:
	CGO_ENABLED=1 $(GO) test -count=1 -race -timeout 30m -vet=off $(RACE)

# The packages and tests that heapmem leaves out, so that the two run every test once with the race detector.
race-rest:
	@$(MAKE) -s race RACE="$$(printf '%s\n' $(SHARED) | .ci/part 2 | tr '\n' ' ') $$($(GO) list ./... | grep -vxF "$$($(GO) list $(HEAPMEM) $(SHARED) ./reliable)" | .ci/part 6 | tr '\n' ' ')"
	CGO_ENABLED=1 $(GO) test -count=1 -race -timeout 30m -vet=off -skip '$(RELIABLE)' ./reliable

# Memory for NICs on the Go heap, where the race detector sees it.
heapmem:
	CGO_ENABLED=1 $(GO) test -count=1 -race -timeout 30m -vet=off -tags heapmem $$(printf '%s\n' $(HEAPSHARED) | .ci/part 2) $$($(GO) list $(HEAPMEM) | grep -vxF "$$($(GO) list $(HEAPSHARED))" | .ci/part 6)
	CGO_ENABLED=1 $(GO) test -count=1 -race -timeout 30m -vet=off -tags heapmem -run '$(RELIABLE)' ./reliable

# With heapmem only the packages that have files for this tag differ. Without -trimpath, as lint.
vet: export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS))
vet:
	$(GO) vet ./...
	$(GO) vet -tags heapmem $$(grep -rlE '^//go:build .*heapmem' --include='*.go' . | xargs -n1 dirname | sort -u)

# Vets for other systems. A slice has one of them.
cross:
	printf '%s\n' windows/amd64 darwin/amd64 linux/arm64 | .ci/part | while IFS=/ read -r os arch; do \
		echo "$$os/$$arch"; GOOS=$$os GOARCH=$$arch $(GO) vet ./... || exit 1; done

fmt: $(LINT)
	$(LINT) fmt -c .ci/golangci.yml

lint: $(LINT) $(DEADCODE) # without -trimpath, with which the output of cgo in the build cache can name a clone that is gone
	GOFLAGS="$(filter-out -trimpath,$(GOFLAGS))" $(LINT) run -c .ci/golangci.yml ./...
	GOFLAGS="$(filter-out -trimpath,$(GOFLAGS))" .ci/deadcode $(DEADCODE)

$(LINT):
	GOBIN=$(@D) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

$(DEADCODE):
	GOBIN=$(@D) $(GO) install golang.org/x/tools/cmd/deadcode@$(DEADCODE_VERSION)

bench:
	$(GO) test -run '^$$' -bench . . ./softnic ./reliable ./internal/ntcopy ./cmd/ibverbx ./test/engine/traffic

# ibverbx beside the programs that people would use instead: one table, and .cache/bench-peers.json. About ten minutes
# on an idle machine. go run ./test/peers -rows UDP measures a part.
bench-peers:
	$(GO) run ./test/peers

# Every benchmark runs; what it prints means nothing. A slice has a part of the packages.
bench-smoke:
	$(GO) test -run '^$$' -bench . -benchtime 3x -vet=off $$(grep -rlE '^func Benchmark' --include='*_test.go' . | xargs -n1 dirname | sort -u | grep -vxF ./test/stream | .ci/part)

# The tests that need a real kernel RDMA device, in a virtual machine (test/rxe/README.md).
test-rxe:
	test/rxe/all

# The tests that need an NVIDIA GPU, those that use one in place of the stand-in, and what copies cost.
test-gpu:
	IBVERBX_TEST_GPU=1 $(GO) test -count=1 -v -run TestGPU -bench GPU ./cuda
	IBVERBX_TEST_GPU=1 $(GO) test -count=1 -p 1 -run 'TestGPU|TestPerfMemory|TestCompleteMemory' $(GPU)

# Unmodified RDMA programs on software NICs (docs/dropin.md). The first build of the library takes half a minute.
test-dropin: # builds from its source, which a binary with -trimpath cannot find
	GOFLAGS="$(filter-out -trimpath,$(GOFLAGS))" IBVERBX_TEST_DROPIN=1 $(GO) test -count=1 -timeout 20m ./dropin

# Programs that connect by address, many times, then with 1 % loss. Datagrams that are lost stay lost, so their programs run without.
DROPIN_REPEAT ?= 50
CONNECTORS = TestConnectors$$|TestFabricConnections|TestQperfConnections|TestRsocketPreload|TestRcopy|TestFio|TestMulticastProgram|TestOtherUserConnects|TestTwoClients|TestConnect$$|TestKilledConnection|TestKilledAtRandom|TestPyverbsConnections|TestNamespaces
repeat-dropin:
	GOFLAGS="$(filter-out -trimpath,$(GOFLAGS))" IBVERBX_TEST_DROPIN=1 $(GO) test -count=$(DROPIN_REPEAT) -timeout 4h -run '$(CONNECTORS)' ./dropin
	GOFLAGS="$(filter-out -trimpath,$(GOFLAGS))" IBVERBX_TEST_DROPIN=1 IBVERBX_LOSS=1% $(GO) test -count=$(DROPIN_REPEAT) -timeout 4h -run '$(CONNECTORS)' -skip 'Multicast|/udaddy|/.*udpong|TestConnect$$|TestKilled|TestPyverbs|TestNamespaces' ./dropin

# The same, and the table of docs/dropin.md says what ran, with the versions of this machine.
dropin-table:
	IBVERBX_TEST_DROPIN_TABLE=../docs/dropin.md $(MAKE) -s test-dropin

# The NCCL plugin: every table between two processes, NCCL's headers if they are installed, and PyTorch on a GPU if both are there
# (docs/nccl.md).
test-nccl:
	GOFLAGS="$(filter-out -trimpath,$(GOFLAGS))" IBVERBX_TEST_NCCL=1 $(GO) test -count=1 -timeout 20m ./test/nccl
	test/nccl/gpu --if-possible

# The plugin, the tool and, if rdma-core's headers are installed, the drop-in library in .cache/nccl, for a machine without Go.
nccl-prebuilt: export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS))
nccl-prebuilt:
	rm -rf .cache/nccl && mkdir -p .cache/nccl
	$(GO) build -ldflags="-s -w" -o .cache/nccl/ibverbx ./cmd/ibverbx
	IBVERBX_NCCL_LIB=$(CURDIR)/.cache/nccl .cache/nccl/ibverbx nccl --env
	IBVERBX_LIB=$(CURDIR)/.cache/nccl .cache/nccl/ibverbx run --env || echo "no drop-in library"

# The pages of ibverbx in a headless Chromium. The test is a module of its own.
test-browser:
	cd test/browser && $(GO) vet ./... && $(GO) test -count=1 -timeout 10m ./...

# nettest, net/http and gRPC on streams (docs/stream.md), in a module of their own. nettest is meant to run many times.
REPEAT ?= 3
test-stream:
	cd test/stream && $(GO) mod tidy -diff && $(GO) vet ./...
	cd test/stream && CGO_ENABLED=1 $(GO) test -race -count=$(REPEAT) -timeout 20m -run TestConn .
	cd test/stream && $(GO) test -count=1 -timeout 20m -skip TestConn .

# redis, PostgreSQL and iperf3 through ibverbx forward, and 160 kills of its processes (docs/forward.md).
test-forward:
	IBVERBX_TEST_FORWARD=1 $(GO) test -count=1 -timeout 10m ./test/forward
	IBVERBX_TEST_SLICE=$${IBVERBX_TEST_SLICE:-0/1} $(GO) test -count=1 -timeout 10m -vet=off -run TestForwardKilled ./cmd/ibverbx

# Tests that CI runs in a shorter form: 1,000 peers, messages of 1 GiB, 10,000 cancelled requests, 2,000 random seeds.
LONG = ^(TestThousandIdlePeers|TestHundredsOfPeersOnWrappedRails|TestIdleConnection|TestMatrix|TestCancelThenReuseBuffer|TestChaos)$$
long:
	IBVERBX_TEST_LONG=1 IBVERBX_TEST_CHAOS=2000 $(GO) test -count=1 -timeout 2h -vet=off -run '$(LONG)' \
		./node ./reliable ./test/engine/matrix ./transfer ./softnic

# .ci/run with every suite in full, and the long tests.
nightly:
	IBVERBX_TEST_SLICE=0/1 .ci/run
	$(MAKE) -s long

# The whole suite and the tests that depend on time, again and again beside busy loops (hours).
steady:
	.ci/steady

# Every fuzz target for a short while.
fuzz-smoke:
	.ci/fuzz $(FUZZ)

# Breaks softnic and reliable in one place after the other; the tests must notice each time.
mutate:
	IBVERBX_TEST_MUTATE=1 $(GO) test -count=1 -timeout 30m -vet=off -p 1 -parallel 4 -run TestMutations -v ./softnic ./reliable ./reliable/core

# Builds the engine with one mistake after the other; the checkers of the simulator must report each.
planted:
	IBVERBX_TEST_MUTATE=1 $(GO) test -count=1 -timeout 30m -vet=off -parallel 2 -run TestPlantedInEngine -v ./sim

# One hundred thousand worlds of the simulator, about 15 minutes on two cores. .ci/run runs a slice of
# other seeds.
SEEDS ?= 100000
seeds:
	$(GO) run ./cmd/ibverbx sim --seeds $(SEEDS)

# The measured scenarios, as a table; fails if one of them misses its aim.
scenarios:
	$(GO) run ./cmd/ibverbx sim --measured

# The pictures of docs/reliable.md, from the scenarios themselves.
plots:
	$(GO) run ./docs/plot

# The picture of the demo in docs/reliability.md, from a demo that runs now, on an idle machine.
demo-picture:
	$(GO) run ./cmd/ibverbx demo --json | $(GO) run ./docs/plot -demo

cover:
	$(GO) test -count=1 -coverpkg=./... -coverprofile=cover.out ./...
	$(GO) tool cover -func=cover.out | tail -1

clean:
	rm -rf cover.out $(CACHE)
