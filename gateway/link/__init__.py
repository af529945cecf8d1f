"""The gateway's end of its link to each scheduler: sockets, handshake, heartbeats, which replica takes what.

Knows the messages and who is there; neither gRPC nor text.
"""
