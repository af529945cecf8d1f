"""The device process: model, paged KV cache, sampling. Knows no text, no tenants, no gRPC and no scheduling."""
