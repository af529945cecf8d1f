"""Native kernels for x86-64 CPUs: C++ behind a plain C ABI, called through ctypes, each a second implementation of an
interface in `gpu_worker.model` whose torch implementation is its reference.

`build.py` compiles them (no torch in it: the package's build uses it too), `library.py` finds and checks them,
`ops.py`, `attention.py` and `linear.py` wrap them. Where they cannot be had, `library.py` says why in one line and the
torch path serves. Nothing here knows requests, files or sampling parameters.
"""
