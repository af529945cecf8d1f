"""Measures a server that streams tokens, compares what was measured, and finds settings by it.

Talks to servers from outside (gRPC, or HTTP for other servers); knows nothing of the inside of gateway, scheduler and
worker. Needs the extra `bench`.
"""
