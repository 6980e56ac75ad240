"""Packages that two houses use: values, signatures, files, transfers, HTTP sockets and the terminal."""
