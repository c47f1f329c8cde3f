"""The HTTP room: handlers, their OpenAPI document, the process that serves them (`trainshed.server.run`)."""
