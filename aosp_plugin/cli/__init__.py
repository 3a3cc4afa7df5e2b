"""The ``aosp-plugin`` command line."""
