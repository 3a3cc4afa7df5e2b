"""The configuration: keys with defaults and allowed values, the sources of their values, and validation.

A flag takes precedence over an environment variable, then come the entry in the file's ``resources``, the top level of
the file, and the default. The structs ``Config`` and ``Resource`` are the only list of the keys: the flags of
``serve``, the AOSP_PLUGIN_* variables, validation, ``aosp-plugin config``, the JSON Schema and docs/configuration.md
follow from them. ``Config`` and ``Resource`` are frozen, and are used as they are.
"""
