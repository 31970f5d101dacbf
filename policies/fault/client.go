package fault

// This file is the side of the protocol that asks for faults.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
)

// ErrOff is returned where no driver listens on the socket.
var ErrOff = errors.New("faults are off: start the driver with --allow-faults")

// Client controls the faults of the driver behind one socket.
type Client struct {
	socket string
	http   *http.Client
}

var _ Interface = &Client{}

// NewClient returns a client of the driver behind a socket. It connects when
// it is used, each time anew, so a driver that restarts in between is no matter.
func NewClient(socket string) *Client {
	var dialer net.Dialer
	return &Client{socket: socket, http: &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", socket)
			},
		},
	}}
}

// List implements [Interface].
func (c *Client) List(ctx context.Context) ([]Fault, error) {
	var body list
	err := c.do(ctx, http.MethodGet, Path, nil, &body)
	return body.Faults, err
}

// Inject implements [Interface]. What is wrong with the fault is an error that
// [Refused] is true for.
func (c *Client) Inject(ctx context.Context, spec Spec) (Fault, error) {
	var fault Fault
	err := c.do(ctx, http.MethodPost, Path, spec, &fault)
	return fault, err
}

// Clear implements [Interface].
func (c *Client) Clear(ctx context.Context, which Selector) ([]Fault, error) {
	query := url.Values{}
	if which.ID != "" {
		query.Set("id", which.ID)
	}
	if which.Device != "" {
		query.Set("device", which.Device)
	}
	path := Path
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	var body list
	err := c.do(ctx, http.MethodDelete, path, nil, &body)
	return body.Faults, err
}

// StatusError is the driver's own answer where it is an error.
type StatusError struct {
	// Code is the status of HTTP.
	Code int
	// Message is what the driver said.
	Message string
}

func (e *StatusError) Error() string { return e.Message }

// Is makes it [ErrNotFound] or [ErrUnsupported] where the driver said so.
func (e *StatusError) Is(target error) bool {
	return target == ErrNotFound && e.Code == http.StatusNotFound ||
		target == ErrUnsupported && e.Code == http.StatusUnprocessableEntity
}

// Refused says whether the driver would give the same answer again: the
// request makes no sense, or names what is not there.
func Refused(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Code >= 400 && status.Code < 500
}

func (c *Client) do(ctx context.Context, method, path string, body, into any) error {
	var sent io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("writing the request, %w", err)
		}
		sent = bytes.NewReader(raw)
	}
	// The host goes into the request's header only.
	request, err := http.NewRequestWithContext(ctx, method, "http://driver"+path, sent)
	if err != nil {
		return fmt.Errorf("making the request, %w", err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return c.explain(err)
	}
	defer func() { _ = response.Body.Close() }()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return c.explain(err)
	}
	if response.StatusCode >= 300 {
		var said failure
		if json.Unmarshal(raw, &said) != nil || said.Error == "" {
			said.Error = fmt.Sprintf("%s is no driver: it answered %s", c.socket, response.Status)
		}
		return &StatusError{Code: response.StatusCode, Message: said.Error}
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("reading the driver's answer, %w", err)
	}
	return nil
}

// explain says what an error of the connection means.
func (c *Client) explain(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // without the method and the made-up host
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no socket %s, %w", c.socket, ErrOff)
	case errors.Is(err, syscall.ECONNREFUSED):
		if info, statErr := os.Stat(c.socket); statErr == nil && info.Mode().Type() != fs.ModeSocket {
			return fmt.Errorf("%s is not a socket", c.socket)
		}
		return fmt.Errorf("nobody listens on %s, %w", c.socket, ErrOff)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s is for root only, %w", c.socket, err)
	}
	return fmt.Errorf("asking the driver, %w", err)
}
