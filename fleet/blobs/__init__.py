"""Blobs by digest, on disk or in S3, and files as devices fetch them: ranges, HEAD, conditional requests."""
