"""Chaos tests: a real ``aosp-plugin serve`` under injected faults that a seed selects.

``make chaos`` runs them. A run is one seed: a setup (plain devices, CDI, two resources), and steps of one to four
faults that happen one after the other or while another one lasts. After each step everything must be right again
within 30 s, by checks that do not use the plugin's code: the kubelet has the devices that a model derives from the
directory, with one registration and one socket; nothing leaks or spins; and no container gets an unhealthy device. At
every moment /healthz must answer 200. A failure is printed with the command that repeats it::

    make chaos                                   # three seeds, one of each setup
    make chaos CHAOS="--seed 17 --steps 9"       # one seed, up to the step that failed
    make chaos CHAOS="--only inotify,stream"     # faults with these texts in their names alone
    make chaos CHAOS="--list"                    # the faults and the checks

Modules::

    faults/       the faults: decorated functions, whose docstrings are printed
      kubelet       start, stop, crash and change of the kubelet
      streams       connections: the plugin's socket, streams, Register
      devices       binder devices that appear, disappear and are replaced
      directories   the directories themselves: replaced, removed
      process       signals and configuration of the plugin
      limits        exhausted resources of inotify
    invariants    what must hold after each step: a function each
    monitor       what must hold at every moment
    pods          containers that request devices between faults, and checks of their allocations
    expected      the model: the expected devices, from the directory and its history
    choice        seed -> steps; a pure function
    registry      the definition of a fault, and all faults by name
    counterparts  the same faults on the simulated node, and why some have none
    setups        configurations of the plugin
    world         directories, kubelet, plugin process and devices, which faults change
    files         stand-ins for binder devices
    plugin        the process and its resource usage in /proc
    place         the namespaces of a run
    run           one seed from start to end

A run happens in user and network namespaces of its own (unshare), in which it may create character devices with the
number 0:0, limit inotify and take ports without effect on the rest of the machine. Without namespaces the devices are
files, and the faults that require namespaces are skipped and listed.

``counterparts`` compares the faults with those of the simulated node (``tests/simulation``). Neither suite has files
that are no devices (``tests/unit/binder/test_scanner.py``).
"""
