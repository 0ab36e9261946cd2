//go:build race

package measure

// raced is set when every access is watched, which takes ten times as long.
const raced = true
