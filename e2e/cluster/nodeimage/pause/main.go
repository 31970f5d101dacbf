//go:build linux

// Command pause holds the namespaces of a pod: it waits until it is told to
// end, and takes up the children that other processes of the pod leave behind.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "-v" {
		fmt.Println("pause of the Ladder node image")
		return
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGINT, syscall.SIGTERM)
	os.Exit(wait(signals))
}

// wait takes up ended children until a signal asks to end.
func wait(signals <-chan os.Signal) int {
	for s := range signals {
		if s != syscall.SIGCHLD {
			return 0
		}
		// Signals of several children may have become one.
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if pid <= 0 || err != nil {
				break
			}
		}
	}
	return 0
}
