"""Parts of ``sampler.py``: the sampler's view of a request, logit rules, filters, and log-probabilities."""
