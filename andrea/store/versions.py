"""Versions of installed packages, as env.json and verdict.json record them."""

import importlib.metadata


def installed(package: str) -> str | None:
    """The version of a package, or None where it is not installed. Does not import it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
