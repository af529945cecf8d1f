"""Which code runs the model: weights in a backend's own form, and the decoder over them.

`choose.py` picks one by settings, machine and model; everything above (runner, service) works with any of them.
"""
