"""How a tenant's own weight and limits are written, in the settings file and among the scheduler's knobs."""

from typing import Annotated

from msgspec import Meta

_VALUE = "(weight|max_num_seqs|max_num_queued_reqs|token_rate)=[1-9][0-9]{0,11}"

TenantRule = Annotated[str, Meta(pattern=f"^[^:]+: *{_VALUE}( *, *{_VALUE})*$")]
"""For instance ``gold: weight=4, max_num_seqs=32``."""
