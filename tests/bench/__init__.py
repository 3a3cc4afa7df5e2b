"""The benchmark: what a kubelet sees of a plugin, in milliseconds, and what the plugin costs its host.

``make bench`` runs it; no test does. What is compared is measured in one run, turn by turn, since machines are noisy:

    contestants  what is measured: a plugin's command line, of this project or any other
    empty        the least that a plugin in Python can be: its figures are where the floor is
    kubelet      the kubelet's side, in the process of the benchmark; knows nothing of any plugin
    trial        one contestant at work: a kubelet's directory, a directory of nodes, a process
    measures     one figure each, of one trial
    figures      samples -> median, p99, worst; tables, JSON, two runs beside each other
    growth       the same plugin with 1,000 to 130,000 devices; table and plot
    fleet        many plugins on one machine
    soak         hours squeezed into minutes
"""
