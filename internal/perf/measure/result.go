package measure

import (
	"math"
	"time"

	"ibverbx/peer"
	"ibverbx/settings"
)

// Report is the result of a test. `ibverbx perf --json` prints it as JSON.
type Report struct {
	Run      Run    `json:"run"`
	Op       Op     `json:"op"`
	Mode     Mode   `json:"mode"`
	Provider string `json:"provider"`
	// Link is the software link between the NICs: "memory", "shm" or "udp", empty for hardware.
	Link string `json:"link"`
	// LinkReason is the reason why software NICs in two processes do not use shared memory.
	LinkReason string `json:"link_reason,omitempty"`
	// Device lists the NICs of the initiating side, by rail, separated by commas.
	Device string `json:"device"`
	// Peer lists the NICs of the other side. With Bidirectional both sides initiate.
	Peer       string `json:"peer"`
	Connection string `json:"connection"`
	// Transport is "rc" for the device's RC QPs, "uc" or "ud" for package reliable over UC or UD QPs, or "raw"
	// for unreliable QPs.
	Transport peer.Transport `json:"transport"`
	// QPs is the number of QPs carrying data.
	QPs int `json:"qps"`
	// Lanes is the number of lanes of the VirtualQP: QPs, or 0 on UC and UD.
	Lanes int `json:"lanes"`
	Rails int `json:"rails"`
	// Scheme is the VirtualQP's scheme, "none" on UC and UD.
	Scheme string `json:"scheme"`
	// TxDepth limits the messages in flight. Rows with large messages may use fewer if it is the
	// default.
	TxDepth int `json:"tx_depth"`
	// CQMod is the number of messages per completion, 0 if the default was used.
	CQMod int `json:"cq_mod,omitempty"`
	// MTU is the path MTU in bytes.
	MTU           int  `json:"mtu"`
	Bidirectional bool `json:"bidirectional"`
	// Sealed means that all packets were encrypted and authenticated.
	Sealed bool `json:"sealed"`
	// Checked means that every byte of the results was compared.
	Checked bool `json:"checked"`
	// Interrupted means that the test was stopped early. The last result may then have fewer
	// iterations than requested.
	Interrupted bool `json:"interrupted"`
	// Settings lists this side's settings from flags and the environment.
	Settings []settings.Origin `json:"settings,omitempty"`
	// Role is "client" or "server", empty in a test within one process.
	Role string `json:"role,omitempty"`
	// Remote is the address of the other process, empty in a test within one process.
	Remote  string   `json:"remote,omitempty"`
	Results []Result `json:"results"`
	// PerRail is the traffic per rail over all results.
	PerRail []Rail `json:"per_rail"`
	// PerLane is the traffic per lane, empty without results. On UC and UD each QP counts as a
	// lane.
	PerLane []Lane `json:"per_lane"`
	// Verdict is a summary of the rails' health.
	Verdict string `json:"verdict"`
	// Failover is nil without Config.Kill.
	Failover *Failover `json:"failover,omitempty"`

	// Table holds further values for the printed table.
	Table Table `json:"-"`
}

// Run describes where, when and how a test ran.
type Run struct {
	// Time is the start of the test.
	Time time.Time `json:"time"`
	// Host is the host name.
	Host string `json:"host"`
	// Platform is the operating system and the architecture.
	Platform string `json:"platform"`
	// Kernel is the kernel release, empty if unknown.
	Kernel string `json:"kernel"`
	// CPUs is the number of CPUs available to the program.
	CPUs int `json:"cpus"`
	// Version is the program version, with its revision if known.
	Version string `json:"version"`
	// Go is the Go release that built the program.
	Go string `json:"go"`
	// Command is the command line without the program name.
	Command []string `json:"command"`
	// Options are the test options with all defaults filled in.
	Options Config `json:"options"`
}

// Table holds values that the printed table shows in addition to the Report.
type Table struct {
	// Policy is the VirtualQP's policy.
	Policy string
	// Fragment is the fragment size in bytes, 0 if it depends on the message size.
	Fragment int
	// LinkLayer is the link layer name.
	LinkLayer string
	// Paths is the number of UC QPs per RC QP with transport uc.
	Paths int
	// OutstandingReads is the maximum number of outstanding READs or atomics per QP.
	OutstandingReads int
}

// Result is one row. The mode of the test determines which embedded result is set.
type Result struct {
	// Size is the message size in bytes.
	Size int `json:"size"`
	// Iterations counts messages in both directions, on UC and UD over all QPs.
	Iterations int64 `json:"iterations"`
	*BandwidthResult
	*LatencyResult
	// Timeline is the rate of this side's messages over time, without copies. It is empty if
	// Observer.Interval is zero.
	Timeline []Span `json:"timeline,omitempty"`
	// Histogram is the latency histogram, empty unless this side measured latency.
	Histogram []Bucket `json:"histogram,omitempty"`
	// HDR is the same with three digits: nanoseconds in the V2 format of HdrHistogram, compressed
	// and in base64. HdrHistogram libraries can merge several runs.
	HDR string `json:"hdr,omitempty"`
}

// BandwidthResult holds rates per second, in bytes.
type BandwidthResult struct {
	BytesPerSecond     float64 `json:"bytes_per_second"`
	PeakBytesPerSecond float64 `json:"peak_bytes_per_second"`
	MessagesPerSecond  float64 `json:"messages_per_second"`
	// CopyBytesPerSecond is the rate of a copy between the same buffers, by Go or by the device
	// that owns one of them: the median of several copies between stretches of the transfer. It is
	// 0 between processes.
	CopyBytesPerSecond float64 `json:"copy_bytes_per_second"`
	// RatioToCopy is BytesPerSecond over CopyBytesPerSecond.
	RatioToCopy float64 `json:"ratio_to_copy"`
	// Lost counts messages that UC or UD did not deliver.
	Lost int64 `json:"lost_messages,omitempty"`
}

// LatencyResult holds times in microseconds. Typical is the median. It and the percentiles have three
// digits; the others have nanosecond precision.
type LatencyResult struct {
	Min     float64 `json:"t_min_us"`
	Max     float64 `json:"t_max_us"`
	Typical float64 `json:"t_typical_us"`
	Avg     float64 `json:"t_avg_us"`
	Stdev   float64 `json:"t_stdev_us"`
	P99     float64 `json:"t_p99_us"`
	P999    float64 `json:"t_p999_us"`
}

// settle combines the outcomes of the two sides into a result. It is the same in both processes.
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

// rate returns n per second, rounded to whole units.
func rate(n float64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return math.Round(n / d.Seconds())
}

// round rounds x to the given number of decimal places.
func round(x float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(x*p) / p
}
