"""The error of this package."""


class BuildError(Exception):
    """An image cannot be built, for a reason in the text."""
