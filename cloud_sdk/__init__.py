"""The Python client that cloud services import: produce, consume in a group, pull by offset, over gRPC.

Ships to people who run no node: may import `record` and nothing else of Sluice.
"""
