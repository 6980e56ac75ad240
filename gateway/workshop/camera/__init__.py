"""Client that feeds the frames of a camera or a video file to a gateway."""
