package dropin

import (
	"strings"
	"testing"
)

// TestStubs: symbols that the shim does not define become stubs, and the version script lists every
// symbol once, under its version.
func TestStubs(t *testing.T) {
	c, m := stubs([]symbol{
		{name: "ibv_alloc_pd", version: "IBVERBS_1.1"},
		{name: "ibv_alloc_pd", version: "IBVERBS_1.0", old: true},
		{name: "ibv_new_thing", version: "IBVERBS_1.99"},
		{name: "verbs_open_device", version: "IBVERBS_PRIVATE_34"},
		{name: "verbs_flag", version: "IBVERBS_PRIVATE_34", size: 1},
		{name: "_edata", version: "OTHER_1"},
	}, map[string]bool{"ibv_alloc_pd": true})
	for _, want := range []string{
		"int ibv_new_thing(void) { errno = ENOSYS; return ENOSYS; }",
		"void *verbs_open_device(void) { errno = ENOSYS; return NULL; }",
		"char verbs_flag[1]",
		`__asm__(".symver ibx_old_1,ibv_alloc_pd@IBVERBS_1.0")`,
	} {
		if !strings.Contains(c, want) {
			t.Errorf("the stubs lack %q:\n%s", want, c)
		}
	}
	if strings.Contains(c, " ibv_alloc_pd(void)") || strings.Contains(c+m, "_edata") {
		t.Errorf("the stubs have what the shim has, or what is not of libibverbs:\n%s", c)
	}
	want := `IBVERBS_1.0 {
local:
	*;
};
IBVERBS_1.1 {
global:
	ibv_alloc_pd;
};
IBVERBS_1.99 {
global:
	ibv_new_thing;
};
IBVERBS_PRIVATE_34 {
global:
	verbs_open_device;
	verbs_flag;
};
IBVERBX {
global:
	ibx_path;
	ibx_cm_open;
	ibx_cm_write;
	ibx_cm_close;
};
`
	if m != want {
		t.Errorf("the version script is\n%s\nwant\n%s", m, want)
	}
}
