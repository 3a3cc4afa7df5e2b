"""Benchmarks: what a kubelet sees of a plugin, in milliseconds, and what the plugin costs its host.

``make bench`` runs them. Plugins are compared in one run, in turns, because machines are noisy:

    contestants  what is measured: the command line of this project's plugin or of another one
    empty        the smallest possible plugin in Python, as the lower bound
    kubelet      the kubelet's side, in the process of the benchmark
    caller       calls of Allocate, by a program in Go
    trial        a running contestant: a kubelet directory, a directory of devices, a process
    measures     one function for each figure
    report       figures, targets, and the table in Markdown
"""
