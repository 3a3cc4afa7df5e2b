"""File and mount events that call for a scan."""
