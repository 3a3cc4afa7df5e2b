"""``python -m hack.release``: everything that a release consists of, in one directory, reproducible."""
