"""What crosses the two ZeroMQ links, and nothing else.

Owns the message structs, their codecs and the version handshake. Imports the standard library and msgspec only, so
that every process and the simulator can use it. It must not know sockets, clocks, text, torch or gRPC.

``front`` is the gateway link, ``device`` is the worker link, ``common`` what both share.
"""
