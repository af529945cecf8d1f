"""Triton kernels of the worker: attention over the paged cache, the small operations, sampling, plans.

Layout of the folder: `device/` holds the kernels alone; each module here wraps the kernels of one operation with a
check of every argument and has its torch reference beside the wrapper. `TritonOps` and `TritonAttention` put them
behind the model's `Ops` and `AttentionBackend`. Importing any module but this one needs the package `triton`.

Nothing here knows a request, a plan's wire format or a file.
"""
