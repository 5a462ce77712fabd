"""The models of a server: loaded when asked for, and let go when another needs their memory."""
