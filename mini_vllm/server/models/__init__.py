"""The models of a server: loaded on first use, and unloaded when another model needs their memory."""
