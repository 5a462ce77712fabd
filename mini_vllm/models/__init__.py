"""From a name to a network, and from text to tokens.

A model, in the order in which it is loaded:

    catalogue    the folder or file that a name stands for, and the models that can be pulled
    pull         fetches one of those, and keeps it
    loader       ``load(name)``: find, read, build; the recommended sampling parameters
    config       the numbers that define a network, read from a config.json and checked
    folder       a checkpoint folder in the Hugging Face layout: config, tensors, tokenizer
    gguf         the same from a GGUF file; ``gguf_file`` reads its fields and unpacks its tensors
    weights      the tensors checked, expanded or kept packed, and put into the network
    network      the network itself, with its rotary positions
    export       the way back: a folder for other programs
    random_model a model with random weights

Text:

    tokenizer    text ⇄ token ids, a chat → one text, the text of an output as it grows
    prompts      what a caller may give as a prompt, and how it becomes token ids
"""
