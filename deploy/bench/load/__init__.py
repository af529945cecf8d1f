"""Sends a workload to a server at the times that were asked for, and records what came back and when."""
