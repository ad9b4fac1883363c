"""Proxies that many teams write themselves, each as its library's documentation would have it."""
