// Package command holds what all of ladder's commands share: where they read
// and write, how they end, and the flags -f and -o.
//
// # Exit codes
//
//	0  done; decide: every Pod got its devices
//	1  it did not work: a file cannot be written, the API server does not
//	   answer, replay and diff found a difference, lint found a mistake, or
//	   Ctrl-C came before the end ("interrupted")
//	2  bad input or a bad command line: one line on stderr, nothing on stdout
//	3  decide: some Pods did not get devices
package command
