"""The version of raddle."""

__version__ = "0.1.0"
