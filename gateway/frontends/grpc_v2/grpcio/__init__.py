"""Transport over grpcio's server, for comparison with the gateway's own server (`[grpc] server = "grpcio"`)."""
