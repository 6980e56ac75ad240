"""Blob storage by digest, on disk or in S3, and file downloads: ranges, HEAD, conditional requests."""
