"""Measures the gateway from outside: it starts programs and speaks HTTP, and imports none of them.

`python -m loadtest` is the command. The proxy runs alone on one core; load and stub sandboxes
share the other. The primary figure is the proxy's CPU time for 1,000 requests, since these do
not depend on how fast the load comes.
"""
