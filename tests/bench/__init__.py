"""Benchmarks: what a kubelet sees of a plugin, in milliseconds, and what the plugin costs its host.

``make bench`` runs them; no test does. Plugins are compared in one run, in turns, because machines are noisy:

    contestants  what is measured: the command line of this project's plugin or of another one
    empty        the smallest possible plugin in Python, as the lower bound
    kubelet      the kubelet's side, in the process of the benchmark
    caller       calls of the plugin's RPCs, by a program in Go
    trial        a running contestant: a kubelet directory, a directory of devices, a process
    measures     functions that measure a few figures of trials each
    samples      samples of a repetition -> median, p99, maximum
    figures      the figures and their targets
    machine      the load of the machine before, during and after a repetition
    run          the result of a run: medians, spreads, ratios, verdicts; JSON
    report       a run as tables in Markdown, also for the documents
    profile      where the start, the memory and the calls of this plugin go
    growth       one plugin with 1,000 to 130,000 devices; table and plot
    fleet        many plugins on one machine
    soak         many hotplugs and kubelet restarts, and their effect on resource usage
"""
