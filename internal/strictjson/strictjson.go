// Package strictjson decodes JSON that came from a peer. It refuses what encoding/json lets pass,
// so that a text means one thing to every reader.
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

// Decode reads one JSON value of at most limit bytes into v, a pointer. A struct takes its fields
// under their exact names, each at most once and no others. A field is required unless its tag
// says omitempty or omitzero, and only pointers and slices may be null. An error names the field. Maps and
// types that decode themselves are left to encoding/json. After an error v holds parts of the text.
func Decode(text []byte, limit int, v any) error {
	if len(text) > limit {
		return fmt.Errorf("%d bytes, at most %d are allowed", len(text), limit)
	}
	if !utf8.Valid(text) {
		return errors.New("the text is not UTF-8")
	}
	if err := json.Unmarshal(text, v); err != nil {
		return err
	}
	return check(json.NewDecoder(bytes.NewReader(text)), reflect.TypeOf(v).Elem(), false)
}

// check reads one value, which is known to fit its type.
func check(dec *json.Decoder, t reflect.Type, nullable bool) error {
	p := reflect.PointerTo(t)
	kind := t.Kind()
	if p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		kind = reflect.Invalid
	}
	switch {
	case kind == reflect.Pointer:
		return check(dec, t.Elem(), true)
	case kind == reflect.Struct:
		return checkStruct(dec, fieldsOf(t), nullable)
	case kind == reflect.Array, kind == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		return checkList(dec, t.Elem(), nullable || kind == reflect.Slice)
	}
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return err
	}
	if string(raw) == "null" && !nullable && kind != reflect.Slice {
		return errNull
	}
	return nil
}

var errNull = errors.New("null is not allowed")

// open reads the beginning of an object or a list and reports whether it is not null.
func open(dec *json.Decoder, nullable bool) (bool, error) {
	token, err := dec.Token()
	if err == nil && token == nil && !nullable {
		err = errNull
	}
	return err == nil && token != nil, err
}

func checkList(dec *json.Decoder, element reflect.Type, nullable bool) error {
	some, err := open(dec, nullable)
	if !some {
		return err
	}
	for i := 0; dec.More(); i++ {
		if err := check(dec, element, false); err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
	}
	_, err = dec.Token()
	return err
}

func checkStruct(dec *json.Decoder, fields []field, nullable bool) error {
	some, err := open(dec, nullable)
	if !some {
		return err
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 {
			return fmt.Errorf("there is no field %q", name)
		}
		f := &fields[i]
		if f.seen {
			return fmt.Errorf("field %q occurs twice", name)
		}
		f.seen = true
		if err := check(dec, f.value, false); err != nil {
			return fmt.Errorf("field %q: %w", name, err)
		}
	}
	for _, f := range fields {
		if f.required && !f.seen {
			return fmt.Errorf("field %q is missing", f.name)
		}
	}
	_, err = dec.Token()
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

// optional reports whether the options of a json tag allow a field to be left out.
func optional(options string) bool {
	list := strings.Split(options, ",")
	return slices.Contains(list, "omitempty") || slices.Contains(list, "omitzero")
}
