"""The session server: gateway, workers and devices."""
