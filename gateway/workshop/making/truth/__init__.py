"""Truth of samples, which variants are measured against: annotations in the forms that people have."""
