"""Transport over grpcio's server, for comparison with the own one (`[grpc] server = "grpcio"`)."""
