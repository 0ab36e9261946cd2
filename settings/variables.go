package settings

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
)

// prefix begins the names of all environment variables of this module.
const prefix = "IBVERBX_"

// others are the variables that are not settings: of the tool's credentials, the drop-in library and the NCCL plugin.
var others = []string{
	"TOKEN_FILE", "CA", "CERT", "KEY",
	"LIB", "COUNT", "MTU", "PEERS", "GIDS", "LOSS", "REORDER", "DUPLICATE", "CORRUPT", "DELAY", "JITTER", "RATE", "METRICS", "STATS", "VERBOSE",
	"NCCL_LIB", "NCCL_STATS", "NCCL_DEAD_AFTER", "NCCL_DEADLINE",
}

// Variables returns the names of all environment variables that this module reads, except in its
// tests.
func Variables() (names []string) {
	for i := range table {
		names = append(names, table[i].Env)
	}
	for _, name := range others {
		names = append(names, prefix+name)
	}
	return names
}

// UnknownVariable is an environment variable that looks like one of this module, but is not.
type UnknownVariable struct {
	// Name is its name, and Nearest the most similar name in Variables.
	Name, Nearest string
}

// String describes the problem.
func (u UnknownVariable) String() string {
	return fmt.Sprintf("%s is set, but ibverbx has no such variable: did you mean %s?", u.Name, u.Nearest)
}

// Unknown returns the variables in environ, in the form of os.Environ, that are set and probably
// misspelled: their names begin with IBVERBX_, but are neither known nor Reserved.
func Unknown(environ []string) (found []UnknownVariable) {
	known := Variables()
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, prefix) || value == "" || Reserved(name) || slices.Contains(known, name) {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int { return distance(name, a) - distance(name, b) })
		found = append(found, UnknownVariable{name, nearest})
	}
	return found
}

// warnUnknown logs the unknown variables of the process, if lookup reads its environment.
func warnUnknown(lookup func(string) (string, bool)) {
	for _, u := range Unknown(os.Environ()) {
		if _, ok := lookup(u.Name); ok {
			slog.Warn("unknown environment variable", slog.String("variable", u.Name), slog.String("nearest", u.Nearest))
		}
	}
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
