// Prints what containerd confines a container with by default: "seccomp CAPABILITY..." the filter of a container that has
// these capabilities, as JSON of the runtime spec, and "apparmor NAME" the profile, for apparmor_parser.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func main() {
	switch arguments := os.Args[2:]; os.Args[1] {
	case "seccomp":
		capabilities := &specs.LinuxCapabilities{Bounding: arguments}
		filter := seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: capabilities}})
		if err := json.NewEncoder(os.Stdout).Encode(filter); err != nil {
			log.Fatal(err)
		}
	case "apparmor":
		profile, err := apparmor.DumpDefaultProfile(arguments[0])
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(profile)
	}
}
