// Package strictjson decodes JSON from peers: [Decode] rejects unknown fields, [DecodeKnown] ignores them.
// Both reject ambiguous input that encoding/json tolerates, such as duplicate fields.
package strictjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// Decode reads one JSON value of at most limit bytes into v, a pointer. Field names of a struct
// must match exactly and be unique, and unknown fields are errors. A field is required unless its
// tag contains omitempty or omitzero, and only pointers and slices may be null. An error names the
// field. Maps and types that decode themselves are left to encoding/json. After an error v is
// partially filled.
func Decode(text []byte, limit int, v any) error { return decode(text, limit, v, checker{}) }

// DecodeKnown is Decode for texts that may have optional fields of later versions: it ignores
// unknown fields, unless their name differs from a known one only in case.
func DecodeKnown(text []byte, limit int, v any) error {
	return decode(text, limit, v, checker{ignore: true})
}

func decode(text []byte, limit int, v any, c checker) error {
	if len(text) > limit {
		return fmt.Errorf("%d bytes, at most %d are allowed", len(text), limit)
	}
	if !utf8.Valid(text) {
		return errors.New("the text is not UTF-8")
	}
	if err := json.Unmarshal(text, v); err != nil {
		return err
	}
	c.Decoder = json.NewDecoder(bytes.NewReader(text))
	return c.check(reflect.TypeOf(v).Elem(), false)
}

// checker reads a text again to detect input that encoding/json tolerates.
type checker struct {
	*json.Decoder
	// ignore is set if unknown fields are allowed.
	ignore bool
}

// check reads one value, which matches its type.
func (c checker) check(t reflect.Type, nullable bool) error {
	p := reflect.PointerTo(t)
	kind := t.Kind()
	if p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		kind = reflect.Invalid
	}
	switch {
	case kind == reflect.Pointer:
		return c.check(t.Elem(), true)
	case kind == reflect.Struct:
		return c.checkStruct(fieldsOf(t), nullable)
	case kind == reflect.Array, kind == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		return c.checkList(t.Elem(), nullable || kind == reflect.Slice)
	}
	var raw json.RawMessage
	if err := c.Decode(&raw); err != nil {
		return err
	}
	if string(raw) == "null" && !nullable && kind != reflect.Slice {
		return errNull
	}
	return nil
}

var errNull = errors.New("null is not allowed")

// open reads the beginning of an object or a list and reports whether it is not null.
func (c checker) open(nullable bool) (bool, error) {
	token, err := c.Token()
	if err == nil && token == nil && !nullable {
		err = errNull
	}
	return err == nil && token != nil, err
}

func (c checker) checkList(element reflect.Type, nullable bool) error {
	some, err := c.open(nullable)
	if !some {
		return err
	}
	for i := 0; c.More(); i++ {
		if err := c.check(element, false); err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
	}
	_, err = c.Token()
	return err
}

func (c checker) checkStruct(fields []field, nullable bool) error {
	some, err := c.open(nullable)
	if !some {
		return err
	}
	for c.More() {
		token, err := c.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string) // a field name is always a string
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 {
			// encoding/json accepts field names in a different case.
			folded := slices.ContainsFunc(fields, func(f field) bool { return strings.EqualFold(f.name, name) })
			if folded || !c.ignore {
				return fmt.Errorf("there is no field %q", name)
			}
			var raw json.RawMessage
			if err := c.Decode(&raw); err != nil {
				return err
			}
			continue
		}
		f := &fields[i]
		if f.seen {
			return fmt.Errorf("field %q occurs twice", name)
		}
		f.seen = true
		if err := c.check(f.value, false); err != nil {
			return fmt.Errorf("field %q: %w", name, err)
		}
	}
	for _, f := range fields {
		if f.required && !f.seen {
			return fmt.Errorf("field %q is missing", f.name)
		}
	}
	_, err = c.Token()
	return err
}

// field is a field of a struct.
type field struct {
	name     string
	value    reflect.Type
	required bool
	seen     bool
}

func fieldsOf(t reflect.Type) (fields []field) {
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		fields = append(fields, field{name: name, value: f.Type, required: !optional(options)})
	}
	return fields
}

// optional reports whether the options of a json tag make a field optional.
func optional(options string) bool {
	list := strings.Split(options, ",")
	return slices.Contains(list, "omitempty") || slices.Contains(list, "omitzero")
}
