"""Mistakes people make in a sampler, and the test that catches each."""

from course.mutants import Mutant

KEYS = "        keys = np.array([(row.key[0], row.key[1] + len(row.output_token_ids) + num_ahead) for row in rows])\n"
KEPT = "    return mx.where(is_above | (is_equal & (place_among_equals <= num_equal_kept)), scores, -math.inf)\n"
WIDTHS = "    widths = mx.exp(-mx.sort(-scores, axis=-1))\n"
MASS = """    mass_before = mx.cumsum(widths, axis=-1, inclusive=False)
    mass = mass_before[:, -1:] + widths[:, -1:]
"""
SCORES = """    # TASK 3: the temperature in _scores
    scores = (logits - mx.max(logits, axis=-1, keepdims=True)) / _column([p.temperature for p in params])
    # END TASK
"""
TOP_K = """    if any(p.top_k for p in params):
        # TASK 4: top-k in _scores
        vocab_size = logits.shape[1]
        scores = _keep_most_likely(scores, mx.array([[min(p.top_k or vocab_size, vocab_size)] for p in params]))
        # END TASK
"""
NUCLEUS = """    if any(p.top_p < 1 for p in params):
        # TASK 5: top-p in _scores
        scores = _keep_most_likely(scores, _num_in_nucleus(scores, _column([p.top_p for p in params])))
        # END TASK
"""
MIN_P = """    if any(p.min_p for p in params):
        # TASK 6: min-p in _scores
        scores = _keep_min_p(scores, _column([p.min_p for p in params]))
        # END TASK
"""

