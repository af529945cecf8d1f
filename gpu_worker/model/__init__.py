"""The decoder: weights in memory, the operations on them, attention over a paged KV cache.

Knows no file, no request and no sampling: tokens, positions and block tables come in as tensors, logits go out.
"""
