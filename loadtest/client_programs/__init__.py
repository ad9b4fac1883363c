"""The clients of the measurements, each a program that prints one JSON line at its end."""
