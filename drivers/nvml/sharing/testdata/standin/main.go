// Command standin is nvidia-smi and nvidia-cuda-mps-control where neither is:
// by the name under which it is called. It has no library, so that it runs in a
// root folder that has nothing else. What goes wrong with it says a file
// /standin/<program> in that folder: fail, hang, die, deaf, mute.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	name := filepath.Base(os.Args[0])
	does, _ := os.ReadFile("/standin/" + name)
	trouble := strings.TrimSpace(string(does))
	note(name + " " + strings.Join(os.Args[1:], " "))
	switch {
	case len(os.Args) == 2 && os.Args[1] == "daemon":
		serve(trouble)
	case trouble == "fail":
		fmt.Fprintln(os.Stderr, "Unable to do it:\nInsufficient Permissions")
		os.Exit(4)
	case trouble == "hang":
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Hour)
	case name == "nvidia-cuda-mps-control" && len(os.Args) == 2 && os.Args[1] == "-d":
		daemonize(trouble)
	case name == "nvidia-cuda-mps-control":
		ask()
	}
}

// note writes down what was called.
func note(line string) {
	file, err := os.OpenFile("/standin/calls", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer file.Close()
	fmt.Fprintln(file, strings.TrimSpace(line))
}

func socket() string { return os.Getenv("CUDA_MPS_PIPE_DIRECTORY") + "/control" }

// daemonize leaves a daemon behind that keeps the output open.
func daemonize(trouble string) {
	if trouble == "die" {
		return
	}
	cmd := exec.Command("/proc/self/exe", "daemon")
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		cmd = exec.Command("/usr/bin/nvidia-cuda-mps-control", "daemon")
	}
	cmd.Args[0] = "nvidia-cuda-mps-control"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// serve is the daemon.
func serve(trouble string) {
	signal.Ignore(syscall.SIGTERM)
	note("gpus " + os.Getenv("CUDA_VISIBLE_DEVICES"))
	_ = os.WriteFile("/dev/shm/standin", nil, 0o600)
	_ = os.Remove(socket())
	listener, err := net.Listen("unix", socket())
	if err != nil {
		note("error " + err.Error())
		os.Exit(1)
	}
	percentage := "100.0"
	for {
		connection, err := listener.Accept()
		if err != nil {
			os.Exit(1)
		}
		if trouble == "mute" {
			continue // and keep it
		}
		line, _ := bufio.NewReader(connection).ReadString('\n')
		words := strings.Fields(line)
		note("told " + strings.TrimSpace(line))
		switch {
		case len(words) == 1 && words[0] == "get_default_active_thread_percentage":
			fmt.Fprintln(connection, percentage)
		case len(words) == 2 && words[0] == "set_default_active_thread_percentage":
			if trouble != "deaf" {
				percentage = words[1] + ".0"
			}
		case len(words) == 1 && words[0] == "quit" && trouble != "deaf":
			os.Exit(0)
		}
		connection.Close()
	}
}

// ask hands one command on.
func ask() {
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	connection, err := net.Dial("unix", socket())
	if err != nil {
		fmt.Println("Cannot find MPS control daemon process")
		os.Exit(1)
	}
	fmt.Fprint(connection, line)
	_, _ = bufio.NewReader(connection).WriteTo(os.Stdout)
}
