"""Holds the twin against public measurements: `python -m validation`."""
