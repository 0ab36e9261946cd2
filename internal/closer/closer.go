// Package closer provides a [Stack] of close functions, called in reverse order.
package closer

import (
	"errors"
	"slices"
	"sync"
)

// Stack holds functions that close things. The zero value is empty. All methods are safe for concurrent use, but the functions must not call
// them.
type Stack struct {
	mu   sync.Mutex
	list []func() error
	err  error // the result of the last Close
}

// Add makes Close call f before all functions added earlier.
func (s *Stack) Add(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.err = append(s.list, f), nil
}

// AddBelow makes Close call f after all functions added earlier.
func (s *Stack) AddBelow(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.err = slices.Insert(s.list, 0, f), nil
}

// Close calls the functions in reverse order, even after an error, and joins their errors. The Stack is empty afterwards. Of concurrent calls,
// one calls the functions and the others wait for it. They and later calls return its result, until something is added.
func (s *Stack) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == 0 {
		return s.err
	}
	var errs []error
	for len(s.list) > 0 {
		last := len(s.list) - 1
		f := s.list[last]
		s.list = s.list[:last]
		errs = append(errs, f())
	}
	s.err = errors.Join(errs...)
	return s.err
}
