"""The scheduler process: `core` decides and is pure; everything else in this package is its shell."""
