"""Device code: kernels that take the place of the torch operations in `gpu_worker.model`, one package a device."""
