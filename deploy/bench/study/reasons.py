"""Why the report's results are what they are, in words."""

BATCHING = """A static batch is over when its longest answer is: seats whose answers were short stay empty until then,
and who comes meanwhile waits for the whole batch. A continuous batch gives a seat away in the next step: nobody waits
for a stranger's end, and the same device has more rows in each step at the same latency. Light loads show it in the
time to the first token, heavy ones in throughput."""

CHUNKS = """A whole prompt is one long step, and each stream in the batch waits for it: the longest prompts make the
tail of the time between tokens. Chunks of 512 tokens bound what one prompt adds to a step. The price is that a long
prompt needs several steps, each with the fixed cost of one: its own first token comes later."""

ITL_TARGET = """The target sets each step's prefill by what the running rows leave of it, as the fitted cost model
tells: few rows leave room for large chunks, many for small ones. So the tail of the time between tokens is the
target. Prefill pays for it in the tail of the first token; throughput hardly changes, since the same work is done."""

FAIRNESS = """Under fcfs the quiet tenant stands behind everything that the flooding one has sent before. Under fair
the tenant that was served least goes next: the quiet one waits for a seat, not for the flood, and since it asks for
little, the flooding tenant loses next to nothing. The device does the same work in both."""

PREEMPTION = """Who lost its seat has its context computed again, or copied back. On this device a block of 16 tokens
takes 0.67 ms to compute, and 0.4 ms to copy out and in: swapping is a little cheaper, and auto chooses it by the same
comparison (it recomputes until the cost model is warm). The rest of a lost seat's price is waiting for memory, which
is the same in all three."""
