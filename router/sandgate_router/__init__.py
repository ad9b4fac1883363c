"""The gateway: one static entry point that streams each request to the sandbox it names."""
