"""gRPC: proto in, proto out."""
