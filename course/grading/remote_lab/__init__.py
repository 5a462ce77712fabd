"""A lab whose file runs in a sandbox: both ends of it, and what each may do."""
