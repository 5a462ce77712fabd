"""The same results, sooner: attention, products and activations for the machine at hand."""
