// Package browser tests the pages of ibverbx in a headless Chromium. It is a separate module, so that the
// project's module does not need the driver. `make test-browser` runs it.
package browser
