"""The installed version of Rota."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("rota")
except PackageNotFoundError:  # a checkout that was not installed
    VERSION = "0"
