"""Builds the plugin's image as archives: ``make image``, and ``python -m hack.image --help``.

:mod:`build` builds one of them. :mod:`builders` runs buildah with the project's Dockerfile, whose build stage runs
:mod:`assemble`. :mod:`archive` writes the result again in a form that depends on the files alone. :mod:`sbom` lists
what is inside. :mod:`debian_base` makes a base from Debian's packages, for machines that cannot pull one.
"""
