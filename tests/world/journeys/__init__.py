"""Models of packages on the way that their users take: bare, described, quantized; compared with the packages."""
