package dropin_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"ibverbx/dropin"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Run an unmodified RDMA program on two software NICs that lose 0.1 % of the packets it sends.
func Example() {
	lib, err := dropin.Find(context.Background(), os.LookupEnv, os.Stderr)
	if err != nil {
		log.Fatal(err)
	}
	env, err := lib.Env(os.Environ())
	if err != nil {
		log.Fatal(err)
	}
	o := dropin.Options{Devices: 2, Impairment: softnic.Impairment{Loss: 0.001}}
	cmd := exec.Command("ibv_devinfo")
	cmd.Env = append(append(os.Environ(), env...), o.Env()...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		log.Fatal(err)
	}
}

// Options travel to the program in environment variables.
func ExampleOptions_Env() {
	o := dropin.Options{
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, MTU: verbs.MTU1024, Impairment: softnic.Impairment{Loss: 0.001},
	}
	fmt.Println(strings.Join(o.Env(), "\n"))

	var bad *dropin.OptionError
	if err := o.Set("LOSS", "200%"); errors.As(err, &bad) {
		fmt.Println("invalid:", bad.Variable, bad.Value)
	}
	// Output:
	// IBVERBX_ADDR=10.0.0.1
	// IBVERBX_MTU=1024
	// IBVERBX_LOSS=0.001
	// invalid: IBVERBX_LOSS 200%
}
