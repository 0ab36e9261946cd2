package main

import "fmt"

const (
	kib = 1 << 10
	mib = 1 << 20
)

// before is the commit whose immediates were faster.
const before = "2f5d363"

// rows returns all comparisons.
func (b *bench) rows() (all []row) {
	all = append(all, b.inProcess()...)
	all = append(all, b.sharedMemory()...)
	all = append(all, b.overUDP()...)
	all = append(all, b.lanes()...)
	all = append(all, b.overStreams()...)
	all = append(all, b.engine()...)
	return append(all, b.rest()...)
}

// size prints a size for perf and for the table.
func size(n int) string {
	switch {
	case n >= mib:
		return fmt.Sprintf("%dMiB", n/mib)
	case n >= kib:
		return fmt.Sprintf("%dKiB", n/kib)
	}
	return fmt.Sprintf("%dB", n)
}

func (b *bench) inProcess() (all []row) {
	ours := func(n int) side { return b.perf(gbps, "write -q 1 -s "+size(n)) }
	for _, n := range []int{mib, 4 * mib} {
		all = append(all, row{Work: "in process, one QP, WRITE " + size(n), Unit: "GB/s", Peer: "libc memcpy", Bar: 0.8, Aim: 0.95, ours: ours(n), theirs: b.memcpy(n)})
	}
	return append(all,
		row{Work: "in process, one QP, WRITE 1MiB", Unit: "GB/s", Peer: "UCX self put_bw", ours: ours(mib), theirs: b.ucx(gbps, "self", "ucp_put_bw", mib, 10_000)},
		row{Work: "in process, one QP, WRITE 64KiB", Unit: "GB/s", Peer: "Go copy", Bar: 0.95, Aim: 1, ours: ours(64 * kib), theirs: b.alone("copy", 64*kib)},
		row{Work: "in process, one QP, WRITE 16MiB", Unit: "GB/s", Peer: "Go copy", Bar: 1, Aim: 1.2, ours: ours(16 * mib), theirs: b.alone("copy", 16*mib)},
	)
}

func (b *bench) sharedMemory() (all []row) {
	const posix = "posix,self"
	all = []row{
		{
			Work: "shared memory, notified WRITE 8B, half round trip", Unit: "us", Peer: "UCX am_lat", Bar: 1.3, Aim: 1.1, Lower: true, Best: true,
			ours: b.perf2(typical, "--link shm", "write --imm --lat -q 1 -s 8"), theirs: b.ucx(typical, posix, "ucp_am_lat", 8, 1_000_000),
		},
		{
			Work: "shared memory, WRITE 8B, one per post", Unit: "M/s", Peer: "UCX put_bw", Bar: 0.5, Aim: 0.8,
			ours: b.perf2(millions, "--link shm", "write -q 1 -Q 1 -s 8"), theirs: b.ucx(millions, posix, "ucp_put_bw", 8, 10_000_000),
		},
		{
			Work: "shared memory, notified WRITE 8B, one per post", Unit: "M/s", Peer: "UCX am_bw", Bar: 0.8, Aim: 1.2,
			ours: b.perf2(millions, "--link shm", "write --imm -q 1 -Q 1 -s 8"), theirs: b.ucx(millions, posix, "ucp_am_bw", 8, 4_000_000),
		},
		{
			Work: "shared memory, WRITE 1MiB", Unit: "GB/s", Peer: "UCX put_bw", Bar: 0.85, Aim: 1,
			ours: b.perf2(gbps, "--link shm", "write -q 1 -s 1MiB"), theirs: b.ucx(gbps, posix, "ucp_put_bw", mib, 9000),
		},
	}
	for _, n := range []int{mib, 64 * mib} {
		all = append(all, row{
			Work: "one host, transfer Get " + size(n), Unit: "GB/s", Peer: "perf --link shm", Bar: 0.7, Aim: 0.9,
			ours: b.pair("transfer", n), theirs: b.perf2(gbps, "--link shm", "write -q 1 -s "+size(n)),
		})
	}
	return append(all, row{Work: "shared memory, empty poll of a VirtualCQ, per rail", Unit: "ns", Bar: 25, Aim: 20, Lower: true, ours: b.pair("poll", 0)})
}

