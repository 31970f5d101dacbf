package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"gpuladder.dev/ladder/e2e/cluster"
	"gpuladder.dev/ladder/e2e/cluster/process"
)

const (
	// readyWithin is how long a part may take to become ready.
	readyWithin   = 90 * time.Second
	readyInterval = 50 * time.Millisecond
	tailLines     = 25
)

// prober asks the parts of a lab whether they are ready.
type prober struct{ client *http.Client }

func newProber(l layout) (*prober, error) {
	roots := x509.NewCertPool()
	for _, file := range []string{fileCA, fileEtcdCA} {
		content, err := os.ReadFile(l.pki(file))
		if err != nil {
			return nil, fmt.Errorf("reading an authority, %w", err)
		}
		roots.AppendCertsFromPEM(content)
	}
	cert, err := tls.LoadX509KeyPair(l.pki(fileEtcdClient+".crt"), l.pki(fileEtcdClient+".key"))
	if err != nil {
		return nil, fmt.Errorf("loading etcd's client certificate, %w", err)
	}
	transport := &http.Transport{
		Proxy:             nil, // never by way of a proxy from the environment
		DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{
			RootCAs: roots, MinVersion: tls.VersionTLS12,
			// Only etcd asks for a certificate of its own authority; the others
			// serve their health to everybody and must not be shown one that
			// they do not know.
			GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if info.SupportsCertificate(&cert) == nil {
					return &cert, nil
				}
				return &tls.Certificate{}, nil
			},
		},
	}
	return &prober{client: &http.Client{Transport: transport, Timeout: 5 * time.Second}}, nil
}

// wait returns when the URL answers 200, and fails when the process ends or
// time is up, telling the last answer and the end of the log.
func (p *prober) wait(ctx context.Context, name, url, log string, proc *process.Process) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	var last error
	for {
		if last = p.probe(ctx, url); last == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-proc.Done():
			return partError(name, fmt.Errorf("ended before it was ready, %w", exitReason(proc)), log)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return fmt.Errorf("waiting for %s, %w", name, ctx.Err())
			}
			return partError(name, fmt.Errorf("not ready in time, last answer: %w", last), log)
		}
	}
}

func (p *prober) probe(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

// errExitedCleanly stands for an exit status of 0, which from a server is as
// unexpected as any other.
var errExitedCleanly = errors.New("exit status 0")

func exitReason(proc *process.Process) error {
	if err := proc.Exit(); err != nil {
		return err
	}
	return errExitedCleanly
}

func partError(name string, reason error, log string) *cluster.ComponentError {
	return &cluster.ComponentError{Component: name, Reason: reason, Log: log, Tail: process.Tail(log, tailLines)}
}
