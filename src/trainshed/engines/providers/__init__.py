"""Places that run packed projects: this machine's engine, and notebook services (contract G, section g)."""