func (b *bench) overUDP() (all []row) {
	const plain = "--link udp --unsealed"
	for _, n := range []int{64 * kib, mib} {
		write := "write -q 1 -s " + size(n)
		all = append(all, row{
			Work: "UDP plain, one QP, loopback, WRITE " + size(n), Unit: "GB/s", Peer: "Go TCP", Bar: 1, Aim: 1.15,
			ours: b.perf2(gbps, plain, write), theirs: b.pair("tcp", n),
		})
		for _, link := range []struct {
			hosts    *hosts
			bar, aim float64
		}{{b.joined(9000), 1, 1.2}, {b.joined(1500), 0.75, 0.95}} {
			all = append(all, row{
				Work: fmt.Sprintf("UDP plain, one QP, veth MTU %d, WRITE %s", link.hosts.mtu, size(n)), Unit: "GB/s", Peer: "Go TCP", Bar: link.bar, Aim: link.aim,
				ours: b.perfIn(gbps, link.hosts, plain, write), theirs: b.pairIn(link.hosts, "tcp", n),
			})
		}
		all = append(all, row{
			Work: "UDP sealed, one QP, loopback, WRITE " + size(n), Unit: "GB/s", Peer: "Go TLS", Bar: 1.3, Aim: 1.5,
			ours: b.perf2(gbps, "--link udp", write), theirs: b.pair("tls", n),
		}, row{
			Work: "UDP plain, full ICRC, in process, WRITE " + size(n), Unit: "MB/s", Peer: "Go TCP", Bar: 0.82, Aim: 0.9,
			ours:   b.benchmark("", "./softnic", "^BenchmarkUDPWriteFull$/size="+size(n), "MB/s"),
			theirs: b.benchmark("", "./softnic", "^BenchmarkTCP$/size="+size(n), "MB/s"),
		})
	}
	return all
}

func (b *bench) lanes() (all []row) {
	const plain = "--link udp --unsealed"
	for _, c := range []struct {
		size     int
		bar, aim float64
		unit     string
		figure   func(result) float64
	}{{8, 0.85, 0.95, "M/s", millions}, {64 * kib, 1, 1.05, "GB/s", gbps}, {mib, 1, 1.05, "GB/s", gbps}} {
		all = append(all, row{
			Work: "UDP plain, 8 lanes on 2 rails, WRITE " + size(c.size), Unit: c.unit, Peer: "one QP", Bar: c.bar, Aim: c.aim,
			ours: b.perf2(c.figure, plain, "write --rails 2 -q 8 -s "+size(c.size)), theirs: b.perf2(c.figure, plain, "write -q 1 -s "+size(c.size)),
		})
	}
	for _, c := range []struct {
		name, link string
		bar, aim   float64
	}{{"plain", plain, 0.5, 0.6}, {"sealed", "--link udp", 0.65, 0.75}} {
		all = append(all, row{
			Work: "UDP " + c.name + ", transport ud, WRITE 1MiB", Unit: "GB/s", Peer: "transport uc", Bar: c.bar, Aim: c.aim,
			ours: b.perf2(gbps, c.link, "write -q 1 --transport ud -s 1MiB"), theirs: b.perf2(gbps, c.link, "write -q 1 --transport uc -s 1MiB"),
		})
	}
	return append(all, row{
		Work: "UDP plain, 8 lanes on 2 rails, transport uc, WRITE 8B", Unit: "M/s", Peer: "transport rc", Bar: 0.4, Aim: 0.6,
		ours: b.perf2(millions, plain, "write --rails 2 -q 8 --transport uc -s 8"), theirs: b.perf2(millions, plain, "write --rails 2 -q 8 -s 8"),
	})
}

