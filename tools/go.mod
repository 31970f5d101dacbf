module gpuladder.dev/ladder/tools

go 1.26.0

require (
	gpuladder.dev/ladder/policies v0.0.0
	github.com/magefile/mage v1.17.2
	github.com/spf13/cobra v1.10.2
	k8s.io/api v0.37.2
	k8s.io/apimachinery v0.37.2
	k8s.io/client-go v0.37.2
)

replace gpuladder.dev/ladder/policies => ../policies

tool github.com/magefile/mage
