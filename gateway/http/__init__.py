"""The HTTP front: OpenAI's API as a translation onto the same methods that serve gRPC, and the probes beside it.

Knows JSON, SSE and ASGI; neither schedulers nor how text is decoded.
"""
