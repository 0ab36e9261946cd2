package sim

import (
	"strings"
	"testing"
)

// TestParseErrors checks that errors of Parse name the mistake and the line.
func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"lames 4":                     `no setting "lames"`,
		"hosts 2\nlanes":              "line 2: lanes has no value",
		"lanes many":                  `"many"`,
		"lanes 8..2":                  "ends before it begins",
		"lanes 100":                   "want 1 to 64",
		"loss 2":                      "percentage",
		"loss 101%":                   "percentage",
		"delay 5":                     "not a time",
		"rate fast":                   "none, 100MB/s or 2GB/s",
		"scheme best":                 "tally, dqplb or spray",
		"failover perhaps":            "off, on",
		"mtu 1500":                    "256, 512, 1024, 2048 or 4096",
		"ops push":                    `"push"`,
		"ops":                         "write, imm, read, send, atomic",
		"expect":                      "contract, success, failure",
		"fault":                       "takes a kind",
		"fault earthquake":            `no fault "earthquake"`,
		"fault cut at soon":           "not a time",
		"fault cut lanes 4":           `no setting "lanes" here`,
		"fault lane-error end 0c":     `end "0c"`,
		"fault-kinds cut earthquake":  `no fault "earthquake"`,
		"rail x loss 2%":              `rail "x"`,
		"rail 0 lanes 4":              `no setting "lanes" here`,
		"rail 0":                      "takes its number and settings",
		"end 0 messages 4":            `end "0"`,
		"sweep k":                     "sweep takes a word and a range",
		"sweep k 0..9\nend 0a lane 4": `no setting "lane" here`,
		"lanes $k":                    `line 1: lanes: "$k": want a whole number`,
		"sweep k 1..2\nlanes $j":      `line 2: lanes: "$j": want a whole number`,
	} {
		if _, err := Parse("test", text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line ") {
			t.Errorf("Parse(%q) = %v, want %q and the line", text, err, want)
		}
	}
}

// TestSettings checks that every plan has the settings that the scenario fixes.
func TestSettings(t *testing.T) {
	s, err := Parse("test", `
		about  Two words.   # and a comment
		hosts 3
		rails 2
		connections 2
		loss 1%
		rail 1 loss 2.5% mtu 512
		lanes 2..5
		connection 1 lanes 7 scheme spray from 1 to 0
		end 1b messages 9 send-depth 32
		sizes 1KiB..4KiB
		ops write send
		faults 0
		sweep j 1..2
		sweep k 0..3
		fault cut rail 1 from 0 to 2 at 1ms for $kms
		fault refuse end 1a lane 2 after $j at 5us
		expect failure`)
	if err != nil {
		t.Fatal(err)
	}
	if s.About != "Two words." {
		t.Errorf("About = %q", s.About)
	}
	plans, err := s.Plans(3)
	if err != nil {
		t.Fatal(err)
	}
	if len(plans) != 8 {
		t.Fatalf("%d plans, want 2 times 4", len(plans))
	}
	for i, p := range plans {
		c := p.Connects[1]
		if p.Hosts != 3 || len(p.Rails) != 2 || p.Rails[0].Impairment.Loss != 0.01 || p.Rails[1].Impairment.Loss != 0.025 ||
			p.Rails[1].MTU.Bytes() != 512 || c.Lanes != 7 || c.Scheme.String() != "spray" || c.From != 1 || c.To != 0 ||
			c.Ends[1].Messages != 9 || c.Ends[1].SendDepth != 32 || p.Work.Sizes != [2]int{1024, 4096} ||
			p.Work.Ops != OpWrite|OpSend || p.Expect != ExpectFailure {
			t.Errorf("plan %d is not what the scenario says:\n%s", i, p)
		}
		if n := p.Connects[0].Lanes; n < 2 || n > 5 {
			t.Errorf("plan %d: connection 0 has %d lanes, want 2 to 5", i, n)
		}
		faults := "cut rail 1 from 0 to 2 at 1ms for " + []string{"0s", "1ms", "2ms", "3ms"}[i%4] +
			", refuse end 1a lane 2 after " + []string{"1", "2"}[i/4] + " at 5us"
		if got := p.Faults[0].String() + ", " + p.Faults[1].String(); len(p.Faults) != 2 || got != faults {
			t.Errorf("plan %d: faults %q, want %q", i, got, faults)
		}
	}
}

// TestSweepOfOneValue: a sweep of one value, for example of the one that fails, uses it.
func TestSweepOfOneValue(t *testing.T) {
	s, err := Parse("test", "sweep k 57..57\nlanes $k\n")
	if err != nil {
		t.Fatal(err)
	}
	plans, err := s.Plans(1)
	if err != nil || len(plans) != 1 || plans[0].Connects[0].Lanes != 57 {
		t.Fatalf("plans = %v, %v, want one with 57 lanes", plans, err)
	}
}

// TestLargeSizes: the sizes of a scenario may all be above that of the largest SEND, which is then the size of all SENDs.
func TestLargeSizes(t *testing.T) {
	s, err := Parse("test", "sizes 64KiB..256KiB\nmessages 20\nops send write\nfailover off")
	if err != nil {
		t.Fatal(err)
	}
	clean(t, s, 1, 2)
}

// FuzzParse: no text makes Parse panic, and every plan can be printed and parsed again.
func FuzzParse(f *testing.F) {
	for _, name := range Names() {
		s, err := Builtin(name)
		if err != nil {
			f.Fatal(err)
		}
		if len(s.sweeps) == 0 {
			f.Add(s.text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("fuzz", text)
		if err != nil || len(s.sweeps) > 0 {
			return
		}
		plans, err := s.Plans(1)
		if err != nil {
			t.Fatalf("a text that was read has no plan: %v", err)
		}
		again, err := Parse("again", plans[0].String())
		if err != nil {
			t.Fatalf("a plan cannot be read: %v\n%s", err, plans[0])
		}
		back, err := again.Plans(1)
		if err != nil || back[0].String() != plans[0].String() {
			t.Fatalf("read again the plan is\n%s\nwant\n%s", back[0], plans[0])
		}
	})
}
