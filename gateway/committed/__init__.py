"""What the store commits, as releases that may serve: signatures judged, files held against them. Disk only."""
