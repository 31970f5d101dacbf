// Package targets holds the mage targets of the repository. Each exported
// function is one target; its first sentence is what `go tool mage -l` prints.
package targets
