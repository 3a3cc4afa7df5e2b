"""What people who run the plugin need of it: its logs and its health over HTTP."""