MUTANTS = [
    # ---- Task 1
    Mutant(
        name="greedy-over-the-whole-batch",
        story="Leaves out the axis: there is one token for all rows, an index into the whole array.",
        replace="        return mx.argmax(logits, axis=-1)\n",
        by="        return mx.broadcast_to(mx.argmax(logits), (logits.shape[0],))\n",
        killed_by="test_task_1_greedy_takes_the_largest_logit_of_each_row",
        breaks="Sampler.greedy: as an array [num_rows]",
    ),
    Mutant(
        name="greedy-takes-the-last-of-equals",
        story="Sorts and takes the last element: right as long as no two logits are equal.",
        replace="        return mx.argmax(logits, axis=-1)\n",
        by="        return logits.shape[1] - 1 - mx.argmax(logits[:, ::-1], axis=-1)\n",
        killed_by="test_task_1_among_equals_the_lowest_id_comes",
        breaks=("Sampler.greedy: Among equal logits the lowest id wins",
                "invariant 1: among equal logits, the lowest id"),
    ),
    # ---- Task 2
    Mutant(
        name="log-of-1-minus-u",
        story="Computes the formula literally. In float32, 1 - u loses small u, which give the largest noise.",
        replace="    return -mx.log(-mx.log1p(-uniform))\n",
        by="    return -mx.log(-mx.log(1 - uniform))\n",
        killed_by="test_task_2_noise_is_the_formula_of_each_keys_own_numbers",
        breaks="gumbel_noise: within 1e-5 of the exact result for its u",
    ),
    Mutant(
        name="minus-log-minus-log-u",
        story="Uses the textbook formula: the distribution is the same, but the seed gives different tokens.",
        replace="    return -mx.log(-mx.log1p(-uniform))\n",
        by="    return -mx.log(-mx.log(uniform))\n",
        killed_by="test_task_2_noise_is_the_formula_of_each_keys_own_numbers",
        breaks=("gumbel_noise: row i is -log(-log(1 - u)), element by element",
                "invariant 5: The same key at the same position gives the token that mini_vllm draws"),
    ),
    Mutant(
        name="uniform-noise",
        story="Adds uniform noise: tokens are random, but not with their probabilities.",
        replace="    return -mx.log(-mx.log1p(-uniform))\n",
        by="    return uniform\n",
        killed_by="test_task_2_noise_has_the_gumbel_distribution",
        breaks="gumbel_noise: Return numbers from the Gumbel distribution",
    ),
    Mutant(
        name="noise-with-the-wrong-sign",
        story="Loses the outer minus sign: the distribution is mirrored, and its long tail points down.",
        replace="    return -mx.log(-mx.log1p(-uniform))\n",
        by="    return mx.log(-mx.log1p(-uniform))\n",
        killed_by="test_task_2_noise_has_the_gumbel_distribution",
        breaks="gumbel_noise: row i is -log(-log(1 - u))",
    ),
    Mutant(
        name="infinite-noise",
        story="Assumes that the generator never returns 0. It does, once in four billion numbers.",
        replace="    uniform = mx.maximum(uniform, SMALLEST_UNIFORM)\n",
        by="",
        killed_by="test_task_2_noise_is_finite_where_the_generator_gives_0",
        breaks="gumbel_noise: a u below SMALLEST_UNIFORM is replaced by SMALLEST_UNIFORM",
    ),
    Mutant(
        name="one-key-for-the-batch",
        story="Makes one large array of noise from the first row's key: a row's noise depends on its index.",
        replace="    uniform = mx.vmap(lambda key: mx.random.uniform(shape=(vocab_size,), key=key))(keys)\n",
        by="    uniform = mx.random.uniform(shape=(keys.shape[0], vocab_size), key=keys[0])\n",
        killed_by="test_task_2_noise_depends_on_the_key_alone",
        breaks="gumbel_noise: row i depends only on keys[i]",
    ),
    Mutant(
        name="noise-is-remembered",
        story="Caches the noise of each key and cuts it to the requested vocabulary size.",
        replace="    uniform = mx.vmap(lambda key: mx.random.uniform(shape=(vocab_size,), key=key))(keys)\n",
        by="    kept = gumbel_noise.__dict__.setdefault(str(keys.tolist()), [])\n"
           "    if not kept or kept[0].shape[1] < vocab_size:\n"
           "        kept[:] = [mx.vmap(lambda key: mx.random.uniform(shape=(vocab_size,), key=key))(keys)]\n"
           "    uniform = kept[0][:, :vocab_size]\n",
        killed_by="test_task_2_noise_depends_on_the_key_alone",
        breaks=("gumbel_noise: u is mx.random.uniform(shape=(vocab_size,), key=keys[i])",
                "module: nothing is remembered between two calls"),
    ),
    Mutant(
        name="half-of-the-key",
        story="Uses only the second word of the key: seeds that differ only in the first word give the same text.",
        replace="(lambda key: mx.random.uniform(shape=(vocab_size,), key=key))",
        by="(lambda key: mx.random.uniform(shape=(vocab_size,), key=mx.stack([key[1], key[1]])))",
        killed_by="test_task_2_noise_depends_on_the_key_alone",
        breaks="gumbel_noise: two words form one key of MLX's generator",
    ),
    # ---- Task 3
    Mutant(
        name="noise-before-the-temperature",
        story="Adds the noise to the logits and divides the sum: the temperature no longer changes which token wins.",
        replace="_scores(logits, rows) + noise, axis=-1)\n",
        by="_scores(logits + noise, rows), axis=-1)\n",
        killed_by="test_task_3_tokens_come_as_often_as_the_temperature_says",
        breaks=("Sampler.draw: the token with the largest sum of score and noise (gumbel_noise)",
                "invariant 2: A token is drawn with the probability that it has"),
    ),
    Mutant(
        name="times-the-temperature",
        story="Multiplies instead of dividing: a low temperature makes the text more random.",
        replace="keepdims=True)) / _column([p.temperature for p in params])\n",
        by="keepdims=True)) * _column([p.temperature for p in params])\n",
        killed_by="test_task_3_tokens_come_as_often_as_the_temperature_says",
        breaks="_scores: divided by params.temperature",
    ),
    Mutant(
        name="one-temperature-for-all",
        story="Reads only the temperature of the first row. With one request in the batch this is right.",
        replace="_column([p.temperature for p in params])\n",
        by="_column([params[0].temperature])\n",
        killed_by="test_task_3_a_row_draws_the_same_in_any_company",
        breaks="Sampler.draw: with the parameters of that row in rows",
    ),
    Mutant(
        name="greedy-rows-get-noise",
        story="Divides by a very small temperature instead of checking for 0: among equal logits the noise decides.",
        replace="        return mx.where(is_greedy, self.greedy(logits), drawn)\n",
        by="        return drawn\n",
        killed_by="test_task_3_greedy_rows_and_drawn_rows_mix",
        breaks=("Sampler.draw: filters and noise do not matter",
                "invariant 1: Temperature 0 takes the largest logit"),
    ),
    Mutant(
        name="all-greedy-if-one-is",
        story="Makes one greedy decision for the whole batch instead of one per row.",
        replace="        return mx.where(is_greedy, self.greedy(logits), drawn)\n",
        by="        return mx.where(mx.any(is_greedy), self.greedy(logits), drawn)\n",
        killed_by="test_task_3_greedy_rows_and_drawn_rows_mix",
        breaks="Sampler.draw: not on the other rows",
    ),
    Mutant(
        name="tokens-as-a-column",
        story="Keeps the vocabulary axis, as for the parameter columns: the engine gets a list per request.",
        replace="        return mx.where(is_greedy, self.greedy(logits), drawn)\n",
        by="        return mx.where(is_greedy, self.greedy(logits), drawn)[:, None]\n",
        killed_by="test_task_3_the_largest_sum_of_score_and_noise_is_drawn",
        breaks="Sampler.draw: an array [num_rows] of token ids",
    ),
    Mutant(
        name="a-small-temperature-is-greedy",
        story="Treats every temperature below 0.00001 as 0, as vLLM does. Equal logits must still be drawn at random "
              "there.",
        replace="        is_greedy = mx.array([row.params.temperature == 0 for row in rows])\n",
        by="        is_greedy = mx.array([row.params.temperature < 1e-5 for row in rows])\n",
        killed_by="test_task_3_the_largest_sum_of_score_and_noise_is_drawn",
        breaks="Sampler.draw: for any other row: the token with the largest sum of score",
    ),
    Mutant(
        name="the-largest-logit-of-the-batch",
        story="Leaves out the axis: a row subtracts another row's largest logit and loses its own precision.",
        replace="(logits - mx.max(logits, axis=-1, keepdims=True)) / _column",
        by="(logits - mx.max(logits)) / _column",
        killed_by="test_task_3_a_row_draws_the_same_in_any_company",
        breaks=("_scores: each logit's distance to the largest logit of its row",
                "invariant 4: on nothing else"),
    ),
    Mutant(
        name="the-largest-logit-stays-in",
        story="Divides the logits without subtracting the largest, and adapts min-p: a small temperature overflows.",
        replace=SCORES + TOP_K + NUCLEUS + MIN_P,
        by="    scores = logits / _column([p.temperature for p in params])\n" + TOP_K + NUCLEUS
           + MIN_P.replace("_keep_min_p(scores,", "_keep_min_p(scores - mx.max(scores, axis=-1, keepdims=True),"),
        killed_by="test_task_3_no_temperature_is_too_small_or_too_large",
        breaks="_scores: the largest score of a row is 0",
    ),
    Mutant(
        name="the-same-noise-at-every-position",
        story="Uses the key without the position: every token of a request gets the same noise and favours the same "
              "words.",
        replace="row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="row.key[1])",
        killed_by="test_task_3_each_position_has_its_own_noise",
        breaks="Sampler.draw: the key of its noise is row.key[0] and row.key[1] + "
               "len(row.output_token_ids) + num_ahead",
    ),
    Mutant(
        name="noise-by-the-place-in-the-batch",
        story="Adds the row's index, to get different noise in every row: the text of a seed depends on the batch.",
        replace=KEYS,
        by="        keys = np.array([(row.key[0], row.key[1] + len(row.output_token_ids) + num_ahead + index)\n"
           "                         for index, row in enumerate(rows)])\n",
        killed_by="test_task_3_a_row_draws_the_same_in_any_company",
        breaks="Sampler.draw: not on the place in the batch",
    ),
    Mutant(
        name="two-positions-share-their-noise",
        story="Halves the position: every second token is drawn with the noise of the token before it.",
        replace="row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="row.key[1] + (len(row.output_token_ids) + num_ahead) // 2)",
        killed_by="test_task_3_draws_of_one_request_are_independent",
        breaks="Sampler.draw: the key of its noise is row.key[0] and row.key[1] + "
               "len(row.output_token_ids) + num_ahead",
    ),
    Mutant(
        name="positions-modulo-256",
        story="Stores the position in a byte: from token 256 on, the noise of a request repeats.",
        replace="row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="row.key[1] + (len(row.output_token_ids) + num_ahead) % 256)",
        killed_by="test_task_3_each_position_has_its_own_noise",
        breaks="Sampler.draw: the key of its noise is row.key[0] and row.key[1] + "
               "len(row.output_token_ids) + num_ahead",
    ),
    Mutant(
        name="one-noise-a-request",
        story="Makes the key from params.seed, which all samples of one request share: they all give the same text.",
        replace="(row.key[0], row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="(row.params.seed or 0, len(row.output_token_ids) + num_ahead)",
        killed_by="test_task_3_the_samples_of_one_seed_differ",
        breaks="Sampler.draw: the key of its noise is row.key[0] and row.key[1] + "
               "len(row.output_token_ids) + num_ahead",
    ),
    Mutant(
        name="noise-by-what-was-said",
        story="Adds up the output tokens instead of counting them.",
        replace="row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="row.key[1] + sum(row.output_token_ids) + num_ahead)",
        killed_by="test_task_3_what_the_output_says_does_not_matter",
        breaks="Sampler.draw: not on which tokens the output contains",
    ),
    Mutant(
        name="noise-by-all-tokens",
        story="Also counts the prompt's tokens: consistent, but the tokens differ from the engine's for that seed.",
        replace="row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="row.key[1] + len(row.prompt_token_ids) + len(row.output_token_ids) + num_ahead)",
        killed_by="test_task_3_what_the_output_says_does_not_matter",
        breaks="Sampler.draw: the key of its noise is row.key[0] and row.key[1] + "
               "len(row.output_token_ids) + num_ahead",
    ),
    Mutant(
        name="the-position-in-the-first-word",
        story="Adds the position to the first word, which distinguishes seeds.",
        replace="(row.key[0], row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="((row.key[0] + len(row.output_token_ids) + num_ahead) % 2 ** 32, row.key[1])",
        killed_by="test_task_3_the_largest_sum_of_score_and_noise_is_drawn",
        breaks="Sampler.draw: the key of its noise is row.key[0] and row.key[1] + "
               "len(row.output_token_ids) + num_ahead",
    ),
    Mutant(
        name="ignores-num-ahead",
        story="Draws a step that begins early with the noise of the previous step.",
        replace=" + len(row.output_token_ids) + num_ahead)",
        by=" + len(row.output_token_ids))",
        killed_by="test_task_3_a_token_can_be_drawn_ahead",
        breaks="Sampler.draw: the one num_ahead positions later",
    ),
    Mutant(
        name="a-key-overflows",
        story="Does not reduce modulo 2 ** 32. One in four million texts of 1000 tokens fails because of that.",
        replace=" + num_ahead) for row in rows])\n",
        by=" + num_ahead) for row in rows], dtype=np.uint32)\n",
        killed_by="test_task_3_a_key_that_reaches_its_end_goes_on_at_0",
        breaks="Sampler.draw: the latter modulo 2 ** 32",
    ),
    Mutant(
        name="a-key-carries-over",
        story="Treats the two words as one 64-bit number: an overflow of the second word changes the first.",
        replace=KEYS,
        by="        wide = [(row.key[0] << 32) + row.key[1] + len(row.output_token_ids) + num_ahead for row in rows]\n"
           "        keys = np.array([divmod(number, 2 ** 32) for number in wide])\n",
        killed_by="test_task_3_a_key_that_reaches_its_end_goes_on_at_0",
        breaks="Sampler.draw: the latter modulo 2 ** 32",
    ),
    Mutant(
        name="draws-in-half-precision",
        story="Computes in the type of the logits: in bfloat16 a score has 8 bits, and most tokens become equal.",
        replace="        logits = logits.astype(mx.float32)\n",
        by="",
        killed_by="test_task_3_half_precision_is_drawn_in_single_precision",
        breaks="Sampler.draw: score and noise are computed in float32, whatever the type of the logits",
    ),
    Mutant(
        name="a-temperature-that-is-0-in-float32",
        story="Divides by the unclipped number: 1e-50 is 0 in float32, and 0 / 0 is NaN.",
        replace="_column([p.temperature for p in params])\n",
        by="mx.array([[p.temperature] for p in params])\n",
        killed_by="test_task_3_no_temperature_is_too_small_or_too_large",
        breaks="_column: The nearest finite float32 above 0 replaces such a number",
    ),
    Mutant(
        name="works-in-the-callers-array",
        story="Subtracts the largest logit in place, to save memory. But the engine uses the logits afterwards.",
        replace="        logits = logits.astype(mx.float32)\n",
        by="        logits -= mx.max(logits, axis=-1, keepdims=True)\n        logits = logits.astype(mx.float32)\n",
        killed_by="test_task_3_the_callers_logits_stay_as_they_are",
        breaks="Sampler.draw: logits and rows have not changed",
    ),
    Mutant(
        name="draw-appends-what-it-drew",
        story="Appends the token to the row, where the next draw counts it. The scheduler appends it again.",
        replace="        return mx.where(is_greedy, self.greedy(logits), drawn)\n",
        by="        drawn = mx.where(is_greedy, self.greedy(logits), drawn)\n"
           "        for row, token in zip(rows, drawn.tolist()):\n"
           "            if isinstance(row.output_token_ids, list):\n"
           "                row.output_token_ids.append(token)\n"
           "        return drawn\n",
        killed_by="test_task_3_the_callers_logits_stay_as_they_are",
        breaks="Sampler.draw: logits and rows have not changed",
    ),
    Mutant(
        name="a-floor-under-the-scores",
        story="Clips scores to keep infinities out of the sums: a dropped token is drawn if its noise is large.",
        replace="    return scores\n",
        by="    return mx.maximum(scores, -10.0)\n",
        killed_by="test_task_3_a_logit_of_minus_infinity_is_never_drawn",
        breaks=("Sampler.draw: a token with logit -inf is never drawn",
                "invariant 3: A dropped token is never drawn"),
    ),
    # ---- Task 4
    Mutant(
        name="top-k-by-value",
        story="Keeps all scores that are at least the k-th: with equal scores on the border, it keeps more than k.",
        replace=KEPT,
        by="    return mx.where(is_above | is_equal, scores, -math.inf)\n",
        killed_by="test_task_4_of_equals_the_lowest_ids_stay",
        breaks="_keep_most_likely: exactly num_kept scores of each row are unchanged",
    ),
    Mutant(
        name="the-highest-ids-stay",
        story="Keeps the highest ids among equal scores, as a descending sort of ids does.",
        replace="    place_among_equals = mx.cumsum(is_equal.astype(mx.int32), axis=-1)\n",
        by="    place_among_equals = mx.cumsum(is_equal.astype(mx.int32), axis=-1, reverse=True)\n",
        killed_by="test_task_4_of_equals_the_lowest_ids_stay",
        breaks=("_keep_most_likely: of equal scores on the border, those with the lowest ids stay",
                "module: those with the lowest ids stay"),
    ),
    Mutant(
        name="one-too-few-of-the-equals",
        story="Uses < instead of <=, although places count from 1.",
        replace="(place_among_equals <= num_equal_kept)",
        by="(place_among_equals < num_equal_kept)",
        killed_by="test_task_4_top_k_keeps_exactly_k",
        breaks="_keep_most_likely: exactly num_kept scores of each row are unchanged",
    ),
    Mutant(
        name="top-k-is-off-by-one",
        story="Takes the value at index k, counted from 0, as the k-th, and keeps k + 1.",
        replace="    descending = -mx.sort(-scores, axis=-1)\n",
        by="    descending = -mx.sort(-scores, axis=-1)\n    num_kept = mx.minimum(num_kept + 1, scores.shape[1])\n",
        killed_by="test_task_4_top_k_keeps_exactly_k",
        breaks="_scores: the params.top_k most likely tokens stay",
    ),
    Mutant(
        name="one-k-for-all",
        story="Uses the largest top_k of the batch for all rows.",
        replace="mx.array([[min(p.top_k or vocab_size, vocab_size)] for p in params]))\n",
        by="mx.array([[min(max(q.top_k for q in params), vocab_size)] for p in params]))\n",
        killed_by="test_task_4_every_row_has_its_own_k",
        breaks="_scores: the params.top_k most likely tokens stay",
    ),
    Mutant(
        name="top-k-of-0-keeps-one",
        story="Treats top_k 0 as a number of tokens.",
        replace="min(p.top_k or vocab_size, vocab_size)",
        by="min(max(p.top_k, 1), vocab_size)",
        killed_by="test_task_4_a_top_k_of_0_or_above_the_vocabulary_keeps_all",
        breaks="_scores: all tokens if it is 0 or above vocab_size",
    ),
    Mutant(
        name="top-k-of-0-is-an-index-of-minus-1",
        story="Uses 0 as the number to keep. Index -1 is the last score, so only the least likely token is dropped, "
              "and the mistake hardly shows.",
        replace="min(p.top_k or vocab_size, vocab_size)",
        by="min(p.top_k, vocab_size)",
        killed_by="test_task_4_a_row_without_top_k_keeps_all_next_to_one_that_has_it",
        breaks=("_scores: all tokens if it is 0 or above vocab_size",
                "_keep_most_likely: integers from 1 to vocab_size; the caller must ensure this"),
    ),
    Mutant(
        name="dropped-means-0",
        story="Replaces dropped scores with 0, as for probabilities. But a score of 0 means the most likely token.",
        replace="<= num_equal_kept)), scores, -math.inf)\n",
        by="<= num_equal_kept)), scores, 0.0)\n",
        killed_by="test_task_4_top_k_keeps_exactly_k",
        breaks=("_keep_most_likely: the others are -inf",
                "invariant 3: A dropped token is never drawn"),
    ),
    Mutant(
        name="what-stays-is-equal",
        story="Gives all tokens that stay the same score.",
        replace="<= num_equal_kept)), scores, -math.inf)\n",
        by="<= num_equal_kept)), 0.0, -math.inf)\n",
        killed_by="test_task_4_what_stays_keeps_its_proportions",
        breaks="_keep_most_likely: exactly num_kept scores of each row are unchanged",
    ),
    # ---- Task 5
    Mutant(
        name="drops-the-token-that-crosses",
        story="Keeps tokens while the sum, including their own probability, is at most top_p.",
        replace=MASS,
        by="    mass_before = mx.cumsum(widths, axis=-1)\n    mass = mass_before[:, -1:]\n",
        killed_by="test_task_5_the_token_that_crosses_is_kept",
        breaks="_num_in_nucleus: the token that crosses top_p belongs to the nucleus",
    ),
    Mutant(
        name="one-token-after-top-p-is-reached",
        story="Uses <= instead of <: if the sum equals top_p exactly, one token too many is kept.",
        replace="(mass_before < top_p * mass, axis=-1, keepdims=True)",
        by="(mass_before <= top_p * mass, axis=-1, keepdims=True)",
        killed_by="test_task_5_the_nucleus_ends_where_top_p_is_reached_exactly",
        breaks="_num_in_nucleus: the smallest number of most likely tokens whose probabilities add up to top_p or more",
    ),
    Mutant(
        name="a-nucleus-of-nothing",
        story="Does not clip top_p: 1e-300 is 0 in float32. No token is needed to reach 0, and index -1 is the last: "
              "all stay.",
        replace="_column([p.top_p for p in params])))\n",
        by="mx.array([[p.top_p] for p in params])))\n",
        killed_by="test_task_5_a_tiny_top_p_keeps_one_token",
        breaks="_num_in_nucleus: integers, at least 1",
    ),
    Mutant(
        name="top-p-of-all-tokens",
        story="Uses the probabilities from before top-k, so the kept ones no longer add up to 1.",
        replace=NUCLEUS,
        by="    before = logits - mx.max(logits, axis=-1, keepdims=True)\n"
           "    before = before / _column([p.temperature for p in params])\n"
           + NUCLEUS.replace("_num_in_nucleus(scores", "_num_in_nucleus(before"),
        killed_by="test_task_5_top_p_counts_what_top_k_left",
        breaks="_num_in_nucleus: probabilities are those of the tokens that are left",
    ),
    Mutant(
        name="does-not-divide-by-the-mass",
        story="Uses probabilities relative to the most likely token: they add up to more than 1.",
        replace="(mass_before < top_p * mass, axis=-1, keepdims=True)",
        by="(mass_before < top_p, axis=-1, keepdims=True)",
        killed_by="test_task_5_the_token_that_crosses_is_kept",
        breaks="_num_in_nucleus: and the others add up to 1",
    ),
    Mutant(
        name="the-nucleus-before-the-temperature",
        story="Filters with the model's own probabilities and applies the temperature afterwards.",
        replace=NUCLEUS,
        by="    before = scores * _column([p.temperature for p in params])\n"
           + NUCLEUS.replace("_num_in_nucleus(scores", "_num_in_nucleus(before"),
        killed_by="test_task_5_the_temperature_comes_first",
        breaks="invariant 2: after temperature, top-k, top-p and min-p, in this order",
    ),
    Mutant(
        name="top-p-of-1-goes-through-the-sum",
        story="Has no special case for top_p 1. 1.0 + 2.5e-8 is 1.0 in float32, so the least likely tokens are "
              "dropped.",
        replace="    return mx.where(top_p < 1, num_kept, scores.shape[1])\n",
        by="    return num_kept\n",
        killed_by="test_task_5_top_p_of_1_keeps_what_a_sum_does_not_notice",
        breaks="_num_in_nucleus: vocab_size where top_p is 1",
    ),
    Mutant(
        name="nearly-1-is-1",
        story="Skips the sum for every top_p close to 1, not only for 1.",
        replace="    return mx.where(top_p < 1, num_kept, scores.shape[1])\n",
        by="    return mx.where(top_p < 0.999, num_kept, scores.shape[1])\n",
        killed_by="test_task_5_a_top_p_just_below_1_is_a_filter",
        breaks="_num_in_nucleus: the smallest number of most likely tokens whose probabilities add up to top_p or more",
    ),
    Mutant(
        name="a-nucleus-larger-than-the-vocabulary",
        story="Counts the sums below top_p and adds 1. If even the last sum is below it, that is one token too many.",
        replace=WIDTHS + MASS + "    num_kept = mx.sum(mass_before < top_p * mass, axis=-1, keepdims=True)\n",
        by="    likely = mx.softmax(-mx.sort(-scores, axis=-1), axis=-1)\n"
           "    num_kept = mx.sum(mx.cumsum(likely, axis=-1) < top_p, axis=-1, keepdims=True) + 1\n",
        killed_by="test_task_5_a_nucleus_is_never_larger_than_the_vocabulary",
        breaks="_num_in_nucleus: at most vocab_size, even if the sum of all probabilities ends below top_p",
    ),
    Mutant(
        name="sums-from-the-unlikely-end",
        story="Sorts in ascending order, as mx.sort does, and adds up from the least likely token.",
        replace=WIDTHS,
        by="    widths = mx.exp(mx.sort(scores, axis=-1))\n",
        killed_by="test_task_5_the_token_that_crosses_is_kept",
        breaks="_num_in_nucleus: the smallest number of most likely tokens",
    ),
    Mutant(
        name="adds-up-scores",
        story="Adds up logarithms instead of probabilities.",
        replace=WIDTHS,
        by="    widths = mx.maximum(1 - mx.sort(-scores, axis=-1), 0)\n",
        killed_by="test_task_5_the_token_that_crosses_is_kept",
        breaks="_num_in_nucleus: whose probabilities add up to top_p or more",
    ),
    Mutant(
        name="one-p-for-all",
        story="Uses the smallest top_p of the batch for all rows.",
        replace="_column([p.top_p for p in params])))\n",
        by="_column([min(p.top_p for p in params)] * len(rows))))\n",
        killed_by="test_task_5_every_row_has_its_own_p",
        breaks="_scores: the nucleus for params.top_p stays",
    ),
    # ---- Task 6
    Mutant(
        name="min-p-of-all",
        story="Compares probabilities with min_p, not with min_p times the largest: a flat distribution loses all "
              "tokens.",
        replace="scores >= mx.log(min_p), scores, -math.inf)\n",
        by="mx.softmax(scores, axis=-1) >= min_p, scores, -math.inf)\n",
        killed_by="test_task_6_min_p_is_relative_to_the_most_likely",
        breaks="_keep_min_p: less than min_p times as likely as the most likely one of their row",
    ),
    Mutant(
        name="min-p-of-logits",
        story="Compares a logarithm with a probability.",
        replace="scores >= mx.log(min_p), scores, -math.inf)\n",
        by="scores >= -min_p, scores, -math.inf)\n",
        killed_by="test_task_6_min_p_is_relative_to_the_most_likely",
        breaks="_keep_min_p: less than min_p times as likely as the most likely one of their row",
    ),
    Mutant(
        name="min-p-drops-the-border",
        story="Uses > instead of >=: with min_p 1 nothing is left, not even the most likely token.",
        replace="scores >= mx.log(min_p), scores, -math.inf)\n",
        by="scores > mx.log(min_p), scores, -math.inf)\n",
        killed_by="test_task_6_min_p_of_1_keeps_all_that_are_as_likely_as_the_likeliest",
        breaks=("_scores: its most likely token is never dropped",
                "invariant 3: The most likely token is never dropped"),
    ),
    Mutant(
        name="min-p-of-1-keeps-one",
        story="With min_p 1, keeps only one of several equally likely tokens.",
        replace="    return mx.where(scores >= mx.log(min_p), scores, -math.inf)\n",
        by="    scores = mx.where(scores >= mx.log(min_p), scores, -math.inf)\n"
           "    return _keep_most_likely(scores, mx.where(min_p < 1, scores.shape[1], 1))\n",
        killed_by="test_task_6_min_p_of_1_keeps_all_that_are_as_likely_as_the_likeliest",
        breaks="_keep_min_p: with min_p 1, exactly the tokens that are as likely as the most likely one stay",
    ),
    Mutant(
        name="min-p-with-a-margin",
        story="Allows for a rounding error that is a thousand times too large.",
        replace="scores >= mx.log(min_p), scores, -math.inf)\n",
        by="scores >= mx.log(min_p) - 1e-3, scores, -math.inf)\n",
        killed_by="test_task_6_min_p_is_relative_to_the_most_likely",
        breaks="_keep_min_p: up to rounding",
    ),
    Mutant(
        name="min-p-before-the-temperature",
        story="Compares the model's own probabilities, before the temperature.",
        replace="        scores = _keep_min_p(scores, _column([p.min_p for p in params]))\n",
        by="        relative = logits - mx.max(logits, axis=-1, keepdims=True)\n"
           "        scores = mx.where(_keep_min_p(relative, _column([p.min_p for p in params])) > -math.inf, scores,\n"
           "                          -math.inf)\n",
        killed_by="test_task_6_min_p_comes_after_the_temperature",
        breaks="invariant 2: after temperature, top-k, top-p and min-p, in this order",
    ),
    Mutant(
        name="min-p-before-top-p",
        story="Applies min-p before top-p: the nucleus is then computed from fewer tokens and is smaller.",
        replace=NUCLEUS,
        by="    scores = _keep_min_p(scores, _column([p.min_p for p in params]))\n" + NUCLEUS,
        killed_by="test_task_6_min_p_comes_after_top_p",
        breaks="_scores: of these, all that are at least params.min_p times as likely as the most likely token stay",
    ),
    Mutant(
        name="top-p-before-top-k",
        story="Takes the nucleus of all tokens first, then its k most likely tokens.",
        replace=TOP_K + NUCLEUS,
        by=NUCLEUS + TOP_K,
        killed_by="test_task_6_any_mix_draws_what_the_rules_say",
        breaks="_scores: of these, the nucleus for params.top_p stays",
    ),
    Mutant(
        name="the-temperature-comes-last",
        story="Filters the model's own distribution first and applies the temperature last.",
        replace=SCORES + TOP_K + NUCLEUS + MIN_P,
        by=SCORES.replace(" / _column([p.temperature for p in params])", "") + TOP_K + NUCLEUS + MIN_P
           + "    scores = scores / _column([p.temperature for p in params])\n",
        killed_by="test_task_6_all_filters_together_have_the_right_frequencies",
        breaks="module: Filters, in this order: temperature, top-k, top-p, min-p",
    ),
    Mutant(
        name="one-min-p-for-all",
        story="Uses the largest min_p of the batch for all rows.",
        replace="        scores = _keep_min_p(scores, _column([p.min_p for p in params]))\n",
        by="        scores = _keep_min_p(scores, _column([max(p.min_p for p in params)]))\n",
        killed_by="test_task_6_a_row_does_not_notice_the_parameters_of_others",
        breaks="module: A row without a filter is not affected by another row's filter",
    ),
]
