"""Inference engines that implement `gateway.serving.domain.ports.Runtime`, and their trials in child processes.

Importing any module of this package loads no engine: each imports its engine inside its methods.
"""
