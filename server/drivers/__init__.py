"""Devices behind a worker."""
