package fakenvml

import (
	"fmt"
	"os"
)

// childVariable has this program be another process of the machine.
const childVariable = "FAKENVML_TEST_CHILD"

func child(what string) int {
	fmt.Fprintln(os.Stderr, "there is no child", what)
	return 1
}
