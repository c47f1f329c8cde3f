"""The door for coding agents: an MCP server that is a thin client of the SDK (contract G, section a)."""
