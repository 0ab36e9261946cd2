// Command plot draws the pictures of docs/reliable.md. It runs the measured scenarios, on virtual
// time, and writes SVG files. With -demo it draws the screen of a demo instead. After a change, run
// "make plots" or "make demo-picture": the pictures are part of the repository.
//
//	go run ./docs/plot [-o docs/img] [-seeds 5]
//	go run ./cmd/ibverbx demo --json | go run ./docs/plot -demo
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"ibverbx/sim/measure"
)

// picture is one file and the function that draws it.
type picture struct {
	name string
	draw func(measured) ([]byte, error)
}

// pictures returns all pictures.
func pictures() []picture {
	return []picture{{"goodput-loss.svg", goodputLoss}, {"incast-latency.svg", incastLatency}}
}

// measured returns the result of a scenario.
type measured func(name string) (*measure.Result, error)

func main() {
	dir := flag.String("o", filepath.Join("docs", "img"), "directory for the pictures")
	seeds := flag.Uint64("seeds", 5, "number of seeds for the medians")
	demo := flag.Bool("demo", false, "draw demo.svg from the output of ibverbx demo --json, on standard input")
	flag.Parse()
	draw := func() error { return run(*dir, *seeds) }
	if *demo {
		draw = func() error { return demoPicture(os.Stdin, filepath.Join(*dir, "demo.svg")) }
	}
	if err := draw(); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func run(dir string, seeds uint64) error {
	for _, p := range pictures() {
		svg, err := p.draw(func(name string) (*measure.Result, error) {
			s, ok := measure.Builtin(name)
			if !ok {
				return nil, fmt.Errorf("there is no measured scenario %q", name)
			}
			return s.RunSeeds(context.Background(), measure.Options{Seed: 1}, seeds)
		})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, p.name), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}
