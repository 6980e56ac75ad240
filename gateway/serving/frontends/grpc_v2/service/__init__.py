"""The services GRPCInferenceService, Health and ServerReflection, independent of any transport.

`inference` is the core. `load` is the admission control of calls, which both transports use.
"""
