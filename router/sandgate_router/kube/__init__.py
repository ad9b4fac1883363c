"""The only speaker to the Kubernetes API: requests, list-and-watch, and how to get in."""
