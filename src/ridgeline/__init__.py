"""Ridgeline finds the serving configuration that meets your latency targets at the lowest cost."""

__version__ = "0.1.0"
