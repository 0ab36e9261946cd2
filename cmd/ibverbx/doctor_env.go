package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"ibverbx/dropin"
	"ibverbx/internal/doctor"
	"ibverbx/nccl"
	"ibverbx/settings"
)

// judgeEnv reports the ibverbx variables in environ: valid, invalid and unknown ones. environ is os.Environ().
func judgeEnv(environ []string) (found []doctor.Finding) {
	add := func(f doctor.Finding) { f.Check = "environment"; found = append(found, f) }
	rows := settings.All()
	for _, v := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "IBVERBX_") || value == "" || settings.Reserved(name) {
			continue
		}
		if unknown := settings.Unknown([]string{v}); len(unknown) > 0 {
			add(doctor.Finding{
				Level: doctor.Warning, Found: name + " is set", Means: "Nothing reads this variable, and other commands refuse to start.",
				Do: []string{"Unset it, or use " + unknown[0].Nearest + " if you meant that."},
			})
			continue
		}
		i := slices.IndexFunc(rows, func(row settings.Setting) bool { return row.Env == name })
		if i >= 0 {
			if err := new(settings.Settings).Set(rows[i].Name, value, name); err != nil {
				add(doctor.Finding{
					Level: doctor.Warning, Found: err.Error(), Means: "ibverbx perf refuses to start, as do programs that read these variables.",
					Do: []string{fmt.Sprintf("Set it to %s, or unset it.", rows[i].Range)},
				})
				continue
			}
		}
		var option *dropin.OptionError
		if errors.As(new(dropin.Options).Set(strings.TrimPrefix(name, "IBVERBX_"), value), &option) {
			add(doctor.Finding{
				Level: doctor.Warning, Found: option.Error(), Means: "ibverbx run refuses to start, as do programs under it.",
				Do: []string{fmt.Sprintf("Set it to %s, or unset it.", option.Use)},
			})
			continue
		}
		if err := nccl.Check(func(n string) (string, bool) { return value, n == name }); err != nil {
			add(doctor.Finding{
				Level: doctor.Warning, Found: err.Error(), Means: "ibverbx nccl refuses to start.", Do: []string{"Correct it, or unset it."},
			})
			continue
		}
		add(doctor.Finding{Level: doctor.OK, Found: fmt.Sprintf("%s is %s: %s", name, value, useOf(name, rows))})
	}
	return found
}

// useOf describes what reads a variable with a legal value.
func useOf(name string, rows []settings.Setting) string {
	of := new(authFlags).environment()
	if i := slices.IndexFunc(rows, func(row settings.Setting) bool { return row.Env == name }); i >= 0 {
		return strings.ReplaceAll(rows[i].About, "`", "")
	}
	if i := slices.IndexFunc(of, func(v authVariable) bool { return v.name == name }); i >= 0 {
		return "default of " + of[i].flag
	}
	if slices.Contains(dropin.Variables(), name) {
		return "for programs of ibverbx run"
	}
	return "for programs of ibverbx nccl"
}
