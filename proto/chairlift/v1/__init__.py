"""The public gRPC contract, version 1: the .proto files and the stubs made from them by `make stubs`.

Messages (`inference_pb2`, `ops_pb2`) need protobuf only; the service stubs (`*_pb2_grpc`) need grpcio.
"""
