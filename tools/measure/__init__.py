"""Measurements that support the numbers in the documents. What is compared is measured side by side in one run.

    python tools/measure seeds        how many draws change between a request alone and in a batch
    python tools/measure precision    what --fast changes: logits, likeliest tokens and perplexity
    python tools/measure router       two servers behind each kind of router: cached tokens, or what a kill loses

    python tools/measure weight       lines of code by package
    python tools/measure path         the files and lines that one request runs

``mini-vllm bench`` contains the benchmarks for users.
"""
