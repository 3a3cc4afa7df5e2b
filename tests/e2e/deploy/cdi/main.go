// Command cdi prints what the CNCF's library, with which container runtimes read CDI specs, knows of devices.
//
// Arguments: the directories of specs in the order of their precedence, the strongest last; then --, and the devices.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

type device struct {
	Spec  string               `json:"spec"`
	Edits specs.ContainerEdits `json:"edits"`
}

func main() {
	separator := slices.Index(os.Args, "--")
	directories, names := os.Args[1:separator], os.Args[separator+1:]
	cache, err := cdi.NewCache(cdi.WithSpecDirs(directories...), cdi.WithAutoRefresh(false))
	found := map[string]device{}
	for _, name := range names {
		if known := cache.GetDevice(name); known != nil {
			found[name] = device{known.GetSpec().GetPath(), known.ContainerEdits}
		}
	}
	if err == nil && len(cache.GetErrors()) > 0 {
		err = fmt.Errorf("%v", cache.GetErrors())
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
