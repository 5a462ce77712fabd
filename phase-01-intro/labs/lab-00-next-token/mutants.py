"""Wrong solutions of lab 1.0 that people really write."""

from course.mutants import Mutant

ARGMAX = "    return max(range(len(logits)), key=lambda token_id: logits[token_id])\n"
RANKED = "    ranked = sorted(range(len(logits)), key=lambda token_id: logits[token_id], reverse=True)\n"

MUTANTS = [
    Mutant("the-logit-itself", "Returns the largest logit instead of its place.", ARGMAX, "    return max(logits)\n",
           "test_task_1_the_largest_logit_wins",
           ("most_likely: The id of the token", "invariant 1: never a logit")),
    Mutant("the-smallest", "Takes a logit for a cost.", ARGMAX,
           "    return min(range(len(logits)), key=lambda token_id: logits[token_id])\n",
           "test_task_1_the_largest_logit_wins", "most_likely: with the largest logit"),
    Mutant("starts-at-zero", "A loop that begins with best = 0.0 finds nothing above it.", ARGMAX, """\
    best, best_id = 0.0, 0
    for token_id, logit in enumerate(logits):
        if logit > best:
            best, best_id = logit, token_id
    return best_id
""", "test_task_1_logits_can_be_negative", "most_likely: A logit can be negative"),
    Mutant("by-magnitude", "Compares absolute values.", ARGMAX,
           "    return max(range(len(logits)), key=lambda token_id: abs(logits[token_id]))\n",
           "test_task_1_logits_can_be_negative", "most_likely: A logit can be negative"),
    Mutant("the-last-of-equals", "A loop with >= keeps the last.", ARGMAX,
           "    return max(range(len(logits)), key=lambda token_id: (logits[token_id], token_id))\n",
           "test_task_1_of_equals_the_smallest_id",
           ("most_likely: return the smallest of them", "invariant 2: the smaller id comes first")),
    Mutant("rounds", "Compares whole numbers.", ARGMAX,
           "    return max(range(len(logits)), key=lambda token_id: round(logits[token_id]) if logits[token_id] > -1e9 "
           "else -10 ** 9)\n", "test_task_1_the_largest_logit_wins", "most_likely: with the largest logit"),
    Mutant("ascending", "Sorts the wrong way round.", "key=lambda token_id: logits[token_id], reverse=True)",
           "key=lambda token_id: logits[token_id])", "test_task_2_the_largest_first",
           "most_likely_first: the largest first"),
    Mutant("reversed-afterwards", "Sorts upwards and turns the list round: equal ones are turned, too.", RANKED,
           "    ranked = sorted(range(len(logits)), key=lambda token_id: logits[token_id])[::-1]\n",
           "test_task_2_of_equals_the_smaller_id_first", "most_likely_first: the smaller id first"),
    Mutant("the-logits-themselves", "Sorts the logits and forgets whose they are.", RANKED,
           "    ranked = sorted(logits, reverse=True)\n", "test_task_2_the_largest_first",
           "most_likely_first: The ids of the"),
    Mutant("by-index-of", "Looks each logit up again: equal ones all become the first.", RANKED,
           "    ranked = [logits.index(logit) for logit in sorted(logits, reverse=True)]\n",
           "test_task_2_of_equals_the_smaller_id_first", "most_likely_first: the smaller id first"),
    Mutant("sorts-in-place", "Sorts its argument.", RANKED, """\
    ranked = sorted(range(len(logits)), key=lambda token_id: logits[token_id], reverse=True)
    logits.sort(reverse=True)
""", "test_task_2_the_logits_stay_as_they_were", "most_likely_first: ``logits`` is not changed"),
    Mutant("one-too-many", "Off by one.", "    return ranked[:k]\n", "    return ranked[:k + 1]\n",
           "test_task_2_the_largest_first",
           "most_likely_first: the ``k`` tokens"),
    Mutant("exactly-k", "Asks for tokens that are not there.", "    return ranked[:k]\n",
           "    return [ranked[place] for place in range(k)]\n", "test_task_2_fewer_tokens_than_asked_for",
           "most_likely_first: return all of them"),
    Mutant("none-is-all", "Takes 0 for no limit.", "    return ranked[:k]\n",
           "    return ranked[:k] if k else ranked\n", "test_task_2_the_largest_first",
           "most_likely_first: the ``k`` tokens"),
]
