"""Assembles the root directory of the plugin's image. It runs in the build stage of the Dockerfile.

The root directory is made of files alone: nothing of the target is ever run, so that an image for arm64 is built on
amd64 without emulation. It has no shell, no installer and no tools.

:mod:`packages` installs the locked wheels of the target's platform. :mod:`interpreter` takes Python out of the base
image, :mod:`libraries` the shared libraries that it and the wheels depend on, and :mod:`debian` records from which of
Debian's packages they are. :mod:`stdlib` says which parts of the standard library stay behind.
"""
