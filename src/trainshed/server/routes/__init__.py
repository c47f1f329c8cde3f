"""One module a resource: each declares its operations, `trainshed.server.app` puts them together."""
