"""Windows over sensors' samples: order, gaps, resampling, and the rings that hold them."""
