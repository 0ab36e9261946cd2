// Package transcript plays the transcripts in testdata/transcripts: operations on a VirtualQP and its NICs,
// line by line, with their expected output. testdata/transcripts/README.txt describes the language.
package transcript
