"""Immutable content: blobs, the git trees of Runners, and what Trials produced."""
