"""The controller's HTTP routes. Litestar is loaded by these modules."""
