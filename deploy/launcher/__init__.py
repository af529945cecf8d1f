"""The local supervisor behind `chairlift serve`: starts, watches, restarts and drains the processes of one machine.

Knows the three processes as ``python -m NAME``, an HTTP port that says whether they are ready, and an exit code.
"""
