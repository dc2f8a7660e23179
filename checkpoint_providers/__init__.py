"""Checkpoint providers: plug-ins that store and load epochs."""
