package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/spf13/cobra"
)

const tokenLong = `Make a file with a token: 256 random bits, a secret that two processes share. With it
they authenticate each other, and TLS protects what they say: ibverbx perf --token-file, and
TokenFile in bootstrap.Config.

Only you can read the file (mode 0600). Files that others can read are refused. An existing
file is never replaced: delete it first if both sides shall change to a new token. Copy the
file to the other host in a way that keeps it secret, such as scp -p. Everybody who has the
token can pose as either side.`

const tokenExample = `  ibverbx token t                           on node1
  ibverbx perf serve --token-file t
  scp -p node1:t t                          on another host
  ibverbx perf node1 --token-file t`

// newTokenCommand builds the token command.
func newTokenCommand(s streams) *cobra.Command {
	return &cobra.Command{
		Use:     "token FILE",
		Short:   "Make a file with a secret that two hosts share",
		Long:    tokenLong,
		Example: tokenExample,
		Args:    wantArgs(1, 1, "the name of one file"),
		RunE:    func(_ *cobra.Command, args []string) error { return runToken(s, args[0]) },
	}
}

func runToken(s streams, path string) error {
	err := writeNew(path, 0o600, func(w io.Writer) error {
		var secret [32]byte
		if _, err := rand.Read(secret[:]); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, base64.StdEncoding.EncodeToString(secret[:]))
		return err
	})
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: use it, or another name. A token is not replaced", path)
	}
	if err != nil {
		return err
	}
	p := printer{w: s.out}
	p.printf(`%[1]s: a secret of 256 bits that only you can read. Copy it to the other host with scp -p.
All commands that connect two hosts take it. On one host:
  ibverbx serve DIR --token-file %[1]s
On the other:
  ibverbx get HOST DIR --token-file %[1]s
`, path)
	return p.err
}
