"""The HTTP and WebSocket endpoints, one module per API."""
