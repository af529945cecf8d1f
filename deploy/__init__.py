"""Runs Chairlift, measures it, tunes it: the `chairlift` command, the local launcher, sample settings.

Imports the client library and the shared parts; starts the three processes and never imports the gateway.
"""
