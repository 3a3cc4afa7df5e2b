"""Binder devices as a backend of the framework: the only package that imports both ``binder`` and ``framework``."""
