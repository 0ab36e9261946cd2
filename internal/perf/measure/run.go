package measure

import "time"

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
