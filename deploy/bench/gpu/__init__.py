"""What `gpu_check.py` measures on a machine with a GPU, a module a part. Imports `gpu_worker`, which brings torch."""
