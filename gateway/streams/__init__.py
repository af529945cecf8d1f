"""The life of generations in this gateway: from Submit or Attach to the last Finished.

Messages of the scheduler come in, events of the public contract come out. Knows neither gRPC nor sockets: what is to be
sent goes through a function, and whoever writes to the client asks for what there is.
"""
