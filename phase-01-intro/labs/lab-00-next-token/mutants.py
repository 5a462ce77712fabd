"""Wrong solutions of lab 1.0, like those that people write."""

from course.mutants import Mutant

ARGMAX = "    return max(range(len(logits)), key=lambda token_id: logits[token_id])\n"
RANKED = "    ranked = sorted(range(len(logits)), key=lambda token_id: logits[token_id], reverse=True)\n"

MUTANTS = [
    Mutant("the-logit-itself", "Returns the largest logit instead of its position.", ARGMAX, "    return max(logits)\n",
           "test_task_1_the_largest_logit_wins",
           ("most_likely: Return the id of the token", "invariant 1: never a logit")),
    Mutant("the-smallest", "Treats logits as costs.", ARGMAX,
           "    return min(range(len(logits)), key=lambda token_id: logits[token_id])\n",
           "test_task_1_the_largest_logit_wins", "most_likely: with the largest logit"),
    Mutant("starts-at-zero", "Its loop starts with best = 0.0, and no negative logit is larger.", ARGMAX, """\
    best, best_id = 0.0, 0
    for token_id, logit in enumerate(logits):
        if logit > best:
            best, best_id = logit, token_id
    return best_id
""", "test_task_1_logits_can_be_negative", "most_likely: A logit can be negative"),
    Mutant("by-magnitude", "Compares absolute values.", ARGMAX,
           "    return max(range(len(logits)), key=lambda token_id: abs(logits[token_id]))\n",
           "test_task_1_logits_can_be_negative", "most_likely: A logit can be negative"),
    Mutant("the-last-of-equals", "Its loop compares with >=, which keeps the last of equal logits.", ARGMAX,
           "    return max(range(len(logits)), key=lambda token_id: (logits[token_id], token_id))\n",
           "test_task_1_of_equals_the_smallest_id",
           ("most_likely: return the smallest of their ids", "invariant 2: the smaller id comes first")),
    Mutant("rounds", "Rounds the logits before it compares them.", ARGMAX,
           "    return max(range(len(logits)), key=lambda token_id: round(logits[token_id]) if logits[token_id] > -1e9 "
           "else -10 ** 9)\n", "test_task_1_the_largest_logit_wins", "most_likely: with the largest logit"),
    Mutant("ascending", "Sorts in ascending order.", "key=lambda token_id: logits[token_id], reverse=True)",
           "key=lambda token_id: logits[token_id])", "test_task_2_the_largest_first",
           "most_likely_first: the largest logit first"),
    Mutant("reversed-afterwards", "Sorts in ascending order and reverses the list, equal logits included.", RANKED,
           "    ranked = sorted(range(len(logits)), key=lambda token_id: logits[token_id])[::-1]\n",
           "test_task_2_of_equals_the_smaller_id_first", "most_likely_first: the smaller id comes first"),
    Mutant("the-logits-themselves", "Sorts the logits and forgets which tokens they belong to.", RANKED,
           "    ranked = sorted(logits, reverse=True)\n", "test_task_2_the_largest_first",
           "most_likely_first: Return the ids of the"),
    Mutant("by-index-of", "Finds each id with index(), which returns the same id for all equal logits.", RANKED,
           "    ranked = [logits.index(logit) for logit in sorted(logits, reverse=True)]\n",
           "test_task_2_of_equals_the_smaller_id_first", "most_likely_first: the smaller id comes first"),
    Mutant("sorts-in-place", "Sorts the caller's list.", RANKED, """\
    ranked = sorted(range(len(logits)), key=lambda token_id: logits[token_id], reverse=True)
    logits.sort(reverse=True)
""", "test_task_2_the_logits_stay_as_they_were", "most_likely_first: ``logits`` is not changed"),
    Mutant("one-too-many", "Returns one id too many.", "    return ranked[:k]\n", "    return ranked[:k + 1]\n",
           "test_task_2_the_largest_first",
           "most_likely_first: the ``k`` tokens"),
    Mutant("exactly-k", "Fails if there are fewer than k tokens.", "    return ranked[:k]\n",
           "    return [ranked[place] for place in range(k)]\n", "test_task_2_fewer_tokens_than_asked_for",
           "most_likely_first: return all of them"),
    Mutant("none-is-all", "Treats k = 0 as no limit.", "    return ranked[:k]\n",
           "    return ranked[:k] if k else ranked\n", "test_task_2_the_largest_first",
           "most_likely_first: the ``k`` tokens"),
]
