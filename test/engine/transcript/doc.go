// Package transcript plays the transcripts in testdata/transcripts: what is done to a VirtualQP
// and its NICs, line by line, and what must come of it. testdata/transcripts/README.txt
// describes the language.
package transcript