func (b *bench) overStreams() []row {
	const message = 256 * kib
	return []row{
		{Work: "stream, plain UDP, loopback", Unit: "GB/s", Peer: "Go TCP", Bar: 0.8, Aim: 1, ours: b.pair("stream", message), theirs: b.pair("tcp", message)},
		{Work: "stream, sealed UDP, loopback", Unit: "GB/s", Peer: "Go TLS", Bar: 1, Aim: 1.2, ours: b.pair("stream-sealed", message), theirs: b.pair("tls", message)},
		{Work: "stream, two processes of one host", Unit: "GB/s", Peer: "Go TCP", Bar: 1.5, Aim: 2.5, ours: b.pair("stream-host", message), theirs: b.pair("tcp", message)},
	}
}

// engine compares costs of the engine: rates are the inverse of the time per message.
func (b *bench) engine() (all []row) {
	for _, scheme := range []string{"spray", "dqplb"} {
		name := fmt.Sprintf("BenchmarkMessage/scheme=%s/op=writeimm/lanes=16/frags=1$/side=send", scheme)
		all = append(all, row{
			Work: "engine, " + scheme + " immediate, 1 fragment, 16 lanes", Unit: "M/s", Peer: "commit " + before, Bar: 1, Aim: 1.2,
			ours: perSecond(b.benchmark("", ".", name, "ns/op")), theirs: perSecond(b.benchmark(before, ".", name, "ns/op")),
		})
	}
	return append(all, row{
		Work: "engine, WRITE on 16 lanes", Unit: "ns", Peer: "null NIC alone", Lower: true,
		ours:   b.benchmark("", ".", "BenchmarkMessage/scheme=tally/op=write$/lanes=16/frags=1$/side=send", "ns/op"),
		theirs: b.benchmark("", ".", "BenchmarkNullNIC", "ns/op"),
	})
}

func (b *bench) rest() []row {
	return append(append(b.trees(), b.files()...), []row{
		{Work: "node, 1,000 idle peers", Unit: "% of a core", Bar: 0.5, Aim: 0.2, Lower: true, ours: b.benchmark("", "./node", "BenchmarkIdlePeers/ready", "%core", "-test.benchtime=1x")},
		{Work: "node, 1,000 parked peers", Unit: "% of a core", Lower: true, ours: b.benchmark("", "./node", "BenchmarkIdlePeers/parked", "%core", "-test.benchtime=1x")},
	}...)
}

// trees compares copies of a directory of 10,000 files of 20 KB.
func (b *bench) trees() (all []row) {
	for _, c := range []struct {
		work         string
		bar, aim     float64
		ours, theirs side
	}{
		{"unchanged", 5, 2, b.get(inMemory, unchanged), b.rsync(inMemory, unchanged)},
		{"one changed", 6, 2.4, b.get(inMemory, oneChanged), b.rsync(inMemory, oneChanged)},
		{"first time, no sync", 1.25, 0.8, b.get(inMemory, nothingThere, "--sync", "never"), b.rsync(inMemory, nothingThere)},
		{"first time, on disk", 1, 0.8, b.get(onDisk, nothingThere), b.rsync(onDisk, nothingThere, "--fsync")},
	} {
		all = append(all, row{
			Work: "get of 10,000 files of 20 KB, " + c.work, Unit: "s", Peer: "rsync daemon", Bar: c.bar, Aim: c.aim, Lower: true,
			ours: c.ours, theirs: c.theirs,
		})
	}
	return all
}

// files compares the CPU time for a large file, and measures the memory for a large tree.
func (b *bench) files() []row {
	return []row{
		{
			Work: "get of a file of 1 GiB, CPU time of both sides", Unit: "s", Peer: "https, Go and curl", Bar: 1, Aim: 0.8, Lower: true,
			ours: b.getLarge(), theirs: b.curl(),
		},
		{Work: "listing of 1,000,000 files, memory of the client", Unit: "MiB", Bar: 200, Aim: 50, Lower: true, ours: b.listing(false)},
		{Work: "listing of 1,000,000 files, memory of the server", Unit: "MiB", Bar: 200, Aim: 50, Lower: true, ours: b.listing(true)},
	}
}
