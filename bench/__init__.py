"""Measures Trainshed against its speed budget, with peers beside it in the same run."""
