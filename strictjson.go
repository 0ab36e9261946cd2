package ibverbx

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"ibverbx/verbs"
)

// maxCardBytes bounds a card: a thousand lanes with an address each need a quarter of it.
const maxCardBytes = 1 << 20

// decodeStrict reads one JSON object that came from a peer into v: no larger than a card,
// no unknown field, nothing after it, and the names as checkNames wants them.
func decodeStrict(text []byte, must []string, legal func(name string) bool, v any) error {
	if len(text) > maxCardBytes {
		return verbs.Invalidf("%d bytes, at most %d are allowed", len(text), maxCardBytes)
	}
	if err := checkNames(text, must, legal); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", verbs.ErrInvalid, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return verbs.Invalidf("something follows the card")
	}
	return nil
}

// checkNames refuses what encoding/json lets pass: a field that occurs twice, of which it
// takes the last and other readers the first; a name in another case, which legal does not
// know; and a field that is missing. A card must mean one thing.
func checkNames(text []byte, must []string, legal func(name string) bool) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	var open []map[string]bool // one for each open object, nil for an array
	var top map[string]bool
	key := false // the next token is a name
	for {
		t, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w: %w", verbs.ErrInvalid, err)
		}
		if name, ok := t.(string); ok && key {
			names := open[len(open)-1]
			switch {
			case !legal(name):
				return verbs.Invalidf("there is no field %q", name)
			case names[name]:
				return verbs.Invalidf("field %q occurs twice", name)
			}
			names[name] = true
			key = false
			continue
		}
		switch t {
		case json.Delim('{'):
			open = append(open, map[string]bool{})
			if top == nil {
				top = open[0]
			}
		case json.Delim('['):
			open = append(open, nil)
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
		key = len(open) > 0 && open[len(open)-1] != nil
	}
	for _, name := range must {
		if !top[name] {
			return verbs.Invalidf("field %q is missing", name)
		}
	}
	return nil
}
