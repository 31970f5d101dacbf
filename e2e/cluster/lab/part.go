package lab

import (
	"context"
	"fmt"
	"sync"

	"gpuladder.dev/ladder/e2e/cluster/process"
)

// part is one component of a running lab.
type part struct {
	spec    spec
	path    string
	log     string
	home    string
	prober  *prober
	crashed func(error)

	// changing is held while the part is being started or ended.
	changing sync.Mutex

	mu       sync.Mutex
	proc     *process.Process // nil while it is down
	starts   int
	expected bool // its end was asked for
}

// start runs the part and waits until it is ready.
func (p *part) start(ctx context.Context) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	return p.startLocked(ctx)
}

func (p *part) startLocked(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	proc, err := process.Start(process.Spec{Name: p.spec.name, Path: p.path, Args: p.spec.args, Log: p.log, Env: environment(p.home)})
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.proc, p.expected = proc, false
	p.starts++
	p.mu.Unlock()
	if err := p.prober.wait(ctx, p.spec.name, p.spec.ready, p.log, proc); err != nil {
		p.endLocked(ctx, true)
		return err
	}
	go p.watch(proc)
	return nil
}

// watch reports an end that nobody asked for.
func (p *part) watch(proc *process.Process) {
	<-proc.Done()
	p.mu.Lock()
	expected := p.expected || p.proc != proc
	p.mu.Unlock()
	if !expected {
		p.crashed(partError(p.spec.name, fmt.Errorf("ended unasked, %w", exitReason(proc)), p.log))
	}
}

// end stops the part, at once or in an orderly way. It does nothing where the
// part is down.
func (p *part) end(ctx context.Context, atOnce bool) {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.endLocked(ctx, atOnce)
}

func (p *part) endLocked(ctx context.Context, atOnce bool) {
	p.mu.Lock()
	proc := p.proc
	p.expected = true
	p.mu.Unlock()
	if proc == nil {
		return
	}
	if atOnce {
		proc.Kill()
	} else {
		proc.Stop(ctx, stopGrace)
	}
	p.mu.Lock()
	p.proc = nil
	p.mu.Unlock()
}

// restart ends the part where it runs and starts it again.
func (p *part) restart(ctx context.Context) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.endLocked(ctx, false)
	return p.startLocked(ctx)
}

// status is what State tells about the part.
func (p *part) status() Part {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Part{Name: p.spec.name, Log: p.log, Starts: p.starts}
	if p.proc != nil {
		select {
		case <-p.proc.Done():
		default:
			s.PID = p.proc.Pid()
		}
	}
	return s
}
