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
        story="Leaves out the axis: one token for all rows, by its place in the whole array.",
        replace="        return mx.argmax(logits, axis=-1)\n",
        by="        return mx.broadcast_to(mx.argmax(logits), (logits.shape[0],))\n",
        killed_by="test_task_1_greedy_takes_the_largest_logit_of_each_row",
        breaks="Sampler.greedy: an array [num_rows] of token ids",
    ),
    Mutant(
        name="greedy-takes-the-last-of-equals",
        story="Sorts and takes the end of the order: right, as long as no two logits are equal.",
        replace="        return mx.argmax(logits, axis=-1)\n",
        by="        return logits.shape[1] - 1 - mx.argmax(logits[:, ::-1], axis=-1)\n",
        killed_by="test_task_1_among_equals_the_lowest_id_comes",
        breaks=("Sampler.greedy: Of equal logits the one with the lowest id counts",
                "invariant 1: of equals the lowest id"),
    ),
    # ---- Task 2
    Mutant(
        name="log-of-1-minus-u",
        story="Writes the formula down as it stands. In float32 1 - u forgets small u, where the largest noise is.",
        replace="    return -mx.log(-mx.log1p(-uniform))\n",
        by="    return -mx.log(-mx.log(1 - uniform))\n",
        killed_by="test_task_2_noise_is_the_formula_of_each_keys_own_numbers",
        breaks="gumbel_noise: within 1e-5 of what exact arithmetic makes of its u",
    ),
    Mutant(
        name="minus-log-minus-log-u",
        story="The textbook's formula: the same distribution, but other tokens than everybody else's with that seed.",
        replace="    return -mx.log(-mx.log1p(-uniform))\n",
        by="    return -mx.log(-mx.log(uniform))\n",
        killed_by="test_task_2_noise_is_the_formula_of_each_keys_own_numbers",
        breaks=("gumbel_noise: row i is -log(-log(1 - u)), number by number",
                "invariant 5: The same key at the same position gives what mini_vllm draws, token for token"),
    ),
    Mutant(
        name="uniform-noise",
        story="Adds uniform noise: tokens come at random, but not with their probabilities.",
        replace="    return -mx.log(-mx.log1p(-uniform))\n",
        by="    return uniform\n",
        killed_by="test_task_2_noise_has_the_gumbel_distribution",
        breaks="gumbel_noise: Numbers of the Gumbel distribution",
    ),
    Mutant(
        name="noise-with-the-wrong-sign",
        story="Loses the outer minus: the distribution is mirrored, its long tail points down.",
        replace="    return -mx.log(-mx.log1p(-uniform))\n",
        by="    return mx.log(-mx.log1p(-uniform))\n",
        killed_by="test_task_2_noise_has_the_gumbel_distribution",
        breaks="gumbel_noise: row i is -log(-log(1 - u))",
    ),
    Mutant(
        name="infinite-noise",
        story="Trusts the generator never to give 0. It does, once in four billion numbers.",
        replace="    uniform = mx.maximum(uniform, SMALLEST_UNIFORM)\n",
        by="",
        killed_by="test_task_2_noise_is_finite_where_the_generator_gives_0",
        breaks="gumbel_noise: a u below SMALLEST_UNIFORM is replaced by SMALLEST_UNIFORM",
    ),
    Mutant(
        name="one-key-for-the-batch",
        story="Takes the first row's key and one large array of noise: a row's noise depends on where it stands.",
        replace="    uniform = mx.vmap(lambda key: mx.random.uniform(shape=(vocab_size,), key=key))(keys)\n",
        by="    uniform = mx.random.uniform(shape=(keys.shape[0], vocab_size), key=keys[0])\n",
        killed_by="test_task_2_noise_depends_on_the_key_alone",
        breaks="gumbel_noise: row i depends on keys[i] alone",
    ),
    Mutant(
        name="noise-is-remembered",
        story="Keeps the noise of each key, to spare the generator, and cuts it to the vocabulary that is asked for.",
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
        story="Makes a key of the second word alone: a seed that differs in the first word only says the same.",
        replace="(lambda key: mx.random.uniform(shape=(vocab_size,), key=key))",
        by="(lambda key: mx.random.uniform(shape=(vocab_size,), key=mx.stack([key[1], key[1]])))",
        killed_by="test_task_2_noise_depends_on_the_key_alone",
        breaks="gumbel_noise: two words are a key of MLX's generator",
    ),
    # ---- Task 3
    Mutant(
        name="noise-before-the-temperature",
        story="Adds the noise to the logits and divides the sum: the temperature no longer changes who wins.",
        replace="_scores(logits, rows) + noise, axis=-1)\n",
        by="_scores(logits + noise, rows), axis=-1)\n",
        killed_by="test_task_3_tokens_come_as_often_as_the_temperature_says",
        breaks=("Sampler.draw: the token with the largest sum of score and noise (gumbel_noise)",
                "invariant 2: A token is drawn with the probability that is left for it"),
    ),
    Mutant(
        name="times-the-temperature",
        story="Multiplies where it should divide: a low temperature makes the text wild.",
        replace="keepdims=True)) / _column([p.temperature for p in params])\n",
        by="keepdims=True)) * _column([p.temperature for p in params])\n",
        killed_by="test_task_3_tokens_come_as_often_as_the_temperature_says",
        breaks="_scores: divided by params.temperature",
    ),
    Mutant(
        name="one-temperature-for-all",
        story="Reads the temperature of the first row. With one request in the batch nobody notices.",
        replace="_column([p.temperature for p in params])\n",
        by="_column([params[0].temperature])\n",
        killed_by="test_task_3_a_row_draws_the_same_in_any_company",
        breaks="Sampler.draw: by the parameters of that row of rows",
    ),
    Mutant(
        name="greedy-rows-get-noise",
        story="Divides by a very small temperature instead of asking for 0: among equal logits the noise decides.",
        replace="        return mx.where(is_greedy, self.greedy(logits), drawn)\n",
        by="        return drawn\n",
        killed_by="test_task_3_greedy_rows_and_drawn_rows_mix",
        breaks=("Sampler.draw: filters and noise do not matter",
                "invariant 1: Temperature 0 is the largest logit"),
    ),
    Mutant(
        name="all-greedy-if-one-is",
        story="Decides for the batch what each row must decide for itself.",
        replace="        return mx.where(is_greedy, self.greedy(logits), drawn)\n",
        by="        return mx.where(mx.any(is_greedy), self.greedy(logits), drawn)\n",
        killed_by="test_task_3_greedy_rows_and_drawn_rows_mix",
        breaks="Sampler.draw: not the other rows",
    ),
    Mutant(
        name="tokens-as-a-column",
        story="Keeps the axis of the vocabulary, as for the columns of parameters: the engine gets a list per request.",
        replace="        return mx.where(is_greedy, self.greedy(logits), drawn)\n",
        by="        return mx.where(is_greedy, self.greedy(logits), drawn)[:, None]\n",
        killed_by="test_task_3_the_largest_sum_of_score_and_noise_is_drawn",
        breaks="Sampler.draw: an array [num_rows] of token ids",
    ),
    Mutant(
        name="a-small-temperature-is-greedy",
        story="Takes every temperature below 0.00001 for 0, as vLLM does. Equal logits are drawn there, too.",
        replace="        is_greedy = mx.array([row.params.temperature == 0 for row in rows])\n",
        by="        is_greedy = mx.array([row.params.temperature < 1e-5 for row in rows])\n",
        killed_by="test_task_3_the_largest_sum_of_score_and_noise_is_drawn",
        breaks="Sampler.draw: of any other row: the token with the largest sum of score",
    ),
    Mutant(
        name="the-largest-logit-of-the-batch",
        story="Leaves out the axis: a row subtracts another row's largest logit, and loses its own digits.",
        replace="(logits - mx.max(logits, axis=-1, keepdims=True)) / _column",
        by="(logits - mx.max(logits)) / _column",
        killed_by="test_task_3_a_row_draws_the_same_in_any_company",
        breaks=("_scores: the distance of each logit to the largest of its row",
                "invariant 4: on nothing else"),
    ),
    Mutant(
        name="the-largest-logit-stays-in",
        story="Divides the logits as they come, with a min-p that does not mind: at a small temperature they overflow.",
        replace=SCORES + TOP_K + NUCLEUS + MIN_P,
        by="    scores = logits / _column([p.temperature for p in params])\n" + TOP_K + NUCLEUS
           + MIN_P.replace("_keep_min_p(scores,", "_keep_min_p(scores - mx.max(scores, axis=-1, keepdims=True),"),
        killed_by="test_task_3_no_temperature_is_too_small_or_too_large",
        breaks="_scores: the largest score of a row is 0",
    ),
    Mutant(
        name="the-same-noise-at-every-position",
        story="Takes the key as it is: every token of a request gets the same noise, and favours the same words.",
        replace="row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="row.key[1])",
        killed_by="test_task_3_each_position_has_its_own_noise",
        breaks="Sampler.draw: the key of its noise is row.key[0] and row.key[1] + "
               "len(row.output_token_ids) + num_ahead",
    ),
    Mutant(
        name="noise-by-the-place-in-the-batch",
        story="Counts the row's index in, to have different noise in every row: the batch decides what a seed says.",
        replace=KEYS,
        by="        keys = np.array([(row.key[0], row.key[1] + len(row.output_token_ids) + num_ahead + index)\n"
           "                         for index, row in enumerate(rows)])\n",
        killed_by="test_task_3_a_row_draws_the_same_in_any_company",
        breaks="Sampler.draw: not the place in the batch",
    ),
    Mutant(
        name="two-positions-share-their-noise",
        story="Counts in twos: every second token is the same as the one before it, or tries to be.",
        replace="row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="row.key[1] + (len(row.output_token_ids) + num_ahead) // 2)",
        killed_by="test_task_3_draws_of_one_request_are_independent",
        breaks="Sampler.draw: the key of its noise is row.key[0] and row.key[1] + "
               "len(row.output_token_ids) + num_ahead",
    ),
    Mutant(
        name="positions-modulo-256",
        story="Keeps the position in a byte: from token 256 on, a request gets the noise of its beginning again.",
        replace="row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="row.key[1] + (len(row.output_token_ids) + num_ahead) % 256)",
        killed_by="test_task_3_each_position_has_its_own_noise",
        breaks="Sampler.draw: the key of its noise is row.key[0] and row.key[1] + "
               "len(row.output_token_ids) + num_ahead",
    ),
    Mutant(
        name="one-noise-a-request",
        story="Makes the key of params.seed, which the samples of one request share: all of them say the same.",
        replace="(row.key[0], row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="(row.params.seed or 0, len(row.output_token_ids) + num_ahead)",
        killed_by="test_task_3_the_samples_of_one_seed_differ",
        breaks="Sampler.draw: the key of its noise is row.key[0] and row.key[1] + "
               "len(row.output_token_ids) + num_ahead",
    ),
    Mutant(
        name="noise-by-what-was-said",
        story="Adds the output tokens up instead of counting them.",
        replace="row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="row.key[1] + sum(row.output_token_ids) + num_ahead)",
        killed_by="test_task_3_what_the_output_says_does_not_matter",
        breaks="Sampler.draw: not which tokens the output has",
    ),
    Mutant(
        name="noise-by-all-tokens",
        story="Counts the prompt's tokens, too: right alone, but other tokens than the engine's with that seed.",
        replace="row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="row.key[1] + len(row.prompt_token_ids) + len(row.output_token_ids) + num_ahead)",
        killed_by="test_task_3_what_the_output_says_does_not_matter",
        breaks="Sampler.draw: the key of its noise is row.key[0] and row.key[1] + "
               "len(row.output_token_ids) + num_ahead",
    ),
    Mutant(
        name="the-position-in-the-first-word",
        story="Counts positions in the word that tells seeds apart.",
        replace="(row.key[0], row.key[1] + len(row.output_token_ids) + num_ahead)",
        by="((row.key[0] + len(row.output_token_ids) + num_ahead) % 2 ** 32, row.key[1])",
        killed_by="test_task_3_the_largest_sum_of_score_and_noise_is_drawn",
        breaks="Sampler.draw: the key of its noise is row.key[0] and row.key[1] + "
               "len(row.output_token_ids) + num_ahead",
    ),
    Mutant(
        name="ignores-num-ahead",
        story="The step that is begun early draws with the noise of the step before it.",
        replace=" + len(row.output_token_ids) + num_ahead)",
        by=" + len(row.output_token_ids))",
        killed_by="test_task_3_a_token_can_be_drawn_ahead",
        breaks="Sampler.draw: the one that follows num_ahead tokens later",
    ),
    Mutant(
        name="a-key-overflows",
        story="A number above 2 ** 32 does not fit. Of texts of 1000 tokens one in four million dies of that.",
        replace=" + num_ahead) for row in rows])\n",
        by=" + num_ahead) for row in rows], dtype=np.uint32)\n",
        killed_by="test_task_3_a_key_that_reaches_its_end_goes_on_at_0",
        breaks="Sampler.draw: the latter modulo 2 ** 32",
    ),
    Mutant(
        name="a-key-carries-over",
        story="Takes the two words for one number of 64 bits: beyond the end of the second, the first counts on.",
        replace=KEYS,
        by="        wide = [(row.key[0] << 32) + row.key[1] + len(row.output_token_ids) + num_ahead for row in rows]\n"
           "        keys = np.array([divmod(number, 2 ** 32) for number in wide])\n",
        killed_by="test_task_3_a_key_that_reaches_its_end_goes_on_at_0",
        breaks="Sampler.draw: the latter modulo 2 ** 32",
    ),
    Mutant(
        name="draws-in-half-precision",
        story="Computes in the type of the logits: in bfloat16 a score has 8 bits, and most tokens are equals.",
        replace="        logits = logits.astype(mx.float32)\n",
        by="",
        killed_by="test_task_3_half_precision_is_drawn_in_single_precision",
        breaks="Sampler.draw: score and noise are computed in float32, whatever the type of the logits",
    ),
    Mutant(
        name="a-temperature-that-is-0-in-float32",
        story="Divides by the number as it comes: 1e-50 is 0 in float32, and 0 / 0 is no number.",
        replace="_column([p.temperature for p in params])\n",
        by="mx.array([[p.temperature] for p in params])\n",
        killed_by="test_task_3_no_temperature_is_too_small_or_too_large",
        breaks="_column: The nearest finite float32 above 0 replaces such a number",
    ),
    Mutant(
        name="works-in-the-callers-array",
        story="Subtracts the largest logit in place, to save memory. The engine looks at the logits afterwards.",
        replace="        logits = logits.astype(mx.float32)\n",
        by="        logits -= mx.max(logits, axis=-1, keepdims=True)\n        logits = logits.astype(mx.float32)\n",
        killed_by="test_task_3_the_callers_logits_stay_as_they_are",
        breaks="Sampler.draw: logits and rows are as they were",
    ),
    Mutant(
        name="draw-appends-what-it-drew",
        story="Notes the token in the row, where the next draw counts it. The scheduler appends it, too.",
        replace="        return mx.where(is_greedy, self.greedy(logits), drawn)\n",
        by="        drawn = mx.where(is_greedy, self.greedy(logits), drawn)\n"
           "        for row, token in zip(rows, drawn.tolist()):\n"
           "            if isinstance(row.output_token_ids, list):\n"
           "                row.output_token_ids.append(token)\n"
           "        return drawn\n",
        killed_by="test_task_3_the_callers_logits_stay_as_they_are",
        breaks="Sampler.draw: logits and rows are as they were",
    ),
    Mutant(
        name="a-floor-under-the-scores",
        story="Clips scores to keep infinities out of the sums: what must not come does come, if its noise is large.",
        replace="    return scores\n",
        by="    return mx.maximum(scores, -10.0)\n",
        killed_by="test_task_3_a_logit_of_minus_infinity_is_never_drawn",
        breaks=("Sampler.draw: a token with logit -inf is never drawn",
                "invariant 3: A dropped token is never drawn"),
    ),
    # ---- Task 4
    Mutant(
        name="top-k-by-value",
        story="Keeps all that are at least as large as the k-th: with equals on the border, more than k.",
        replace=KEPT,
        by="    return mx.where(is_above | is_equal, scores, -math.inf)\n",
        killed_by="test_task_4_of_equals_the_lowest_ids_stay",
        breaks="_keep_most_likely: exactly num_kept scores of each row are what they were",
    ),
    Mutant(
        name="the-highest-ids-stay",
        story="Counts the equals off from the other end, as a descending sort of ids does.",
        replace="    place_among_equals = mx.cumsum(is_equal.astype(mx.int32), axis=-1)\n",
        by="    place_among_equals = mx.cumsum(is_equal.astype(mx.int32), axis=-1, reverse=True)\n",
        killed_by="test_task_4_of_equals_the_lowest_ids_stay",
        breaks=("_keep_most_likely: of equal scores on the border, those with the lowest ids stay",
                "module: those with the lowest ids stay"),
    ),
    Mutant(
        name="one-too-few-of-the-equals",
        story="< where <= is meant: places count from 1.",
        replace="(place_among_equals <= num_equal_kept)",
        by="(place_among_equals < num_equal_kept)",
        killed_by="test_task_4_top_k_keeps_exactly_k",
        breaks="_keep_most_likely: exactly num_kept scores of each row are what they were",
    ),
    Mutant(
        name="top-k-is-off-by-one",
        story="Takes the value at place k, counted from 0, for the k-th, and keeps k + 1.",
        replace="    descending = -mx.sort(-scores, axis=-1)\n",
        by="    descending = -mx.sort(-scores, axis=-1)\n    num_kept = mx.minimum(num_kept + 1, scores.shape[1])\n",
        killed_by="test_task_4_top_k_keeps_exactly_k",
        breaks="_scores: the params.top_k most likely tokens stay",
    ),
    Mutant(
        name="one-k-for-all",
        story="Sorts once for the largest top_k of the batch, and forgets that the others asked for less.",
        replace="mx.array([[min(p.top_k or vocab_size, vocab_size)] for p in params]))\n",
        by="mx.array([[min(max(q.top_k for q in params), vocab_size)] for p in params]))\n",
        killed_by="test_task_4_every_row_has_its_own_k",
        breaks="_scores: the params.top_k most likely tokens stay",
    ),
    Mutant(
        name="top-k-of-0-keeps-one",
        story="Takes 0 for a number of tokens.",
        replace="min(p.top_k or vocab_size, vocab_size)",
        by="min(max(p.top_k, 1), vocab_size)",
        killed_by="test_task_4_a_top_k_of_0_or_above_the_vocabulary_keeps_all",
        breaks="_scores: all of them if that is 0, or above vocab_size",
    ),
    Mutant(
        name="top-k-of-0-is-an-index-of-minus-1",
        story="Takes 0 as it is. Place -1 is the last one, so all but the least likely token stay, and nobody sees it.",
        replace="min(p.top_k or vocab_size, vocab_size)",
        by="min(p.top_k, vocab_size)",
        killed_by="test_task_4_a_row_without_top_k_keeps_all_beside_one_that_has_it",
        breaks=("_scores: all of them if that is 0, or above vocab_size",
                "_keep_most_likely: whole numbers from 1 to vocab_size; the caller must see to that"),
    ),
    Mutant(
        name="dropped-means-0",
        story="Writes 0 over what is dropped, as one would do with probabilities. A score of 0 is the likeliest.",
        replace="<= num_equal_kept)), scores, -math.inf)\n",
        by="<= num_equal_kept)), scores, 0.0)\n",
        killed_by="test_task_4_top_k_keeps_exactly_k",
        breaks=("_keep_most_likely: the others are -inf",
                "invariant 3: A dropped token is never drawn"),
    ),
    Mutant(
        name="what-stays-is-equal",
        story="Draws among the tokens that stay without looking at how likely they are.",
        replace="<= num_equal_kept)), scores, -math.inf)\n",
        by="<= num_equal_kept)), 0.0, -math.inf)\n",
        killed_by="test_task_4_what_stays_keeps_its_proportions",
        breaks="_keep_most_likely: exactly num_kept scores of each row are what they were",
    ),
    # ---- Task 5
    Mutant(
        name="drops-the-token-that-crosses",
        story="Keeps tokens while the sum, with their own probability, is within top_p.",
        replace=MASS,
        by="    mass_before = mx.cumsum(widths, axis=-1)\n    mass = mass_before[:, -1:]\n",
        killed_by="test_task_5_the_token_that_crosses_is_kept",
        breaks="_num_in_nucleus: the token that crosses top_p belongs to the nucleus",
    ),
    Mutant(
        name="one-token-after-top-p-is-reached",
        story="<= where < is meant: if the sum hits top_p exactly, one more token comes in.",
        replace="(mass_before < top_p * mass, axis=-1, keepdims=True)",
        by="(mass_before <= top_p * mass, axis=-1, keepdims=True)",
        killed_by="test_task_5_the_nucleus_ends_where_top_p_is_reached_exactly",
        breaks="_num_in_nucleus: the fewest most likely tokens whose probabilities add up to top_p or more",
    ),
    Mutant(
        name="a-nucleus-of-nothing",
        story="1e-300 is 0 in float32. No token is needed to reach that, and place -1 is the last one: all stay.",
        replace="_column([p.top_p for p in params])))\n",
        by="mx.array([[p.top_p] for p in params])))\n",
        killed_by="test_task_5_a_tiny_top_p_keeps_one_token",
        breaks="_num_in_nucleus: whole numbers, at least 1",
    ),
    Mutant(
        name="top-p-of-all-tokens",
        story="Measures the nucleus by the probabilities before top-k, which no longer add up to 1.",
        replace=NUCLEUS,
        by="    before = logits - mx.max(logits, axis=-1, keepdims=True)\n"
           "    before = before / _column([p.temperature for p in params])\n"
           + NUCLEUS.replace("_num_in_nucleus(scores", "_num_in_nucleus(before"),
        killed_by="test_task_5_top_p_counts_what_top_k_left",
        breaks="_num_in_nucleus: probabilities are those of what is left",
    ),
    Mutant(
        name="does-not-divide-by-the-mass",
        story="Takes widths relative to the likeliest for probabilities: they add up to more than 1.",
        replace="(mass_before < top_p * mass, axis=-1, keepdims=True)",
        by="(mass_before < top_p, axis=-1, keepdims=True)",
        killed_by="test_task_5_the_token_that_crosses_is_kept",
        breaks="_num_in_nucleus: and the others add up to 1",
    ),
    Mutant(
        name="the-nucleus-before-the-temperature",
        story="Filters by the model's own probabilities and applies the temperature to what is left.",
        replace=NUCLEUS,
        by="    before = scores * _column([p.temperature for p in params])\n"
           + NUCLEUS.replace("_num_in_nucleus(scores", "_num_in_nucleus(before"),
        killed_by="test_task_5_the_temperature_comes_first",
        breaks="invariant 2: after temperature, top-k, top-p and min-p, in this order",
    ),
    Mutant(
        name="top-p-of-1-goes-through-the-sum",
        story="1.0 + 2.5e-8 is 1.0 in float32: the least likely tokens are gone, though nobody asked for a filter.",
        replace="    return mx.where(top_p < 1, num_kept, scores.shape[1])\n",
        by="    return num_kept\n",
        killed_by="test_task_5_top_p_of_1_keeps_what_a_sum_does_not_notice",
        breaks="_num_in_nucleus: vocab_size where top_p is 1",
    ),
    Mutant(
        name="nearly-1-is-1",
        story="Leaves the sum out for every top_p that is about 1, not for 1 alone.",
        replace="    return mx.where(top_p < 1, num_kept, scores.shape[1])\n",
        by="    return mx.where(top_p < 0.999, num_kept, scores.shape[1])\n",
        killed_by="test_task_5_a_top_p_just_below_1_is_a_filter",
        breaks="_num_in_nucleus: the fewest most likely tokens whose probabilities add up to top_p or more",
    ),
    Mutant(
        name="a-nucleus-larger-than-the-vocabulary",
        story="Counts the sums below top_p and adds 1. If even the last sum ends below it, that is one token too many.",
        replace=WIDTHS + MASS + "    num_kept = mx.sum(mass_before < top_p * mass, axis=-1, keepdims=True)\n",
        by="    likely = mx.softmax(-mx.sort(-scores, axis=-1), axis=-1)\n"
           "    num_kept = mx.sum(mx.cumsum(likely, axis=-1) < top_p, axis=-1, keepdims=True) + 1\n",
        killed_by="test_task_5_a_nucleus_is_never_larger_than_the_vocabulary",
        breaks="_num_in_nucleus: at most vocab_size, even if the sum of all probabilities ends below top_p",
    ),
    Mutant(
        name="sums-from-the-unlikely-end",
        story="Sorts upwards, as mx.sort does, and adds up from there.",
        replace=WIDTHS,
        by="    widths = mx.exp(mx.sort(scores, axis=-1))\n",
        killed_by="test_task_5_the_token_that_crosses_is_kept",
        breaks="_num_in_nucleus: the fewest most likely tokens",
    ),
    Mutant(
        name="adds-up-scores",
        story="Adds logarithms up where probabilities are meant.",
        replace=WIDTHS,
        by="    widths = mx.maximum(1 - mx.sort(-scores, axis=-1), 0)\n",
        killed_by="test_task_5_the_token_that_crosses_is_kept",
        breaks="_num_in_nucleus: whose probabilities add up to top_p or more",
    ),
    Mutant(
        name="one-p-for-all",
        story="Reads the smallest top_p of the batch, and filters everybody by it.",
        replace="_column([p.top_p for p in params])))\n",
        by="_column([min(p.top_p for p in params)] * len(rows))))\n",
        killed_by="test_task_5_every_row_has_its_own_p",
        breaks="_scores: the nucleus for params.top_p stays",
    ),
    # ---- Task 6
    Mutant(
        name="min-p-of-all",
        story="Compares probabilities with min_p, not with min_p times the largest: in a flat distribution all go.",
        replace="scores >= mx.log(min_p), scores, -math.inf)\n",
        by="mx.softmax(scores, axis=-1) >= min_p, scores, -math.inf)\n",
        killed_by="test_task_6_min_p_is_relative_to_the_most_likely",
        breaks="_keep_min_p: less than min_p times as likely as the likeliest of their row",
    ),
    Mutant(
        name="min-p-of-logits",
        story="Compares a logarithm with a probability.",
        replace="scores >= mx.log(min_p), scores, -math.inf)\n",
        by="scores >= -min_p, scores, -math.inf)\n",
        killed_by="test_task_6_min_p_is_relative_to_the_most_likely",
        breaks="_keep_min_p: less than min_p times as likely as the likeliest of their row",
    ),
    Mutant(
        name="min-p-drops-the-border",
        story="> where >= is meant: with min_p 1 nothing is left, not even the likeliest.",
        replace="scores >= mx.log(min_p), scores, -math.inf)\n",
        by="scores > mx.log(min_p), scores, -math.inf)\n",
        killed_by="test_task_6_min_p_of_1_keeps_all_that_are_as_likely_as_the_likeliest",
        breaks=("_scores: its likeliest token is never dropped",
                "invariant 3: The likeliest one is never dropped"),
    ),
    Mutant(
        name="min-p-of-1-keeps-one",
        story="With min_p 1 takes the likeliest: one token, where two are as likely.",
        replace="    return mx.where(scores >= mx.log(min_p), scores, -math.inf)\n",
        by="    scores = mx.where(scores >= mx.log(min_p), scores, -math.inf)\n"
           "    return _keep_most_likely(scores, mx.where(min_p < 1, scores.shape[1], 1))\n",
        killed_by="test_task_6_min_p_of_1_keeps_all_that_are_as_likely_as_the_likeliest",
        breaks="_keep_min_p: with min_p 1 all tokens that are as likely as the likeliest stay, exactly",
    ),
    Mutant(
        name="min-p-with-a-margin",
        story="Allows for rounding, a thousand times more than there is.",
        replace="scores >= mx.log(min_p), scores, -math.inf)\n",
        by="scores >= mx.log(min_p) - 1e-3, scores, -math.inf)\n",
        killed_by="test_task_6_min_p_is_relative_to_the_most_likely",
        breaks="_keep_min_p: up to rounding",
    ),
    Mutant(
        name="min-p-before-the-temperature",
        story="Compares with the model's own probabilities, whatever the temperature made of them.",
        replace="        scores = _keep_min_p(scores, _column([p.min_p for p in params]))\n",
        by="        relative = logits - mx.max(logits, axis=-1, keepdims=True)\n"
           "        scores = mx.where(_keep_min_p(relative, _column([p.min_p for p in params])) > -math.inf, scores,\n"
           "                          -math.inf)\n",
        killed_by="test_task_6_min_p_comes_after_the_temperature",
        breaks="invariant 2: after temperature, top-k, top-p and min-p, in this order",
    ),
    Mutant(
        name="min-p-before-top-p",
        story="The nucleus is then measured by what min-p has left, and is smaller.",
        replace=NUCLEUS,
        by="    scores = _keep_min_p(scores, _column([p.min_p for p in params]))\n" + NUCLEUS,
        killed_by="test_task_6_min_p_comes_after_top_p",
        breaks="_scores: of these, all that are at least params.min_p times as likely as the likeliest stay",
    ),
    Mutant(
        name="top-p-before-top-k",
        story="Takes the nucleus of all tokens, then the k most likely of it.",
        replace=TOP_K + NUCLEUS,
        by=NUCLEUS + TOP_K,
        killed_by="test_task_6_any_mix_draws_what_the_rules_say",
        breaks="_scores: of these, the nucleus for params.top_p stays",
    ),
    Mutant(
        name="the-temperature-comes-last",
        story="Filters the model's own distribution, and flattens or sharpens what is left of it.",
        replace=SCORES + TOP_K + NUCLEUS + MIN_P,
        by=SCORES.replace(" / _column([p.temperature for p in params])", "") + TOP_K + NUCLEUS + MIN_P
           + "    scores = scores / _column([p.temperature for p in params])\n",
        killed_by="test_task_6_all_filters_together_have_the_right_frequencies",
        breaks="module: Filters, in this order: temperature, top-k, top-p, min-p",
    ),
    Mutant(
        name="one-min-p-for-all",
        story="Takes the largest min_p of the batch, so one careful request makes all others careful.",
        replace="        scores = _keep_min_p(scores, _column([p.min_p for p in params]))\n",
        by="        scores = _keep_min_p(scores, _column([max(p.min_p for p in params)]))\n",
        killed_by="test_task_6_a_row_does_not_notice_the_parameters_of_others",
        breaks="module: A row that does not ask for a filter does not notice that another row does",
    ),
]
