"""Reads a model's configuration and weights from disk. Owns every file format; knows nothing of how a model runs."""
