"""The gRPC front: everything between a client's call and token ids on the scheduler's link.

Owns authentication, validation, chat templates, tokenisation, detokenisation and stop strings, and the life of a
client's stream. It is stateless: what must outlive a gateway is kept by the scheduler. It must not know devices,
batches or KV blocks, and never imports the other processes.
"""
