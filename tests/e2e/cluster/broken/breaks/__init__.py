"""Each module breaks the plugin in the process that imports it."""
