"""Measures a server that streams tokens, compares what was measured, and finds settings by it.

Talks to servers from outside (gRPC, or HTTP for other servers). Only what measures a part by itself knows that part:
the simulator and `scheduler.py` drive the scheduler's core, `kernels.py` and `gpu/` the worker's. Needs the extra
`bench`.
"""
