"""One module a resource. Each declares its operations on `Routes`; `trainshed.server.app` puts them together."""
