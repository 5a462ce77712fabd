"""Other engines, each in a process with the Python of its own environment, on the same weights and requests.

    process   starts them, and asks for a round
    script    what they run; it imports nothing of this project
"""
