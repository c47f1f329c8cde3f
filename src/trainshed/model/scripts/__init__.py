"""Jobs of kind `script`: a packed project folder that runs somewhere on a GPU (contract G)."""
