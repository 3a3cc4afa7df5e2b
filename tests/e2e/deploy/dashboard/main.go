// Command dashboard checks a Grafana dashboard on standard input with the types that Grafana generates from its schema.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func main() {
	runtime := cog.NewRuntime()
	runtime.RegisterPanelcfgVariant(stat.VariantConfig())
	runtime.RegisterPanelcfgVariant(table.VariantConfig())
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
	runtime.RegisterDataqueryVariant(prometheus.VariantConfig())
	var raw json.RawMessage
	var checked dashboard.Dashboard
	err := json.NewDecoder(os.Stdin).Decode(&raw)
	if err == nil {
		err = checked.UnmarshalJSONStrict(raw)
	}
	if err != nil && err.Error() != "" { // a list of errors, which may be empty
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
