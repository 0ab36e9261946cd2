package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// result is the path of a request over one link at one commit.
type result struct {
	Commit string `json:"commit"`
	Link   string `json:"link"`
	path
}

// report prints a table for each link, with a column for each commit, and the functions if list is set.
func report(out io.Writer, results []result, list bool) error {
	byLink := map[string][]result{}
	var links []string
	for _, r := range results {
		if byLink[r.Link] == nil {
			links = append(links, r.Link)
		}
		byLink[r.Link] = append(byLink[r.Link], r)
	}
	for _, link := range links {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		table(w, link, byLink[link])
		if err := w.Flush(); err != nil {
			return err
		}
		if list {
			printNames(out, byLink[link])
		}
	}
	return nil
}

// table prints functions and files by package.
func table(w io.Writer, link string, results []result) {
	row := func(name string, weigh func(result) weight) {
		fmt.Fprint(w, name)
		for _, r := range results {
			x := weigh(r)
			fmt.Fprintf(w, "\t%d functions\t%d files", x.Functions, x.Files)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "WRITE_WITH_IMM over %s", link)
	packages := map[string]bool{}
	for _, r := range results {
		fmt.Fprintf(w, "\t%s\t", r.Commit)
		for _, p := range r.Packages {
			packages[p.Package] = true
		}
	}
	fmt.Fprintln(w)
	for _, pkg := range slices.Sorted(maps.Keys(packages)) {
		row(pkg, func(r result) weight {
			i, ok := slices.BinarySearchFunc(r.Packages, pkg, func(p weight, name string) int { return cmp.Compare(p.Package, name) })
			if !ok {
				return weight{}
			}
			return r.Packages[i]
		})
	}
	row("total", func(r result) weight { return weight{Functions: r.Functions, Files: r.Files} })
	fmt.Fprint(w, "occasional")
	for _, r := range results {
		fmt.Fprintf(w, "\t%d functions\t", len(r.Occasional))
	}
	fmt.Fprint(w, "\n\n")
}

// printNames prints the functions of a path, or the difference of two.
func printNames(out io.Writer, results []result) {
	for i, r := range results {
		names := r.Names
		if len(results) == 2 {
			names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(results[1-i].Names, name) })
		}
		fmt.Fprintf(out, "%s, %s, %d functions:\n  %s\n", r.Link, r.Commit, len(names), strings.Join(names, "\n  "))
	}
	fmt.Fprintln(out)
}
