"""``aosp-plugin serve``: what serves a configuration, and its reload."""
