"""The installed version of Rota."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("rota")
except PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0"
