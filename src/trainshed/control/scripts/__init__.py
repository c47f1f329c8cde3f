"""Script Jobs (contract G): from their acceptance to their outputs."""
