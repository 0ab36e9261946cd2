package main

import (
	"fmt"

	"ibverbx/internal/compare"
	"ibverbx/internal/report"
)

// compareDocument has the files, and a table of each metric for each side but the first.
func compareDocument(names []string, sets []*compare.Set) *report.Document {
	files := report.Section{Title: "Files"}
	for i, name := range names {
		files.Facts = append(files.Facts, report.Fact{Name: name, Value: setText(sets[i])})
	}
	d := &report.Document{Title: "ibverbx compare", Summary: "Values are medians, or percentiles of all times, with how far off they may be at a confidence of 95 %. " +
		"A change has the probability p that it is chance; ~ means that none is shown.", Sections: []report.Section{files}}
	for i := range sets[1:] {
		s := report.Section{Title: fmt.Sprintf("%s and %s", names[0], names[i+1])}
		list := compare.Sets(sets[0], sets[i+1])
		if len(list) == 0 {
			s.Text = "They have no size of the same operation in common."
		}
		var last compare.Key
		for k := range list {
			diff := &list[k]
			key := diff.Key
			key.Size = 0
			if key != last {
				last = key
				s.Tables = append(s.Tables, report.Table{Title: metricText(&key), Head: []string{"Bytes", names[0], names[i+1], "Change"}})
			}
			t := &s.Tables[len(s.Tables)-1]
			row := report.Cells(fmt.Sprint(diff.Size), valueText(&diff.Old, diff.Metric), valueText(&diff.New, diff.Metric), changeText(diff))
			switch better := (diff.Change > 0) == (diff.Metric == compare.Rate); {
			case diff.Significant() && better:
				row[3].Look = report.Good
			case diff.Significant():
				row[3].Look = report.Bad
			}
			t.Rows = append(t.Rows, row)
		}
		d.Sections = append(d.Sections, s)
	}
	return d
}
