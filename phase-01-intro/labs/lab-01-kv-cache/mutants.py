from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="softmax-without-a-shift",
        story="Uses the textbook formula. It is right until a score exceeds 709 and exp() is inf.",
        replace="    shifted = scores - scores.max(axis=-1, keepdims=True)\n",
        by="    shifted = scores\n",
        killed_by="test_task_1_softmax_does_not_overflow_on_huge_scores",
        breaks="softmax: no weight is inf or nan",
    ),
    Mutant(
        name="softmax-shifts-by-the-largest-of-all",
        story="Subtracts one maximum from the whole array: nothing overflows, but a row of low scores becomes 0 / 0.",
        replace="    shifted = scores - scores.max(axis=-1, keepdims=True)\n",
        by="    shifted = scores - scores.max()\n",
        killed_by="test_task_1_softmax_rows_of_very_different_size",
        breaks="softmax: even if one row's scores are around 1e4 and the next row's scores are around -1e4",
    ),
    Mutant(
        name="softmax-works-in-place",
        story="Saves an array by overwriting the caller's.",
        replace="    shifted = scores - scores.max(axis=-1, keepdims=True)\n",
        by="    scores -= scores.max(axis=-1, keepdims=True)\n    shifted = scores\n",
        killed_by="test_task_1_softmax_masked_entries_weigh_nothing_and_the_input_is_kept",
        breaks="softmax: ``scores`` is not changed",
    ),
    Mutant(
        name="attention-without-the-scale",
        story="Forgets 1 / sqrt(head_dim). Tests of the mask alone still pass.",
        replace=" / np.sqrt(head_dim)\n    query_positions",
        by="\n    query_positions",
        killed_by="test_task_2_agrees_with_attention_in_slow_motion",
        breaks="causal_attention: softmax(q . k / sqrt(head_dim))",
    ),
    Mutant(
        name="attention-mask-counts-from-the-first-key",
        story="Query i sees keys 0..i. That is right for a whole text, but the queries of a chunk see too few keys.",
        replace="    query_positions = num_keys - num_queries + np.arange(num_queries)\n",
        by="    query_positions = np.arange(num_queries)\n",
        killed_by="test_task_2_a_chunk_is_the_tail_of_the_whole",
        breaks=(
            "causal_attention: The last query belongs to the last key",
            "invariant 3: The logits of a text do not depend on how the text is cut into calls",
        ),
    ),
    Mutant(
        name="attention-masks-after-softmax",
        story="Sets future weights to 0 after the softmax: the other weights no longer sum to 1.",
        replace="    weights = softmax(np.where(is_future, -np.inf, scores))\n",
        by="    weights = np.where(is_future, 0.0, softmax(scores))\n",
        killed_by="test_task_2_equal_scores_give_the_mean_of_the_visible_values",
        breaks="causal_attention: over the keys that the query sees",
    ),
    Mutant(
        name="attention-forgets-the-mask",
        story="Every query sees all keys. Decoding one token at a time still looks right; recomputing a text does not.",
        replace="    weights = softmax(np.where(is_future, -np.inf, scores))\n",
        by="    weights = softmax(scores)\n",
        killed_by="test_task_2_future_tokens_do_not_influence_earlier_outputs",
        breaks=(
            "causal_attention: sees the keys at positions 0 up to and including its own",
            "causal_attention: the weight of a key that the query does not see is 0",
            "invariant 1: and no others",
            "invariant 2: K and V of a token never change once they are computed",
        ),
    ),
    Mutant(
        name="num-tokens-asks-the-first-layer",
        story="Returns the length of layer 0, which is written first and during a pass holds more than the others.",
        replace="        return min(self.lengths)\n",
        by="        return self.lengths[0]\n",
        killed_by="test_task_3_num_tokens_counts_what_every_layer_holds",
        breaks="KVCache.num_tokens: The number of tokens that *every* layer holds",
    ),
    Mutant(
        name="append-keeps-the-callers-arrays",
        story="If the first append fills the cache, it keeps the caller's arrays instead of copying them.",
        replace="        self.keys[layer][start:end] = keys\n        self.values[layer][start:end] = values\n",
        by="        if len(keys) == self.capacity:\n"
           "            self.keys[layer], self.values[layer] = keys, values\n"
           "        else:\n"
           "            self.keys[layer][start:end] = keys\n"
           "            self.values[layer][start:end] = values\n",
        killed_by="test_task_3_the_cache_keeps_copies",
        breaks="KVCache.append: the cache holds copies",
    ),
    Mutant(
        name="append-concatenates",
        story="Grows the arrays by concatenation. The numbers are right, but every token copies the whole cache.",
        replace="        self.keys[layer][start:end] = keys\n        self.values[layer][start:end] = values\n",
        by="        self.keys[layer] = np.concatenate([self.keys[layer][:start], keys])\n"
           "        self.values[layer] = np.concatenate([self.values[layer][:start], values])\n",
        killed_by="test_task_3_get_copies_nothing",
        breaks=(
            "KVCache: Growing an array by one token per step would copy the whole cache at every step",
            "KVCache.get: This copies no row",
        ),
    ),
    Mutant(
        name="append-advances-before-it-checks",
        story="Counts the new tokens before it rejects them, so the cache claims to hold rows that were not written.",
        replace="        end = start + len(keys)\n",
        by="        end = self.lengths[layer] = start + len(keys)\n",
        killed_by="test_task_3_append_beyond_capacity_changes_nothing",
        breaks=(
            "KVCache.append: A call that raises changes nothing: no length",
            "invariant 5: A call that raises changes nothing",
        ),
    ),
    Mutant(
        name="append-leaves-the-last-slot-empty",
        story="Raises when the layer would hold exactly ``capacity`` tokens.",
        replace="        if end > self.capacity:\n",
        by="        if end >= self.capacity:\n",
        killed_by="test_task_3_the_last_slot_can_be_used",
        breaks="KVCache.append: exactly ``capacity`` is allowed",
    ),
    Mutant(
        name="append-lets-numpy-broadcast",
        story="Does not check the shapes: numpy silently writes one row of values three times.",
        replace="        self.check_new_rows(keys, values)\n",
        by="",
        killed_by="test_task_3_append_refuses_shapes_that_do_not_fit",
        breaks="KVCache.append: ValueError for arrays that ``check_new_rows`` rejects",
    ),
    Mutant(
        name="decode-feeds-the-prompt-token-by-token",
        story="The answers are right, but the prompt takes one call per token.",
        replace="    not_computed = list(prompt_ids)\n",
        by="    for token_id in prompt_ids[:-1] if num_new_tokens else ():\n"
           "        model.forward([token_id], cache)\n"
           "    not_computed = list(prompt_ids[-1:])\n",
        killed_by="test_task_4_with_cache_every_token_is_sent_once",
        breaks=(
            "decode_with_cache: send the prompt in one call, then one token per call",
            "decode_with_cache: forward calls received ``P, 1, 1, ..., 1`` tokens",
        ),
    ),
    Mutant(
        name="decode-feeds-the-last-token-back",
        story="Computes K and V of the last emitted token, which no later step reads.",
        replace="        not_computed = token_ids[-1:]\n    return DecodeResult(token_ids, logits)\n",
        by="        not_computed = token_ids[-1:]\n"
           "    if num_new_tokens and cache.num_tokens < cache.capacity:\n"
           "        model.forward(not_computed, cache)\n"
           "    return DecodeResult(token_ids, logits)\n",
        killed_by="test_task_4_with_cache_every_token_is_sent_once",
        breaks=(
            "decode_with_cache: The last new token is never sent",
            "decode_with_cache: the cache holds exactly ``P + num_new_tokens - 1`` tokens",
            "invariant 4: The last emitted token is never sent",
        ),
    ),
    Mutant(
        name="decode-asks-for-one-slot-too-many",
        story="Requires a slot for every prompt token and every new token, but the last token is never cached.",
        replace="    num_slots = 0 if num_new_tokens == 0 else len(prompt_ids) + num_new_tokens - 1\n",
        by="    num_slots = 0 if num_new_tokens == 0 else len(prompt_ids) + num_new_tokens\n",
        killed_by="test_task_4_a_cache_of_exactly_the_right_size_is_enough",
        breaks="decode_with_cache: if the cache's capacity is below ``P + num_new_tokens - 1``",
    ),
    Mutant(
        name="decode-finds-out-too-late-that-the-cache-is-small",
        story="Relies on append to raise: the ValueError comes after most of the work, with a half-filled cache.",
        replace="    if num_slots > cache.capacity:\n",
        by="    if num_slots > cache.capacity + len(prompt_ids):\n",
        killed_by="test_task_4_bad_requests_are_refused_before_any_work",
        breaks=(
            "decode_with_cache: if the cache's capacity is below ``P + num_new_tokens - 1``",
            "decode_with_cache: Every error is raised before any forward call",
        ),
    ),
    Mutant(
        name="formula-uses-float-division",
        story="Computes n * (n + 1) * (2 * n + 1) / 6 as a float, which has only 53 bits.",
        replace="    return n * (n + 1) * (2 * n + 1) // 6\n",
        by="    return int(n * (n + 1) * (2 * n + 1) / 6)\n",
        killed_by="test_task_5_formulas_stay_exact_at_real_sizes",
        breaks="multiply_adds_without_cache: both numbers are exact Python integers of any size",
    ),
    Mutant(
        name="formula-applies-the-head-to-every-token",
        story="Counts the head for every token that is sent. The model applies it only to the last token of a call.",
        replace="        linear=last * _linear_per_token(shape) + num_new_tokens * shape.width * shape.vocab_size,\n",
        by="        linear=last * _linear_per_token(shape) + last * shape.width * shape.vocab_size,\n",
        killed_by="test_task_5_formula_with_cache_equals_the_counter",
        breaks="multiply_adds_with_cache: equal to ``TinyDecoder.counts`` after ``decode_with_cache``",
    ),
    Mutant(
        name="formula-counts-one-step-too-many",
        story="Sums the lengths up to prompt + new tokens, one step too many.",
        replace="    first, last = num_prompt_tokens, num_prompt_tokens + num_new_tokens - 1\n",
        by="    first, last = num_prompt_tokens, num_prompt_tokens + num_new_tokens\n",
        killed_by="test_task_5_formula_without_cache_equals_the_counter",
        breaks="multiply_adds_without_cache: equal to ``TinyDecoder.counts`` after ``decode_without_cache``",
    ),
    Mutant(
        name="bytes-of-the-keys-only",
        story="Forgets the values: a token has a key and a value.",
        replace="    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_element\n",
        by="    return num_layers * num_kv_heads * head_dim * bytes_per_element\n",
        killed_by="test_task_6_bytes_per_token_of_real_models",
        breaks="kv_bytes_per_token: a key and a value vector",
    ),
    Mutant(
        name="tokens-that-fit-rounds-up",
        story="Rounds up, and so counts a token that does not fit.",
        replace="    return budget_bytes // bytes_per_token\n",
        by="    return -(-budget_bytes // bytes_per_token)\n",
        killed_by="test_task_6_tokens_that_fit_are_whole_tokens",
        breaks="num_tokens_that_fit: Return how many whole tokens",
    ),
    Mutant(
        name="softmax-sums-over-a-fixed-axis",
        story="Sums over axis 1, which is the last axis only in a matrix.",
        replace="    return weights / weights.sum(axis=-1, keepdims=True)\n",
        by="    return weights / weights.sum(axis=min(1, weights.ndim - 1), keepdims=True)\n",
        killed_by="test_task_1_softmax_works_along_the_last_axis_of_any_array",
        breaks=(
            "softmax: a row runs along the last axis",
            "softmax: the weights of a row depend only on the scores of that row",
            "softmax: are at least 0, and sum to 1",
        ),
    ),
    Mutant(
        name="softmax-clips-its-scores",
        story="Limits scores to -700 at least, so the weight of a masked entry is 1e-304.",
        replace="    weights = np.exp(shifted)\n",
        by="    weights = np.exp(np.maximum(shifted, -700.0))\n",
        killed_by="test_task_1_softmax_masked_entries_weigh_nothing_and_the_input_is_kept",
        breaks="softmax: the weight of a masked score is exactly 0",
    ),
    Mutant(
        name="softmax-returns-rows",
        story="Flattens the array to rows and does not restore its shape.",
        replace="    return weights / weights.sum(axis=-1, keepdims=True)\n",
        by="    return (weights / weights.sum(axis=-1, keepdims=True)).reshape(-1, scores.shape[-1])\n",
        killed_by="test_task_1_softmax_works_along_the_last_axis_of_any_array",
        breaks="softmax: with the same shape as ``scores``",
    ),
    Mutant(
        name="softmax-writes-into-the-kind-of-array-it-got",
        story="Writes into zeros_like(scores): for integer scores, every weight below 1 becomes 0.",
        replace="    return weights / weights.sum(axis=-1, keepdims=True)\n",
        by="    result = np.zeros_like(scores)\n"
           "    result[...] = weights / weights.sum(axis=-1, keepdims=True)\n"
           "    return result\n",
        killed_by="test_task_1_softmax_of_known_scores",
        breaks="softmax: an array of floats",
    ),
    Mutant(
        name="attention-masks-with-a-large-number",
        story="Masks with -1e9 instead of -inf: if all scores are -1e12, the masked key wins.",
        replace="np.where(is_future, -np.inf, scores)",
        by="np.where(is_future, -1e9, scores)",
        killed_by="test_task_2_a_masked_key_weighs_nothing_however_low_the_other_scores_are",
        breaks=(
            "causal_attention: is 0, however low the other scores are",
            "invariant 1: and no others",
        ),
    ),
    Mutant(
        name="attention-hides-the-own-key",
        story="A query after the first does not see its own key.",
        replace="[None, :] > query_positions[:, None]",
        by="[None, :] > np.maximum(query_positions[:, None] - 1, 0)",
        killed_by="test_task_2_equal_scores_give_the_mean_of_the_visible_values",
        breaks=(
            "causal_attention: up to and including its own",
            "invariant 1: A query at position p sees the keys 0 to p",
        ),
    ),
    Mutant(
        name="attention-scales-in-place",
        story="Saves an array by scaling the caller's queries in place.",
        replace='    scores = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(head_dim)\n',
        by="""    queries /= np.sqrt(head_dim)
    scores = np.einsum("qhd,khd->hqk", queries, keys)
""",
        killed_by="test_task_2_the_arguments_are_not_changed",
        breaks="causal_attention: the arguments are not changed",
    ),
    Mutant(
        name="attention-by-heads",
        story="Returns the heads as the first axis, as in the scores.",
        replace='    return np.einsum("hqk,khd->qhd", weights, values)\n',
        by='    return np.einsum("hqk,khd->hqd", weights, values)\n',
        killed_by="test_task_2_agrees_with_attention_in_slow_motion",
        breaks="causal_attention: ``[num_queries, num_heads, head_dim]``: per query and head",
    ),
    Mutant(
        name="attention-does-not-look-at-shapes",
        story="Relies on einsum, which silently repeats an axis of length 1.",
        replace="    check_attention_shapes(queries, keys, values)\n",
        by="",
        killed_by="test_task_2_refuses_shapes_that_do_not_fit",
        breaks="causal_attention: ValueError for shapes that ``check_attention_shapes`` rejects",
    ),
    Mutant(
        name="attention-counts-keys-and-values-itself",
        story="Does not call the given check, and compares only the numbers of rows.",
        replace="    check_attention_shapes(queries, keys, values)\n",
        by="""    if len(keys) != len(values) or len(queries) > len(keys):
        raise ValueError(f"{len(queries)} queries, {len(keys)} keys, {len(values)} values")
""",
        killed_by="test_task_2_refuses_shapes_that_do_not_fit",
        breaks="causal_attention: ValueError for shapes that ``check_attention_shapes`` rejects",
    ),
    Mutant(
        name="num-tokens-asks-the-last-layer",
        story="Returns the length of the last layer, which is wrong if that layer is written first.",
        replace="        return min(self.lengths)\n",
        by="        return self.lengths[-1]\n",
        killed_by="test_task_3_num_tokens_counts_what_every_layer_holds",
        breaks="KVCache.num_tokens: The number of tokens that *every* layer holds",
    ),
    Mutant(
        name="append-starts-at-the-front",
        story="Writes every chunk from row 0.",
        replace="        self.keys[layer][start:end] = keys\n",
        by="        self.keys[layer][:len(keys)] = keys\n",
        killed_by="test_task_3_append_then_get_in_order",
        breaks="KVCache.append: which are unchanged",
    ),
    Mutant(
        name="append-counts-calls",
        story="Assumes that every call appends one token.",
        replace="        self.lengths[layer] = end\n",
        by="        self.lengths[layer] += 1\n",
        killed_by="test_task_3_append_then_get_in_order",
        breaks="KVCache.append: ``lengths[layer]`` has grown by ``num_new``",
    ),
    Mutant(
        name="append-moves-all-layers-on",
        story="Sets the length of all layers: the others seem to hold rows that were never written.",
        replace="        self.lengths[layer] = end\n",
        by="        self.lengths = [end] * self.num_layers\n",
        killed_by="test_task_3_append_then_get_in_order",
        breaks="KVCache.append: the other layers are unchanged",
    ),
    Mutant(
        name="append-names-the-new-tokens-only",
        story="Its message contains the number of new tokens instead of the number that the layer would hold.",
        replace="would hold {end} tokens, capacity",
        by="cannot take {len(keys)} tokens, capacity",
        killed_by="test_task_3_append_beyond_capacity_changes_nothing",
        breaks="KVCache.append: the message contains the number of tokens that the layer would hold, and the capacity",
    ),
    Mutant(
        name="append-clips-at-the-capacity",
        story="Returns without an error when the new tokens do not fit.",
        replace='            raise ValueError(f"layer {layer} would hold {end} tokens, capacity is {self.capacity}")\n',
        by="            return\n",
        killed_by="test_task_3_append_beyond_capacity_changes_nothing",
        breaks="KVCache.append: if the layer would hold more than ``capacity`` tokens",
    ),
    Mutant(
        name="get-copies",
        story="The numbers are right, but every step copies the whole cache.",
        replace="        return self.keys[layer][:end], self.values[layer][:end]\n",
        by="        return self.keys[layer][:end].copy(), self.values[layer][:end].copy()\n",
        killed_by="test_task_3_get_copies_nothing",
        breaks="KVCache.get: both arrays are slices of the storage (*views*)",
    ),
    Mutant(
        name="get-gives-the-whole-storage",
        story="Returns rows that were never written: keys of zeros, which get a weight.",
        replace="        return self.keys[layer][:end], self.values[layer][:end]\n",
        by="        return self.keys[layer], self.values[layer]\n",
        killed_by="test_task_3_append_then_get_in_order",
        breaks="KVCache.get: each ``[lengths[layer], num_heads, head_dim]``",
    ),
    Mutant(
        name="decode-sends-the-new-tokens-only",
        story="Sends only the new tokens, so the model forgets the prompt.",
        replace="        logits[step] = model.forward([*prompt_ids, *token_ids])\n",
        by="        logits[step] = model.forward(token_ids or prompt_ids)\n",
        killed_by="test_task_4_without_cache_every_step_sends_the_whole_text",
        breaks=(
            "decode_without_cache: send the whole text so far through the model",
            "decode_without_cache: the forward calls received ``P, P + 1, ..., P + num_new_tokens - 1`` tokens",
        ),
    ),
    Mutant(
        name="decode-grows-the-callers-prompt",
        story="Appends the new tokens to the caller's prompt.",
        replace="""        logits[step] = model.forward([*prompt_ids, *token_ids])
        token_ids.append(int(np.argmax(logits[step])))
""",
        by="""        logits[step] = model.forward(prompt_ids)
        token_ids.append(int(np.argmax(logits[step])))
        if isinstance(prompt_ids, list):
            prompt_ids.append(token_ids[-1])
        else:
            prompt_ids = [*prompt_ids, token_ids[-1]]
""",
        killed_by="test_task_4_without_cache_every_step_sends_the_whole_text",
        breaks="decode_without_cache: ``prompt_ids`` is not changed",
    ),
    Mutant(
        name="decode-returns-the-last-logits-for-all",
        story="Writes the latest logits into all rows.",
        replace="        logits[step] = model.forward([*prompt_ids, *token_ids])\n",
        by="        logits[:] = model.forward([*prompt_ids, *token_ids])\n",
        killed_by="test_task_4_without_cache_every_step_sends_the_whole_text",
        breaks="decode_without_cache: for each of them, the logits that it was chosen from",
    ),
    Mutant(
        name="decode-eats-the-callers-prompt",
        story="Empties the caller's prompt.",
        replace="    not_computed = list(prompt_ids)\n",
        by="""    not_computed = list(prompt_ids)
    if isinstance(prompt_ids, list):
        prompt_ids.clear()
""",
        killed_by="test_task_4_with_cache_every_token_is_sent_once",
        breaks="decode_with_cache: ``prompt_ids`` is not changed",
    ),
    Mutant(
        name="decode-returns-the-prompt-with-the-answer",
        story="Returns the prompt together with the new tokens.",
        replace="""        not_computed = token_ids[-1:]
    return DecodeResult(token_ids, logits)
""",
        by="""        not_computed = token_ids[-1:]
    return DecodeResult([*prompt_ids, *token_ids], logits)
""",
        killed_by="test_task_4_with_cache_gives_the_same_tokens_and_logits",
        breaks="decode_with_cache: the same result as ``decode_without_cache``",
    ),
    Mutant(
        name="decode-forgets-to-look-at-the-request",
        story="Does not call the given check: an empty prompt with 0 new tokens is accepted.",
        replace="""    check_decode_request(prompt_ids, num_new_tokens)
    if any(cache.lengths):
""",
        by="    if any(cache.lengths):\n",
        killed_by="test_task_4_bad_requests_are_refused_before_any_work",
        breaks="decode_with_cache: ValueError for arguments that ``check_decode_request`` rejects",
    ),
    Mutant(
        name="decode-fills-the-cache-for-0-tokens",
        story="Sends the prompt even if 0 new tokens are requested.",
        replace="    not_computed = list(prompt_ids)\n",
        by="""    not_computed = list(prompt_ids)
    if num_new_tokens == 0 and cache.capacity >= len(prompt_ids):
        model.forward(not_computed, cache)
""",
        killed_by="test_task_4_zero_new_tokens_cost_nothing",
        breaks="decode_with_cache: if ``num_new_tokens`` is 0, there was no forward call, and the cache is empty",
    ),
    Mutant(
        name="decode-adds-to-a-list",
        story="Computes prompt_ids + [], which fails if the prompt is a tuple.",
        replace="    not_computed = list(prompt_ids)\n",
        by="    not_computed = prompt_ids + []\n",
        killed_by="test_task_4_a_prompt_of_one_token",
        breaks="decode_with_cache: send the prompt in one call",
    ),
    Mutant(
        name="decode-emits-numbers-of-numpy",
        story="np.argmax returns an np.int64, which json cannot write.",
        replace="""        token_ids.append(int(np.argmax(logits[step])))
        not_computed""",
        by="""        token_ids.append(np.argmax(logits[step]))
        not_computed""",
        killed_by="test_task_4_with_cache_gives_the_same_tokens_and_logits",
        breaks="DecodeResult: as plain ints",
    ),
    Mutant(
        name="decode-looks-at-the-request-late",
        story="Skips the check for 0 new tokens, so an empty prompt is accepted.",
        replace="""    check_decode_request(prompt_ids, num_new_tokens)
    token_ids: list[int] = []
""",
        by="""    if num_new_tokens:
        check_decode_request(prompt_ids, num_new_tokens)
    token_ids: list[int] = []
""",
        killed_by="test_task_4_bad_requests_are_refused_before_any_work",
        breaks="decode_without_cache: for arguments that ``check_decode_request`` rejects",
    ),
    Mutant(
        name="decode-checks-after-the-first-call",
        story="Sends the prompt before it checks the arguments.",
        replace="""    check_decode_request(prompt_ids, num_new_tokens)
    token_ids: list[int] = []
""",
        by="""    if prompt_ids and num_new_tokens < 0:
        model.forward(prompt_ids)
    check_decode_request(prompt_ids, num_new_tokens)
    token_ids: list[int] = []
""",
        killed_by="test_task_4_bad_requests_are_refused_before_any_work",
        breaks="decode_without_cache: before any forward call",
    ),
    Mutant(
        name="decode-trusts-num-tokens",
        story="Checks num_tokens, which is 0 when only some layers hold tokens.",
        replace="    if any(cache.lengths):\n",
        by="    if cache.num_tokens:\n",
        killed_by="test_task_4_bad_requests_are_refused_before_any_work",
        breaks="decode_with_cache: if any layer of the cache holds a token",
    ),
    Mutant(
        name="decode-names-one-number",
        story="Its message contains only the capacity, so it does not say how many slots are missing.",
        replace="the decode needs {num_slots} slots, the capacity is {cache.capacity}",
        by="a capacity of {cache.capacity} is too small",
        killed_by="test_task_4_a_cache_that_is_too_small_is_told_both_numbers",
        breaks="decode_with_cache: the message contains both numbers",
    ),
    Mutant(
        name="decode-asks-for-slots-it-does-not-need",
        story="Requires 4 slots for 0 new tokens after a prompt of 5, but they need no slot.",
        replace="    num_slots = 0 if num_new_tokens == 0 else len(prompt_ids) + num_new_tokens - 1\n",
        by="    num_slots = len(prompt_ids) + num_new_tokens - 1\n",
        killed_by="test_task_4_zero_new_tokens_cost_nothing",
        breaks="decode_with_cache: A decode of 0 new tokens needs no slot",
    ),
    Mutant(
        name="decode-returns-an-empty-list-of-logits",
        story="For 0 new tokens the logits have the shape [0] instead of [0, vocab_size].",
        replace="""    return DecodeResult(token_ids, logits)
    # END TASK


def decode_with_cache""",
        by="""    return DecodeResult(token_ids, logits if token_ids else np.zeros(0))
    # END TASK


def decode_with_cache""",
        killed_by="test_task_4_zero_new_tokens_cost_nothing",
        breaks="decode_without_cache: the shape of ``logits`` is ``[0, vocab_size]``",
    ),
    Mutant(
        name="formula-sums-in-floats",
        story="Computes n * (n + 1) / 2 as a float, which has only 53 bits.",
        replace="    return n * (n + 1) // 2\n",
        by="    return int(n * (n + 1) / 2)\n",
        killed_by="test_task_5_formulas_stay_exact_after_a_very_long_prompt",
        breaks="multiply_adds_with_cache: both numbers are exact Python integers of any size",
    ),
    Mutant(
        name="formula-charges-for-a-prompt-that-is-not-sent",
        story="Counts the prompt even if there are 0 new tokens.",
        replace="""    if num_new_tokens == 0:
        return MultiplyAdds()
""",
        by="",
        killed_by="test_task_5_zero_new_tokens_cost_zero",
        breaks="multiply_adds_with_cache: both numbers are 0 if there are 0 new tokens",
    ),
    Mutant(
        name="formula-counts-at-least-one-step",
        story="Assumes that there is at least one step.",
        replace="    first, last = num_prompt_tokens, num_prompt_tokens + num_new_tokens - 1\n",
        by="    num_new_tokens = max(1, num_new_tokens)\n"
           "    first, last = num_prompt_tokens, num_prompt_tokens + num_new_tokens - 1\n",
        killed_by="test_task_5_zero_new_tokens_cost_zero",
        breaks="multiply_adds_without_cache: both numbers are 0 if there are 0 new tokens",
    ),
    Mutant(
        name="formula-returns-one-object-to-all",
        story="Returns the same object from every call, so a second call changes the first result.",
        replace="""    if num_new_tokens == 0:
        return MultiplyAdds()
    last = num_prompt_tokens + num_new_tokens - 1
    num_pairs = num_prompt_tokens**2 + _sum_to(last) - _sum_to(num_prompt_tokens)
    return MultiplyAdds(
""",
        by="""    shared = multiply_adds_with_cache.__dict__.setdefault("shared", MultiplyAdds())
    shared.linear = shared.attention = 0
    if num_new_tokens == 0:
        return shared
    last = num_prompt_tokens + num_new_tokens - 1
    num_pairs = num_prompt_tokens**2 + _sum_to(last) - _sum_to(num_prompt_tokens)
    return (lambda **counts: shared.__dict__.update(counts) or shared)(
""",
        killed_by="test_task_5_zero_new_tokens_cost_zero",
        breaks="multiply_adds_with_cache: a new ``MultiplyAdds``",
    ),
    Mutant(
        name="bytes-of-nothing",
        story="Does not check the last argument.",
        replace="""head_dim=head_dim,
                   bytes_per_element=bytes_per_element)
""",
        by="head_dim=head_dim)\n",
        killed_by="test_task_6_impossible_shapes_are_refused",
        breaks="kv_bytes_per_token: if one of the four arguments is below 1",
    ),
    Mutant(
        name="bytes-with-a-nameless-error",
        story="Checks the smallest of the four arguments, so its message cannot name the argument.",
        replace="""    check_at_least(1, num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim,
                   bytes_per_element=bytes_per_element)
""",
        by="    check_at_least(1, argument=min(num_layers, num_kv_heads, head_dim, bytes_per_element))\n",
        killed_by="test_task_6_impossible_shapes_are_refused",
        breaks="kv_bytes_per_token: the message contains the argument's name and value",
    ),
    Mutant(
        name="tokens-that-fit-in-floats",
        story="Computes int(a / b), which is wrong if a has more than 53 bits.",
        replace="    return budget_bytes // bytes_per_token\n",
        by="    return int(budget_bytes / bytes_per_token)\n",
        killed_by="test_task_6_tokens_that_fit_are_whole_tokens",
        breaks="num_tokens_that_fit: The result is exact at any size",
    ),
    Mutant(
        name="no-tokens-fit-into-a-negative-budget",
        story="Does not check the budget: -7 bytes hold -7 // 10 = -1 tokens.",
        replace="    check_at_least(0, budget_bytes=budget_bytes)\n",
        by="",
        killed_by="test_task_6_tokens_that_fit_are_whole_tokens",
        breaks="num_tokens_that_fit: if ``budget_bytes`` is below 0",
    ),
    Mutant(
        name="tokens-of-no-bytes",
        story="For 0 bytes per token it raises ZeroDivisionError instead of ValueError.",
        replace="    check_at_least(1, bytes_per_token=bytes_per_token)\n",
        by="",
        killed_by="test_task_6_tokens_that_fit_are_whole_tokens",
        breaks="num_tokens_that_fit: or ``bytes_per_token`` is below 1",
    ),
    Mutant(
        name="attention-wants-a-query",
        story="Rejects 0 queries, but they are no error.",
        replace="    check_attention_shapes(queries, keys, values)\n",
        by="    check_attention_shapes(queries, keys, values)\n"
           "    if len(queries) == 0:\n"
           '        raise ValueError("0 queries")\n',
        killed_by="test_task_2_no_queries_are_no_error",
        breaks="causal_attention: 0 rows if there are 0 queries and at least one key",
    ),
    Mutant(
        name="append-looks-at-two-axes-of-the-values",
        story="Does not call the given check: one number per head is silently written head_dim times.",
        replace="        self.check_new_rows(keys, values)\n",
        by="""        if keys.shape[1:] != (self.num_heads, self.head_dim) or values.shape[:2] != keys.shape[:2]:
            raise ValueError(f"keys {keys.shape}, values {values.shape}")
""",
        killed_by="test_task_3_append_refuses_shapes_that_do_not_fit",
        breaks="KVCache.append: ValueError for arrays that ``check_new_rows`` rejects",
    ),
    Mutant(
        name="append-writes-the-keys-first",
        story="Writes the keys before it checks the values: the call raises, but the storage has changed.",
        replace="        self.check_new_rows(keys, values)\n",
        by="""        start = self.lengths[layer]
        if keys.shape[1:] == (self.num_heads, self.head_dim) and start + len(keys) <= self.capacity:
            self.keys[layer][start:start + len(keys)] = keys
        self.check_new_rows(keys, values)
""",
        killed_by="test_task_3_append_refuses_shapes_that_do_not_fit",
        breaks=(
            "KVCache.append: and no row of the storage, free or written",
            "invariant 5: A call that raises changes nothing",
        ),
    ),
    Mutant(
        name="append-wants-a-row",
        story="Rejects 0 new rows, but they are no error.",
        replace="        if end > self.capacity:\n",
        by="        if end == start or end > self.capacity:\n",
        killed_by="test_task_3_no_rows_are_no_error",
        breaks="KVCache.append: ``num_new`` may be 0",
    ),
    Mutant(
        name="decode-looks-at-some-layers",
        story="Checks num_tokens and one layer, but not the others.",
        replace="    if any(cache.lengths):\n",
        by="    if cache.num_tokens or cache.lengths[1]:\n",
        killed_by="test_task_4_bad_requests_are_refused_before_any_work",
        breaks="decode_with_cache: if any layer of the cache holds a token",
    ),
    Mutant(
        name="formula-gives-a-float",
        story="Returns a float: 1.8e11 is still exact, but 1e17 is not.",
        replace="        linear=last * _linear_per_token(shape) + num_new_tokens * shape.width * shape.vocab_size,\n",
        by="        linear=1.0 * last * _linear_per_token(shape) + num_new_tokens * shape.width * shape.vocab_size,\n",
        killed_by="test_task_5_formulas_stay_exact_after_a_very_long_prompt",
        breaks="multiply_adds_with_cache: exact Python integers",
    ),
]
