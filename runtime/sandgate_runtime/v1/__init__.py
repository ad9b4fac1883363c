"""The runtime's own routes."""
