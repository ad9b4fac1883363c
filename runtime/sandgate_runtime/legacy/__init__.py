"""The HTTP routes of the upstream project's runtime, as its clients know them."""
