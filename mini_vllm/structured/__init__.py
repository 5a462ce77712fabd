"""Output that must match: a regular expression, one of several texts, a JSON schema or a grammar.

    regular expression ─▶ tree ─▶ automaton over bytes ─┐
                     regex_tree        automaton        ├─▶ for each state, the tokens that may come next ─▶ sampler
    token ids ─▶ bytes of each token ─▶ trie ───────────┘                     grammar
                      vocabulary
"""
