package settings_test

import (
	"fmt"
	"log"

	"ibverbx/settings"
)

// Flags are set first, then the environment fills in the rest. A program passes os.LookupEnv to ReadEnv.
func Example() {
	env := map[string]string{"IBVERBX_TCLASS": "8", "IBVERBX_RETRY": "3"}
	lookup := func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}

	var s settings.Settings
	if err := s.Set("tclass", "104", "--tclass"); err != nil {
		log.Fatal(err)
	}
	if err := s.ReadEnv(lookup); err != nil {
		log.Fatal(err)
	}
	for _, o := range s.Origins {
		fmt.Printf("%s is %s (%s)\n", o.Name, o.Value, o.From)
	}
	fmt.Println(s.Set("sl", "16", "--sl"))
	// Output:
	// tclass is 104 (--tclass)
	// retry is 3 (IBVERBX_RETRY)
	// --sl is "16": want 0 to 15
}
