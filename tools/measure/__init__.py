"""Measurements that support the numbers in the documents. What is compared is measured side by side in one run.

    python tools/measure single       one request, against mlx-lm on the same weights
    python tools/measure drafts       what a drafted token costs a step, and what doing without look-ahead costs
    python tools/measure structured   masks, a structured request in a batch, and JSON against free text
    python tools/measure pool         a decode step with a small and with a large pool
    python tools/measure tree         a lookup among 1,000 and 16,000 prompts, with and without a common prefix
    python tools/measure prefix       a shared prefix and a chat: with the cache on, off, and with mlx-lm
    python tools/measure seeds        how many draws change between a request alone and in a batch
    python tools/measure precision    what --fast changes: logits, likeliest tokens and perplexity
    python tools/measure stall        how much a caller with a huge prompt delays the others
    python tools/measure quiz         easy questions to a chat model, by sampling method
    python tools/measure router       cached tokens and balance of two replicas behind each kind of router

``mini-vllm bench`` contains the benchmarks for users.
"""
