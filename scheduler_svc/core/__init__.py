"""The pure scheduler: decides which sequence computes which tokens in which step, and accounts for every block.

Imports itself, `chairlift.ipc`, msgspec and pure standard library. Time and keys are arguments.
"""
