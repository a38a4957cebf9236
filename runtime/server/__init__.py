"""The server: an HTTP process in front of an engine process, with msgpack frames between them."""
