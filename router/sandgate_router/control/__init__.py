"""The control API: claims, pools and probes, on Starlette."""
