package measure_test

import (
	"fmt"
	"log"

	"ibverbx/sim/measure"
)

// Measure a scenario with a small payload. The same seed gives the same result.
func Example() {
	s, ok := measure.Builtin("reliable-400g-loss-1")
	if !ok {
		log.Fatal("unknown scenario")
	}
	var ratios [2]float64
	for i := range ratios {
		result, err := s.Run(measure.Options{Seed: 1, Bytes: 4 << 20})
		if err != nil {
			log.Fatal(err)
		}
		ratios[i] = result.GoodputRatio
	}
	fmt.Println(ratios[0] > 0, ratios[0] == ratios[1])
	// Output: true true
}
