package strictjson_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"ibverbx/internal/strictjson"
)

type inner struct {
	A int    `json:"a"`
	B []byte `json:"b,omitempty"`
}

type Embedded struct {
	Key uint32 `json:"key"`
}

type outer struct {
	Name string  `json:"name"`
	In   inner   `json:"in"`
	List []inner `json:"list"`
	Ptr  *inner  `json:"ptr"`
	Num  int     `json:"num,omitempty"`
	Word word    `json:"word,omitempty"`
	Embedded
}

// word decodes itself.
type word string

func (w *word) UnmarshalText(b []byte) error {
	*w = word(strings.ToUpper(string(b)))
	return nil
}

func TestDecode(t *testing.T) {
	const good = `{"name":"n","in":{"a":1},"list":[{"a":2,"b":"AQ=="}],"ptr":null,"key":7}`
	edit := func(old, text string) string { return strings.Replace(good, old, text, 1) }
	tests := map[string]struct{ text, want string }{
		"good":             {good, ""},
		"spaces and order": {edit(`{"name":"n",`, "\n{ \"num\":3, \"word\": \"w\",\t\"name\":\"n\","), ""},
		"null slice":       {edit(`[{"a":2,"b":"AQ=="}]`, `null`), ""},
		"pointer":          {edit(`null`, `{"a":3}`), ""},
		"null bytes":       {edit(`"AQ=="`, `null`), ""},
		"unknown":          {edit(`"name"`, `"nome":1,"name"`), `there is no field "nome"`},
		"other case":       {edit(`"name"`, `"Name"`), `there is no field "Name"`},
		"embedded":         {edit(`"name"`, `"Embedded":{},"name"`), `there is no field "Embedded"`},
		"missing":          {edit(`,"key":7`, ``), `field "key" is missing`},
		"missing inside":   {edit(`{"a":2,`, `{`), `field "list": element 0: field "a" is missing`},
		"repeated":         {edit(`"name"`, `"name":"m","name"`), `field "name" occurs twice`},
		"repeated inside":  {edit(`"in":{"a":1}`, `"in":{"a":1,"a":1}`), `field "in": field "a" occurs twice`},
		"unknown inside":   {edit(`null`, `{"a":1,"c":2}`), `field "ptr": there is no field "c"`},
		"null number":      {edit(`7`, `null`), `field "key": null is not allowed`},
		"null struct":      {edit(`{"a":1}`, `null`), `field "in": null is not allowed`},
		"null element":     {edit(`{"a":2,"b":"AQ=="}`, `null`), `element 0: null is not allowed`},
		"null":             {`null`, "null is not allowed"},
		"more behind":      {good + `{}`, "after top-level value"},
		"cut":              {good[:20], "unexpected end"},
		"another type":     {edit(`7`, `"7"`), "cannot unmarshal"},
		"not UTF-8":        {edit(`"n"`, "\"\xff\""), "not UTF-8"},
		"deep":             {strings.Repeat("[", 20000), "exceeded max depth"},
		"long":             {good + strings.Repeat(" ", 100000), "at most 30000 are allowed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := strictjson.Decode([]byte(tt.text), 30000, new(outer))
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Decode(%.200s) = %v, want %q", tt.text, err, tt.want)
			}
		})
	}
}

// TestDecodeKnown: unknown fields are ignored at every depth. Everything else is rejected as by
// Decode.
func TestDecodeKnown(t *testing.T) {
	const good = `{"name":"n","in":{"a":1},"list":[{"a":2,"b":"AQ=="}],"ptr":{"a":3},"key":7}`
	var want outer
	if err := strictjson.Decode([]byte(good), 1000, &want); err != nil {
		t.Fatalf("Decode = %v, want no error", err)
	}
	edit := func(old, text string) string { return strings.Replace(good, old, text, 1) }
	for text, wrong := range map[string]string{
		good: "",
		edit(`"name"`, `"later":{"deep":[1,{"name":2}]},"later":null,"name"`): "",
		edit(`{"a":1}`, `{"later":"x","a":1}`):                                "",
		edit(`{"a":2,`, `{"a":2,"later":[],`):                                 "",
		edit(`{"a":3}`, `{"later":1e9,"a":3}`):                                "",
		edit(`"name"`, `"NAME":"m","name"`):                                   `there is no field "NAME"`,
		edit(`"key"`, `"\u212aey":9,"key"`):                                   "there is no field",
		edit(`"key":7`, `"later":7`):                                          `field "key" is missing`,
		edit(`"name"`, `"name":"m","name"`):                                   `field "name" occurs twice`,
		edit(`"name"`, `"later":[,"name"`):                                    "invalid character",
	} {
		var got outer
		err := strictjson.DecodeKnown([]byte(text), 1000, &got)
		if (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("DecodeKnown(%s) = %+v, %v, want %+v, %q", text, got, err, want, wrong)
		}
	}
}

// An accepted text has the same meaning for encoding/json, whose output is accepted again.
func FuzzDecode(f *testing.F) {
	f.Add(`{"name":"n","in":{"a":1},"list":[{"a":2,"b":"AQ=="}],"ptr":null,"key":7}`)
	f.Add(`{"name":"\ud800","in":{"a":1e1},"list":null,"ptr":{"a":-0},"key":7,"word":"x"}`)
	f.Add(`{"later":{},"name":"n","in":{"a":1},"list":null,"ptr":null,"key":7}`)
	f.Fuzz(func(t *testing.T, text string) {
		var got, want, again outer
		if strictjson.DecodeKnown([]byte(text), 1<<16, &got) != nil {
			return
		}
		if err := json.Unmarshal([]byte(text), &want); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("Decode(%q) = %+v, want %+v, %v", text, got, want, err)
		}
		b, err := json.Marshal(got)
		if err != nil {
			t.Fatalf("Marshal = %v", err)
		}
		if err := strictjson.Decode(b, 1<<20, &again); err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("Decode(%s) = %+v, %v, want %+v", b, again, err, got)
		}
	})
}
