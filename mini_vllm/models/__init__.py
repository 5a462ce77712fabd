"""From a name to a network, and from text to tokens.

A model, in the order in which it is loaded:

    find               the folder or file that a name stands for; ``catalogue`` knows the models that can be pulled
    pull, wheel        fetch one of those, and keep it
    loader             ``load(name)``: find, read, build
    folder, gguf       the two layouts of a checkpoint: config and tensors
    gguf_header        the header of a GGUF file, checked before MLX reads it
    config, rope       the numbers that make a network, and its rotary positions
    fields             files that somebody else wrote, read up to a bound; fields of a JSON object, checked
    shapes, packed     which tensors there must be, and how quantised ones are packed
    weights, stacking  the tensors checked, expanded or kept packed, and put into the network
    network            the network itself
    export             the way back: a folder for other programs
    sampling_defaults  how its makers would have it sampled
    random_model       the same with random weights

Text:

    tokenizer          text ⇄ token ids, a chat → token ids
    folder_tokenizer, gguf_tokenizer   where each layout keeps the tokenizer
    growth             how much longer the steps of a tokenizer.json can make a text
    chat_template      the program that writes a chat as one text
    token_bound        how few tokens a text can have, without reading it
    detokenizer        token ids → text, one token at a time
    prompts            what a caller may give as a prompt, and how it becomes token ids
"""
