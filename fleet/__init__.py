"""The fleet controller: the operator's side. It shares `gateway.domain` and `gateway.trust` with the device.

Here so far is the publishing half: keys, drafts, releases, the repository as devices read it, assignments.
"""
