"""Code that runs on the device. Kernels check nothing: their wrappers one folder up do."""
