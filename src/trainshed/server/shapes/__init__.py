"""The shapes of the HTTP API as pydantic models: what answers hold and what the OpenAPI document says.

One module a resource. Answers are built from these models, so the document cannot drift from what is sent.
Request bodies are described here and judged elsewhere (`trainshed.server.bodies`, `trainshed.model`), so that
every refusal keeps the one error shape.
"""
