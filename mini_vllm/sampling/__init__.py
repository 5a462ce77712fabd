"""What ``sampler.py`` leans on: what it knows of a request, what changes logits, filters, and log-probabilities."""
