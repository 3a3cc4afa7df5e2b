"""Creating and recreating binder devices."""
