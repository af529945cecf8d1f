"""Decode attention in CUDA C++: compiled by NVRTC at start or taken from a cache, launched through the driver API.

Opt-in until a device's timing shows it ahead of Triton's kernel. Prefill stays with Triton. No torch extension: the
source is plain CUDA C++ without headers, so that NVRTC, nvcc and, in tests, a C++ compiler with a shim all take it.
"""
