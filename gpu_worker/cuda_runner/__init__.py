"""The runner's GPU side: row state resident on the device, one upload a step, CUDA graphs, results on their own stream.

Needs the package `triton`; everything but the capture of graphs, pinned memory and streams also runs without a GPU,
which is how its logic is tested.
"""
