"""What two houses share: values, signatures, files, transfers, wire and terminal."""
