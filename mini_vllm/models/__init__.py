"""From a name to a network, and from text to tokens.

A model, in the order in which it is loaded:

    resolve_name       the folder or file that a name stands for; ``catalogue`` knows the models that can be pulled
    pull, wheel_download
                       fetch one of those, and keep it
    loader             ``load(name)``: find, read, build
    folder, gguf       the two layouts of a checkpoint: config and tensors
    gguf_file, gguf_types  what a GGUF file contains, and how its tensors are unpacked
    config, rope       the numbers that define a network, and its rotary positions
    json_fields        files from others, read up to a size limit; fields of a JSON object, checked
    shapes, quantised  which tensors there must be, and how quantised ones are packed
    weights, stack_weights
                       the tensors checked, expanded or kept packed, and put into the network
    network            the network itself
    export             the way back: a folder for other programs
    sampling_defaults  the recommended sampling parameters
    random_model       a model with random weights

Text:

    tokenizer          text ⇄ token ids, a chat → token ids
    folder_tokenizer, gguf_tokenizer   where each layout keeps the tokenizer
    growth             how much longer the steps of a tokenizer.json can make a text
    chat_template      the program that writes a chat as one text
    token_bound        a lower bound on the tokens of a text, without reading it
    detokenizer        token ids → text, one token at a time
    prompts            what a caller may give as a prompt, and how it becomes token ids
"""
