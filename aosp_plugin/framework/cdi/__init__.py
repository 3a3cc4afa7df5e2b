"""Container Device Interface: the spec of a resource, and its file."""
