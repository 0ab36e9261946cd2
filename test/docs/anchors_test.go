package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"ibverbx/internal/enginetest"
)

var (
	anchorLink = regexp.MustCompile(`\]\(([^)#:\s]*)#([^)\s]+)\)`)
	heading    = regexp.MustCompile(`^#{1,6} +(.*?)( +#+)? *$`)
	inlineLink = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// markdown returns the path of every Markdown file in the repository, relative to its root.
func markdown(t *testing.T) (pages []string) {
	t.Helper()
	enginetest.Must(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != "../.." {
			return filepath.SkipDir
		}
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".md") {
			pages = append(pages, strings.TrimPrefix(filepath.ToSlash(path), "../../"))
		}
		return err
	}))
	return pages
}

// withoutBlocks blanks the fenced blocks of a page and keeps its line numbers.
func withoutBlocks(page string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(page) {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			inside = !inside
		}
		if inside || fence {
			line = "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

// anchors returns the anchors that GitHub generates for the headings of a page.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for line := range strings.Lines(withoutBlocks(page)) {
		m := heading.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, inlineLink.ReplaceAllString(m[1], "$1"))
		unique := anchor
		for i := 1; found[unique]; i++ {
			unique = fmt.Sprintf("%s-%d", anchor, i)
		}
		found[unique] = true
	}
	return found
}

// TestAnchors: a link to a part of a page leads to an existing heading.
func TestAnchors(t *testing.T) {
	for _, page := range markdown(t) {
		text, err := os.ReadFile(filepath.Join("../..", page))
		enginetest.Must(t, err)
		for _, m := range anchorLink.FindAllStringSubmatch(withoutBlocks(string(text)), -1) {
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
			}
			if !strings.HasSuffix(target, ".md") {
				continue
			}
			there, err := os.ReadFile(filepath.Join("../..", target))
			if err != nil {
				t.Errorf("%s links to %s#%s: %v", page, target, m[2], err)
			} else if !anchors(string(there))[m[2]] {
				t.Errorf("%s links to %s#%s, which is not the anchor of a heading", page, target, m[2])
			}
		}
	}
}

// TestAnchorRule: anchors follow the rule of GitHub.
func TestAnchorRule(t *testing.T) {
	page := "# `run` & more\n```\n# not a heading\n```\n## A [link](x.md), twice\n## A link, twice\n### Soft-RoCE: 2 NICs_here ##\n"
	for _, want := range []string{"run--more", "a-link-twice", "a-link-twice-1", "soft-roce-2-nics_here"} {
		if !anchors(page)[want] {
			t.Errorf("%q is missing in %v", want, anchors(page))
		}
	}
	if n := len(anchors(page)); n != 4 {
		t.Errorf("%d anchors, want 4: %v", n, anchors(page))
	}
}
