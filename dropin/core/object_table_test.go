//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"sync"
	"testing"
)

// TestTable: numbers start at 1, identify their objects until removed, and are then reused.
func TestTable(t *testing.T) {
	var tab table[int]
	if tab.get(0) != nil || tab.get(7) != nil || tab.find(func(*int) bool { return true }) != nil {
		t.Error("an empty table has objects")
	}
	values := make([]int, 100)
	for i := range values {
		if n := tab.add(&values[i]); n != uint32(i+1) {
			t.Fatalf("number %d, want %d", n, i+1)
		}
	}
	for i := range values {
		if tab.get(uint32(i+1)) != &values[i] {
			t.Fatalf("number %d names another object", i+1)
		}
	}
	tab.remove(42)
	if tab.get(42) != nil || tab.get(1000) != nil {
		t.Error("a number without an object has one")
	}
	if n := tab.add(&values[0]); n != 42 {
		t.Errorf("number %d, want the one that is free, 42", n)
	}
	if got := tab.find(func(v *int) bool { return v == &values[99] }); got != &values[99] {
		t.Error("find found another object")
	}
}

// TestTableBesideChanges: lookups may run concurrently with changes.
func TestTableBesideChanges(t *testing.T) {
	var tab table[int]
	v := 7
	n := tab.add(&v)
	var done sync.WaitGroup
	for range 2 {
		done.Go(func() {
			for range 1000 {
				k := tab.add(new(int))
				tab.remove(k)
			}
		})
	}
	for range 10000 {
		if tab.get(n) != &v {
			t.Fatal("the object is gone")
		}
	}
	done.Wait()
}
