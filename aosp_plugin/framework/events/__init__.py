"""File and mount events that require a scan."""
