package kind

// The container engine of a cluster: kind's library is pointed at it, and a
// later process finds it by what is remembered of the cluster.

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"gpuladder.dev/ladder/e2e/cluster/docker"
)

// engineVariables are those by which clients choose a daemon.
var engineVariables = []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"}

var (
	engineMu sync.Mutex
	// usersOwn is what the user's environment said before use changed it; nil
	// until then.
	usersOwn map[string]string
)

// use makes kind's library find the engine: it calls the program docker with
// the environment of this process, so that one process can use one engine at a
// time.
func use(engine *docker.Engine) error {
	engineMu.Lock()
	defer engineMu.Unlock()
	if usersOwn == nil {
		usersOwn = map[string]string{}
		for _, name := range engineVariables {
			if value, set := os.LookupEnv(name); set && !docker.IsPrivate(value) {
				usersOwn[name] = value
			}
		}
	}
	want := usersOwn
	if host := engine.Host(); host != "" {
		want = map[string]string{"DOCKER_HOST": host}
	}
	for _, name := range engineVariables {
		err := os.Unsetenv(name)
		if value, set := want[name]; set {
			err = os.Setenv(name, value)
		}
		if err != nil {
			return fmt.Errorf("choosing the container engine, %w", err)
		}
	}
	return nil
}

// FindEngine returns the engine that has the cluster's nodes, without a change
// to the machine. The error is a *docker.GoneError where it does not run.
func (s State) FindEngine(ctx context.Context, progress io.Writer) (*docker.Engine, error) {
	engine, err := docker.Find(ctx, s.Engine, s.Host, docker.Options{Progress: progress})
	if err != nil {
		return nil, fmt.Errorf("looking for cluster %s, %w", s.Name, err)
	}
	return engine, nil
}

// OpenEngine returns the engine that has the cluster's nodes, or had them: a
// private daemon that does not run any more is started again, on what it has
// stored. The error is a *docker.GoneError where only the user can start it.
func (s State) OpenEngine(ctx context.Context, progress io.Writer) (*docker.Engine, error) {
	plan, err := docker.Again(ctx, s.Engine, s.Host, docker.Options{Progress: progress})
	if err != nil {
		dir, dirErr := stateDir(s.Name)
		if dirErr != nil {
			return nil, dirErr
		}
		return nil, fmt.Errorf("looking for cluster %s, %w; without that engine nothing can be removed but the memory of the cluster, the folder %s", s.Name, err, dir)
	}
	engine, err := plan.Open(ctx)
	if err != nil {
		return nil, fmt.Errorf("looking for cluster %s, %w", s.Name, err)
	}
	return engine, nil
}

// on says whether the engine is the one that has the cluster. Docker may be
// named in several ways, a private daemon only in one.
func (s State) on(engine *docker.Engine) bool {
	return s.Engine == engine.Kind() && (s.Engine != docker.Private || s.Host == engine.Host())
}

// elsewhere returns an error if the cluster of that folder is remembered, but on
// another engine: a new one in its place would leave it behind.
func elsewhere(dir string, engine *docker.Engine) error {
	s, err := readState(dir)
	if err != nil || s.on(engine) {
		return nil //nolint:nilerr // what can't be read is no cluster that could be left behind
	}
	return fmt.Errorf("creating cluster %s, %w (%s %s); ladder-lab kind down --name %s removes it", s.Name, ErrElsewhere, s.Engine, s.Host, s.Name)
}
