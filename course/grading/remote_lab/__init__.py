"""A lab whose file runs in a sandbox: both ends of the connection, and what each may do."""
