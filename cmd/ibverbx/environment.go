package main

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ibverbx/dropin"
	"ibverbx/nccl"
	"ibverbx/settings"
)

// variablePrefix is the prefix of all variables of this program.
const variablePrefix = "IBVERBX_"

// knownVariables returns the variables that this program, or a program of ibverbx run or ibverbx nccl, reads.
func knownVariables() (names []string) {
	for _, s := range settings.All() {
		names = append(names, s.Env)
	}
	for _, v := range dropin.Variables() {
		names = append(names, v.Name)
	}
	for _, v := range nccl.Variables() {
		names = append(names, v.Name)
	}
	for _, v := range new(authFlags).environment() {
		names = append(names, v.name)
	}
	return names
}

// environment returns the IBVERBX_ variables with a value, as NAME=VALUE. Tests that replace the environment list them in streams.environ.
func (s *streams) environment() []string {
	all := s.environ
	if all == nil && s.env == nil {
		all = os.Environ()
	}
	return slices.DeleteFunc(slices.Clone(all), func(v string) bool {
		name, value, _ := strings.Cut(v, "=")
		return !strings.HasPrefix(name, variablePrefix) || value == "" || settings.Reserved(name)
	})
}

// refuseVariables rejects unknown variables, which are probably misspelled. doctor reports them instead.
func (s *streams) refuseVariables(cmd *cobra.Command) error {
	if cmd.Name() == "doctor" {
		return nil
	}
	known := knownVariables()
	for _, v := range s.environment() {
		if name, _, _ := strings.Cut(v, "="); !slices.Contains(known, name) {
			return wrong(cmd, "%s is set, but ibverbx has no such variable: did you mean %s? Correct it, or unset it", name, closest(name, known))
		}
	}
	return nil
}

// closest returns the name with the smallest edit distance.
func closest(name string, known []string) string {
	return slices.MinFunc(known, func(a, b string) int { return distance(name, a) - distance(name, b) })
}

// distance returns the number of characters to insert, delete or replace to turn a into b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := corner
			if a[i] != b[j] {
				cost++
			}
			corner = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
