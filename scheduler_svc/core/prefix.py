"""Hash chains over token blocks: equal chains mean equal content from position 0 on.

A chain's hash is keyed BLAKE2b, 128 bits, over the parent's hash and the block's packed token ids. The root holds the
tenant (unless prefixes are shared across tenants) and the request's cache salt, so that nobody hits, or by timing
learns of, a block of another tenant. The key keeps collisions out of reach of who chooses the tokens.
"""

from hashlib import blake2b

HASH_BYTES = 16
TOKEN_BYTES = 4


class PrefixHasher:
    """Chains for one block size."""

    def __init__(self, key: bytes, block_size: int) -> None:
        self.block_size = block_size
        self._key = key
        self._stride = block_size * TOKEN_BYTES

    def root(self, tenant: str | None, salt: str) -> bytes:
        """Parent of the first block's hash. `tenant` None shares across tenants."""
        name = b"" if tenant is None else b"t" + tenant.encode()
        content = len(name).to_bytes(4, "little") + name + salt.encode()
        return blake2b(content, digest_size=HASH_BYTES, key=self._key, person=b"chairlift-root").digest()

    def following(self, parent: bytes, tokens: bytes) -> bytes:
        """The hash of one full block of packed u32 `tokens`."""
        return blake2b(parent + tokens, digest_size=HASH_BYTES, key=self._key).digest()

    def extend(self, parent: bytes, tokens: bytes, start: int = 0) -> bytes:
        """Hashes of the full blocks of packed u32 `tokens` from byte `start` on, HASH_BYTES each, one after another."""
        stride = self._stride
        key = self._key
        chain = []
        for at in range(start, len(tokens) - stride + 1, stride):
            parent = blake2b(parent + tokens[at : at + stride], digest_size=HASH_BYTES, key=key).digest()
            chain.append(parent)
        return b"".join(chain)
