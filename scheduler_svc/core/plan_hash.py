"""A short name for what a plan orders, without any token: two plans with one hash schedule the same work."""

from hashlib import blake2b

import msgspec

from chairlift.ipc import device

PLAN_HASH_BYTES = 8
_ENCODE = msgspec.msgpack.Encoder().encode


def plan_hash(plan: device.Plan) -> bytes:
    """PLAN_HASH_BYTES over everything in the plan but token ids and sampling parameters, of which lengths count."""
    boarded = [(row.row, len(row.tokens), row.prompt_len, row.computed, row.blocks, row.choice) for row in plan.boarded]
    memory = (plan.appended, plan.swap_out, plan.copies, plan.swap_in)
    work = (plan.worker_epoch, plan.step, plan.reset, plan.left, boarded, memory, plan.decode, plan.chunks)
    return blake2b(_ENCODE(work), digest_size=PLAN_HASH_BYTES).digest()
