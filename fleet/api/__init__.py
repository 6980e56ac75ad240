"""The controller's HTTP routes (contracts.md, "Fleet"). Litestar is loaded by these modules."""
