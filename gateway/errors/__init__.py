"""Typed errors and the one table that turns them into gRPC statuses. Knows no request and no socket."""
