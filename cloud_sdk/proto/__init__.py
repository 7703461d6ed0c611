"""The wire between cloud services and nodes, generated from `sluice.proto` by `make proto`.

`sluice_pb2_grpc.pyi` is written by hand (the generator makes no types for it): a changed method changes it too.
"""
