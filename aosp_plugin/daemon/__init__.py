"""``aosp-plugin serve``: assembly, reload, leak detection, status and the page."""
