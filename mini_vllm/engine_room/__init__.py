"""What ``engine.py`` leans on: from a prompt to a request, from a plan to tokens, and how large all of it is."""
