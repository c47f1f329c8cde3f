"""The HTTP room: handlers, the OpenAPI document, and the process that serves them (`trainshed.server.run`)."""
