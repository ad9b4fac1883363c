"""The server inside a sandbox: it runs commands and keeps files."""
