"""Inference engines behind one seam (`gateway.domain.ports.Runtime`), and their trials in throw-away processes.

Importing any module of this room loads no engine: each imports its engine inside its methods.
"""
