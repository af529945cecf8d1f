"""What two or more processes need to run: settings, sockets, process life, logs, probes, model lookup.

Knows no message of a link and nothing of scheduling, gRPC or torch.
"""
