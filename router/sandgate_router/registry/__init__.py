"""What knows pools, claims and endpoints: one protocol (`base`), one module per kind."""
