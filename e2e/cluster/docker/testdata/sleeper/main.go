// Command sleeper is what runs in the containers of the tests: it prints the
// capabilities that it may have, and with an argument waits until it is ended.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "CapBnd:") {
			fmt.Print(line)
		}
	}
	if len(os.Args) > 1 {
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, syscall.SIGTERM)
		<-ended
	}
}
