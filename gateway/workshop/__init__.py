"""Tools of a model's author: make, import, quantize, measure, pull; and a client for cameras."""
