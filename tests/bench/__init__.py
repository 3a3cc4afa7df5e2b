"""Benchmarks: what a kubelet sees of a plugin, in milliseconds, and what the plugin costs its host.

``make bench`` runs them; no test does. Plugins are compared in one run, in turns, because machines are noisy:

    contestants  what is measured: the command line of this project's plugin or of another one
    empty        the smallest possible plugin in Python, as the lower bound
    kubelet      the kubelet's side, in the process of the benchmark
    trial        a running contestant: a kubelet directory, a directory of devices, a process
    measures     functions that measure one figure of a trial each
    figures      samples -> median, p99, maximum; tables, JSON, comparison of two runs
    growth       one plugin with 1,000 to 130,000 devices; table and plot
    fleet        many plugins on one machine
    soak         many hotplugs and kubelet restarts, and their effect on resource usage
"""
