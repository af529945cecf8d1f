"""The persistent batch: rows of running sequences, changed by plans that are diffs.

Checks every plan before anything on the device changes. Knows no model and no socket.
"""
