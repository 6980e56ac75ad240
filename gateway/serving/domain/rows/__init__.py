"""Proof that the rows of a batch are independent, from the graph of a model. Pure functions on values.

`sizes` are polynomials in the number of rows, `graph` the operators of a model, `values` what is known of a tensor.
`rules` has the table of operators; the modules that it names have their rules. `proof` follows axis 0 from the inputs
to every output. Source: gateway/decisions/0058-rows-are-proven-from-the-graph.md.
"""
