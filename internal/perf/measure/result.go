package measure

import (
	"math"
	"time"
)

// Report is the Outcome of a test. `ibverbx perf --json` prints its JSON form.
type Report struct {
	Run      Run    `json:"run"`
	Op       Op     `json:"op"`
	Mode     Mode   `json:"mode"`
	Provider string `json:"provider"`
	// Link is what joins the NICs: "memory", "shm" or "udp", empty for hardware.
	Link string `json:"link"`
	// LinkReason says why software NICs of two processes are not joined by shared memory.
	LinkReason string `json:"link_reason,omitempty"`
	// Device lists the NICs of the side that initiates, by rail, with commas.
	Device string `json:"device"`
	// Peer lists the NICs of the other side. With Bidirectional both initiate.
	Peer       string `json:"peer"`
	Connection string `json:"connection"`
	// Transport is what made the QPs reliable: "rc" for the device, "uc" for package reliable
	// over UC QPs of the device, or "raw" for nothing.
	Transport Transport `json:"transport"`
	// QPs is how many QPs carry data.
	QPs int `json:"qps"`
	// Lanes is how many of the QPs are lanes of one VirtualQP: all, or on UC and UD none.
	Lanes int `json:"lanes"`
	Rails int `json:"rails"`
	// Scheme is that of the VirtualQP, "none" on UC and UD.
	Scheme string `json:"scheme"`
	// TxDepth bounds the messages in flight. Rows of large messages may have fewer if it was
	// not asked for.
	TxDepth int `json:"tx_depth"`
	// CQMod is how many messages share a completion, 0 if it was not asked for.
	CQMod int `json:"cq_mod,omitempty"`
	// MTU is the path MTU in bytes.
	MTU           int  `json:"mtu"`
	Bidirectional bool `json:"bidirectional"`
	// Sealed means that all packets were encrypted and authenticated.
	Sealed bool `json:"sealed"`
	// Checked means that every byte of the results was compared.
	Checked bool `json:"checked"`
	// Interrupted means that the test was ended early. The last result may then have fewer
	// iterations than were asked for.
	Interrupted bool `json:"interrupted"`
	// Settings lists what flags and the environment have set for this side.
	Settings []Setting `json:"settings,omitempty"`
	// Role is "client" or "server", empty in a test within one process.
	Role string `json:"role,omitempty"`
	// Remote is the address of the other process, empty in a test within one process.
	Remote  string   `json:"remote,omitempty"`
	Results []Result `json:"results"`
	// PerRail is what each rail carried over all results.
	PerRail []Rail `json:"per_rail"`
	// PerLane is what each lane carried, empty without results. On UC and UD its lanes are
	// the QPs.
	PerLane []Lane `json:"per_lane"`
	// Verdict says in words how healthy the rails were.
	Verdict string `json:"verdict"`
	// Failover is nil without Config.Kill.
	Failover *Failover `json:"failover,omitempty"`

	// Table is for the table.
	Table Table `json:"-"`
}

// Run describes where, when and how a test ran, so that a report explains itself.
type Run struct {
	// Time is when the test began.
	Time time.Time `json:"time"`
	// Host is the name of the machine.
	Host string `json:"host"`
	// Platform is the operating system and the architecture.
	Platform string `json:"platform"`
	// Kernel is the release of the system's kernel, empty if it is not known.
	Kernel string `json:"kernel"`
	// CPUs is how many the program may use.
	CPUs int `json:"cpus"`
	// Version is that of the program, with its revision if that is known.
	Version string `json:"version"`
	// Go is the release that built it.
	Go string `json:"go"`
	// Command is the command line without the name of the program.
	Command []string `json:"command"`
	// Options are those of the test with all defaults filled in.
	Options Config `json:"options"`
}

// Table is what the table of a test says beyond its Report.
type Table struct {
	// Policy is that of the VirtualQP.
	Policy string
	// Fragment is the size of a fragment in bytes, 0 if by the size of the message.
	Fragment int
	// LinkLayer is the name of the link layer.
	LinkLayer string
	// Paths is the number of UC QPs per RC QP with transport uc.
	Paths int
	// OutstandingReads is how many READs or atomics a QP may have outstanding.
	OutstandingReads int
}

// Setting is a setting of the fabric: its name, its value as it was given, and the flag or the
// variable that gave it.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"`
}

// Result is one row. One of the embedded parts is there, by the mode of the test.
type Result struct {
	// Size is the message size in bytes.
	Size int `json:"size"`
	// Iterations counts messages in both directions, on UC and UD over all QPs.
	Iterations int64 `json:"iterations"`
	*BandwidthResult
	*LatencyResult
	// Timeline is the rate over time, of this side's messages, without copies. It is empty if Observer.Interval is
	// zero.
	Timeline []Span `json:"timeline,omitempty"`
	// Histogram is that of the times, empty unless this side measured latency.
	Histogram []Bucket `json:"histogram,omitempty"`
	// HDR is the same with three digits: nanoseconds in the V2 format of HdrHistogram, compressed and in base64. Its
	// libraries add up those of several runs.
	HDR string `json:"hdr,omitempty"`
}

// BandwidthResult holds rates per second. Bytes are bytes, not MiB.
type BandwidthResult struct {
	BytesPerSecond     float64 `json:"bytes_per_second"`
	PeakBytesPerSecond float64 `json:"peak_bytes_per_second"`
	MessagesPerSecond  float64 `json:"messages_per_second"`
	// CopyBytesPerSecond is the rate of a copy between the same buffers, by Go or by the device that has one of
	// them: the median of several stretches between those of the transfer. It is 0 between processes.
	CopyBytesPerSecond float64 `json:"copy_bytes_per_second"`
	// RatioToCopy is BytesPerSecond over CopyBytesPerSecond.
	RatioToCopy float64 `json:"ratio_to_copy"`
	// Lost counts messages that UC or UD did not deliver.
	Lost int64 `json:"lost_messages,omitempty"`
}

// LatencyResult holds times in microseconds, exact to the nanosecond. Typical is the median;
// percentiles are by nearest rank.
type LatencyResult struct {
	Min     float64 `json:"t_min_us"`
	Max     float64 `json:"t_max_us"`
	Typical float64 `json:"t_typical_us"`
	Avg     float64 `json:"t_avg_us"`
	Stdev   float64 `json:"t_stdev_us"`
	P99     float64 `json:"t_p99_us"`
	P999    float64 `json:"t_p999_us"`
}

// settle makes a result of what the two sides found. It is the same in both processes.
func (c *Config) settle(size int, found [2]*Outcome) Result {
	res := Result{Size: size}
	if c.Mode == Latency {
		if res.LatencyResult = found[0].Latency; res.LatencyResult != nil {
			res.Iterations = found[0].Messages
		}
		return res
	}
	b := &BandwidthResult{Lost: found[0].lost, CopyBytesPerSecond: math.Round(found[0].copyRate)}
	for _, o := range found {
		res.Iterations += o.Messages
		bytes := rate(float64(o.Messages)*float64(size), o.Elapsed)
		b.BytesPerSecond += bytes
		b.MessagesPerSecond += rate(float64(o.Messages), o.Elapsed)
		b.PeakBytesPerSecond += math.Round(max(o.Peak*float64(size), bytes))
	}
	if b.CopyBytesPerSecond > 0 {
		b.RatioToCopy = round(b.BytesPerSecond/b.CopyBytesPerSecond, 4)
	}
	res.BandwidthResult = b
	return res
}

// rate is an amount over a time, in whole units per second.
func rate(n float64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return math.Round(n / d.Seconds())
}

// round keeps so many decimal places.
func round(x float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(x*p) / p
}
