"""The network and what it is made from: checkpoints, their configuration, text and tokens."""
