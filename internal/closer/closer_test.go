package closer_test

import (
	"errors"
	"slices"
	"testing"

	"ibverbx/internal/closer"
)

func TestStack(t *testing.T) {
	var s closer.Stack
	var order []int
	broken, torn := errors.New("broken"), errors.New("torn")
	for i, err := range []error{nil, broken, nil, torn} {
		s.Add(func() error {
			order = append(order, i)
			return err
		})
	}
	if err := s.Close(); !errors.Is(err, broken) || !errors.Is(err, torn) {
		t.Errorf("Close = %v, want both errors", err)
	}
	if want := []int{3, 2, 1, 0}; !slices.Equal(order, want) {
		t.Errorf("closed in the order %v, want %v", order, want)
	}
	if err := s.Close(); !errors.Is(err, broken) || !errors.Is(err, torn) || len(order) != 4 {
		t.Errorf("second Close = %v after %d calls, want the same errors after 4", err, len(order))
	}
	s.Add(func() error { order = append(order, 5); return nil })
	s.AddBelow(func() error { order = append(order, 4); return nil })
	if err := s.Close(); err != nil || !slices.Equal(order, []int{3, 2, 1, 0, 5, 4}) {
		t.Errorf("Close = %v, and the order is %v; want nil and 5 before 4", err, order)
	}
}
