"""From logits to token ids, vectorised over rows. A row's result never depends on the rows beside it.

Knows no block, no plan and no message but `chairlift.ipc.SamplingParams`.
"""
