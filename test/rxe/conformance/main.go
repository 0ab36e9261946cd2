// Command conformance writes docs/conformance.md: every item of the conformance suite with the results of
// softnic, of the kernel's Soft-RoCE, and of the two against each other. It reads the output of go test -v:
//
//	go test -count=1 -v -run 'TestConformance(Segmented)?$' ./softnic >softnic.log
//	test/rxe/all ./rdmacore ./test/rxe/interop >rxe.log
//	go run ./test/rxe/conformance softnic.log rxe.log >docs/conformance.md
//
// It runs in the root of the tree and reads the names and guarantees of the items from the suite's source. If
// an item failed or did not run, it exits with an error and without output.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
)

// suiteDir is the suite's directory, relative to the root of the tree.
const suiteDir = "verbs/verbstest"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go run ./test/rxe/conformance SOFTNIC_LOG RXE_LOG >docs/conformance.md")
		os.Exit(2)
	}
	if err := run(os.Stdout, suiteDir, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// run writes the document for the suite in a directory and two logs.
func run(w io.Writer, dir, softnicLog, rxeLog string) error {
	families, err := readSuite(dir)
	if err != nil {
		return fmt.Errorf("read the suite: %w", err)
	}
	softnic, err := readLogFile(softnicLog)
	if err != nil {
		return err
	}
	rxe, err := readLogFile(rxeLog)
	if err != nil {
		return err
	}
	d, err := newDocument(families, softnic, rxe)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	d.write(out)
	return out.Flush()
}

func readLogFile(name string) (*testLog, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := readLog(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return l, nil
}
