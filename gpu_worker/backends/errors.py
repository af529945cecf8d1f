"""What choosing a backend may meet."""


class KernelsUnavailableError(RuntimeError):
    """Kernels that cannot run here, or not this model. The message says why in one line."""
