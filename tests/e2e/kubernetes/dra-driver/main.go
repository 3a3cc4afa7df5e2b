// Upstream's DRA driver for tests (k8s.io/kubernetes/test/e2e/dra/test-driver), which is built on the helper that Go
// drivers have in common: the benchmark compares the plugin with it.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/test/e2e/dra/test-driver/app"
)

func main() {
	os.Exit(cli.Run(app.NewCommand()))
}
