// Package twohosts tests the two programs below it, receive and send, as two processes.
package twohosts
