// Package browser tests the pages of ibverbx in a headless Chromium. It is a module of its own, so that the module of
// the project does not need the driver. `make test-browser` runs it.
package browser
