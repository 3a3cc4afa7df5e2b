"""The command line: one module per command, and ``main``, which defines the commands and reports their errors."""
