// Package report turns the results of package measure into words and documents: the verdict on the rails, names and
// descriptions for tables, and the HTML report.
package report
