"""The public gRPC contract, version 1: the .proto files and the stubs made from them by `make stubs`.

Messages (`inference_pb2`, `ops_pb2`) need protobuf only; the service stubs (`*_pb2_grpc`) need grpcio.

``service_config.json`` beside this file is for clients without `chairlift.client`: given to a channel as its service
config it spreads calls over the addresses of a name, leaves out gateways that are not ready, and retries calls that
were refused with UNAVAILABLE or RESOURCE_EXHAUSTED, when the server says so. A retry is safe for every method it names;
for Generate only with a ``request_id``, without which a request may be computed twice.
"""
