"""Chaos: the real ``aosp-plugin serve`` among everything that goes wrong on a node, chosen by a seed.

``make chaos`` runs it. A run is one seed: a setup (plain nodes, sets, replicas ...), and steps of one to four faults
that happen one after the other or while another one lasts. After each step everything has to be right again within
30 s, by checks that don't use the plugin's own code: what the kubelet knows is what is in the directory, by a model of
its own; one registration is left, and one socket; nothing leaks and nothing spins; no container was ever given what
is not fit for it. What fails is printed with the command that does the same again::

    make chaos                                   # six seeds, one of each setup
    make chaos CHAOS="--seed 17 --steps 9"       # one seed again, up to the step that failed
    make chaos CHAOS="--faults 1000 --seed 100"  # as many seeds as a thousand faults take
    make chaos CHAOS="--list"                    # what can happen, and what is checked

Where to find, and to add, what::

    faults/       what happens: a function each, decorated; its docstring is what is printed
      kubelet       the kubelet's life: killed, slow, deaf, forgetful, another version
      streams       connections: the plugin's socket, streams, Register
      nodes         nodes that come, go, and become something else
      links         nodes that are links, and what they lead to
      directories   the directories themselves: replaced, gone, mounted over
      process       signals: stopped, killed, configured anew
      limits        what runs out: inotify, descriptors, space, inodes
      clock         steps of the clock
    invariants    what has to hold after each step: a function each
    pods          containers that ask for devices between faults, and what they are given
    expected      which devices there should be: the model, a function of the directory and of what was there before
    choice        seed -> steps; a pure function
    registry      what a fault is
    setups        configurations of the plugin
    world         the directories, the kubelet, the plugin's process, the nodes: what faults work on
    files         stand-in nodes
    plugin        the process and its figures in /proc
    place         the namespaces in which all this happens
    run           one seed from start to end
    tally         counts and times, and the table at the end

All of it happens in a user and a mount namespace of its own (unshare), where anybody may mount, make character devices
(0:0, which the kernel lets everybody make) and limit inotify without any effect on the rest of the machine. Where there
are no namespaces, nodes are files, and the faults that need one are left out and named.

Not here: a binderfs that is mounted anew, as binder is needed for that (``tests/e2e/kernel`` does it on real kernels);
and a clock that is stepped for the whole system: the plugin's process alone is shown another time, by a library in
front of the C library's.
"""
