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

const tokenLong = `Create a token file: 256 random bits that two hosts share. Both sides authenticate with it, and TLS 1.3
protects the connection. serve, get, put, ls, forward and perf take it as --token-file, Go programs as
bootstrap.Config.TokenFile.

The file has mode 0600; files that others can read are refused. An existing file is never replaced: delete
it first to change the token on both hosts. Copy it over a secure channel, for example with scp -p. Anyone
who has the token can impersonate either side.`

const tokenExample = `  ibverbx token t                           on node1
  ibverbx serve /models --token-file t
  scp -p node1:t t                          on another host
  ibverbx get node1 models --token-file t`

// newTokenCommand builds the token command.
func newTokenCommand(s streams) *cobra.Command {
	return &cobra.Command{
		Use:     "token FILE",
		Short:   "Make a file with a secret that two hosts share",
		Long:    tokenLong,
		Example: tokenExample,
		Args:    wantArgs(1, 1, "the name of one file", 0),
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
