package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		err = worker(ctx, os.Args[2:], os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// run measures the rows and prints the table.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	only := flags.String("rows", ".", "regular expression for the rows to measure")
	rounds := flags.Int("rounds", 5, "rounds per row, at least 5 for a result worth recording")
	spell := flags.Duration("time", 500*time.Millisecond, "duration of one measurement")
	file := flags.String("json", filepath.Join(".cache", "bench-peers.json"), "file for the results as JSON")
	list := flags.Bool("list", false, "print the rows and their bars without measuring")
	if err := flags.Parse(args); err != nil {
		return err
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	if *rounds < 1 || *spell <= 0 {
		return errors.New("-rounds and -time must be positive")
	}
	dir, err := os.MkdirTemp("", "peers")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{dir: dir, spell: *spell}
	defer b.tearDown()
	var chosen []row
	for _, r := range b.rows() {
		if match.MatchString(r.Work) {
			chosen = append(chosen, r)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("no row matches %q: -list prints them", *only)
	}
	if *list {
		return table(stdout, chosen)
	}
	if err := b.setUp(ctx); err != nil {
		return err
	}
	for i := range chosen {
		fmt.Fprintf(stderr, "%d of %d: %s\n", i+1, len(chosen), chosen[i].Work)
		if chosen[i].measure(ctx, *rounds); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	o := newOrigin(ctx, args)
	fmt.Fprintf(stdout, "%v\n\n", o)
	return errors.Join(table(stdout, chosen), save(*file, o, chosen), failures(chosen))
}
