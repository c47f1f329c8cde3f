"""Training tasks (contract C): accepting, changing and watching them, and the life of their gangs."""
