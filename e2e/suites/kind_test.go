//go:build e2e

package suites

import (
	"context"
	"errors"
)

func attachKind(context.Context, *settings) (provider, error) {
	return nil, errors.New("the suites cannot run on kind yet")
}
