"""What lies between the processes: the public contract, the ipc messages, shared run-time parts, the client library.

Importing this package imports nothing else, so that each process pays only for the parts that it names.
"""

__version__ = "0.1.0"
