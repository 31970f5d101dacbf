package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken below the range from which Linux serves outgoing
// connections (32768 and up by default), where nothing else appears by chance.
const (
	firstPort = 20000
	lastPort  = 32000
	portTries = 500
)

// ErrNoPort says that no free port was found.
var ErrNoPort = errors.New("no free port was found")

// reservation keeps a port for one lab. The port itself must be free for the
// component that will listen there, also while that component is restarted, so
// it is a socket with the port in its abstract name that is held: it leaves no
// file, and the kernel drops it with its process.
type reservation struct {
	port int
	held net.Listener
}

// reservePort finds a port on 127.0.0.1 that nobody uses and no lab has.
func reservePort() (*reservation, error) {
	for range portTries {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if r := tryPort(port); r != nil {
			return r, nil
		}
	}
	return nil, fmt.Errorf("trying %d ports from %d to %d, %w", portTries, firstPort, lastPort, ErrNoPort)
}

func tryPort(port int) *reservation {
	held, err := net.Listen("unix", "@ladder-lab-port-"+strconv.Itoa(port))
	if err != nil {
		return nil
	}
	free, err := net.Listen("tcp4", loopback(port))
	if err != nil {
		held.Close()
		return nil
	}
	free.Close()
	return &reservation{port: port, held: held}
}

func (r *reservation) release() { r.held.Close() }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
