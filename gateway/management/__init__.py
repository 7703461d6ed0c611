"""The management surface: every administrative action as a method of `management.proto`, over gRPC and HTTP."""
