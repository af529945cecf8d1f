"""Who calls, and what they may do: tokens, tenants, roles, TLS files. Knows no request and no text.

The front of every port (gRPC, HTTP) asks `Authenticator.authenticate` once a call and keeps the `Principal`.
"""
