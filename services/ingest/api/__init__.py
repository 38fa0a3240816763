"""The HTTP API: one module a resource, `app.create_app` puts them together, `edge.Edge` stands around all of them."""
