"""Speculative decoding: guess the next tokens cheaply, and let one step of the model check all of them.

    request      … the king said to | the king        the drafter guesses: the king had three
    one step       computes "king" and the guess, and draws a token after each of them
                   drawn:   had   three   daughters    the guess had "the king had three": "had" and "three" were right
    the request    … the king said to the king had three daughters          three tokens in one step

A guess never changes a token. The model draws its own token at every position, with the noise of that position, and a
guess counts only if it is that token. So outputs with and without guesses are the same, greedy or sampled.

``drafters`` guess, ``Speculation`` decides how much of a guess is worth computing, checks it, and gives unused slots
back.
"""
