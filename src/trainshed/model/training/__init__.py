"""Training tasks of kind `pytorch` and `ray`: specs, the catalogue they are judged by, the words for both.

Serves the contract "Create Training" (C1-C60). Pure: no clock, no randomness of its own, no I/O.
"""
