// Package closer closes what a function has opened.
package closer

import "errors"

// Stack holds functions that close things. The zero value is empty.
type Stack struct{ list []func() error }

// Add makes Close call f, before the functions that were added earlier.
func (s *Stack) Add(f func() error) { s.list = append(s.list, f) }

// Close calls the functions, the last one first, also after an error, and returns all errors. The
// Stack is empty afterwards.
func (s *Stack) Close() error {
	var errs []error
	for len(s.list) > 0 {
		last := len(s.list) - 1
		f := s.list[last]
		s.list = s.list[:last]
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}
