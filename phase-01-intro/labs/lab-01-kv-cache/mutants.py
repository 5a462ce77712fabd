from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="softmax-without-a-shift",
        story="The textbook formula; right until a score passes 709 and exp() is inf.",
        replace="    shifted = scores - scores.max(axis=-1, keepdims=True)\n",
        by="    shifted = scores\n",
        killed_by="test_task_1_softmax_does_not_overflow_on_huge_scores",
        breaks="softmax: no inf and no nan",
    ),
    Mutant(
        name="softmax-shifts-by-the-largest-of-all",
        story="One maximum for the whole array: no overflow, but a row far below it becomes 0 / 0.",
        replace="    shifted = scores - scores.max(axis=-1, keepdims=True)\n",
        by="    shifted = scores - scores.max()\n",
        killed_by="test_task_1_softmax_rows_of_very_different_size",
        breaks="softmax: even if one row's scores are around 1e4 and the next row's around -1e4",
    ),
    Mutant(
        name="softmax-works-in-place",
        story="Saves an array by changing the caller's.",
        replace="    shifted = scores - scores.max(axis=-1, keepdims=True)\n",
        by="    scores -= scores.max(axis=-1, keepdims=True)\n    shifted = scores\n",
        killed_by="test_task_1_softmax_masked_entries_weigh_nothing_and_the_input_is_kept",
        breaks="softmax: ``scores`` is not changed",
    ),
    Mutant(
        name="attention-without-the-scale",
        story="Forgets 1 / sqrt(head_dim); every property test of a mask still passes.",
        replace=" / np.sqrt(head_dim)\n    query_positions",
        by="\n    query_positions",
        killed_by="test_task_2_agrees_with_attention_in_slow_motion",
        breaks="causal_attention: softmax(q . k / sqrt(head_dim))",
    ),
    Mutant(
        name="attention-mask-counts-from-the-first-key",
        story="Query i sees keys 0..i. Right for a whole text; a chunk, or one decoded token, sees almost nothing.",
        replace="    query_positions = num_keys - num_queries + np.arange(num_queries)\n",
        by="    query_positions = np.arange(num_queries)\n",
        killed_by="test_task_2_a_chunk_is_the_tail_of_the_whole",
        breaks=(
            "causal_attention: The last query belongs to the last key",
            "invariant 3: How a text is cut into calls does not change its logits",
        ),
    ),
    Mutant(
        name="attention-masks-after-softmax",
        story="Zeroes the future weights after normalising: what is left no longer sums to 1.",
        replace="    weights = softmax(np.where(is_future, -np.inf, scores))\n",
        by="    weights = np.where(is_future, 0.0, softmax(scores))\n",
        killed_by="test_task_2_equal_scores_give_the_mean_of_the_visible_values",
        breaks="causal_attention: over the keys that the query sees",
    ),
    Mutant(
        name="attention-forgets-the-mask",
        story="Bidirectional attention: decoding one token at a time looks right, recomputing does not.",
        replace="    weights = softmax(np.where(is_future, -np.inf, scores))\n",
        by="    weights = softmax(scores)\n",
        killed_by="test_task_2_future_tokens_do_not_influence_earlier_outputs",
        breaks=(
            "causal_attention: sees the keys at positions 0 up to and including its own",
            "causal_attention: a key that the query does not see weighs nothing",
            "invariant 1: and no other",
            "invariant 2: K and V of a token never change once they are computed",
        ),
    ),
    Mutant(
        name="num-tokens-asks-the-first-layer",
        story="Layer 0 is written first, so in the middle of a pass it is ahead of the others.",
        replace="        return min(self.lengths)\n",
        by="        return self.lengths[0]\n",
        killed_by="test_task_3_num_tokens_counts_what_every_layer_holds",
        breaks="KVCache.num_tokens: How many tokens *every* layer holds",
    ),
    Mutant(
        name="append-keeps-the-callers-arrays",
        story="A first append that fills the cache is stored by assignment: it looks like a copy and is none.",
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
        story="Grows the arrays by concatenation: right numbers, and a copy of the whole cache at every token.",
        replace="        self.keys[layer][start:end] = keys\n        self.values[layer][start:end] = values\n",
        by="        self.keys[layer] = np.concatenate([self.keys[layer][:start], keys])\n"
           "        self.values[layer] = np.concatenate([self.values[layer][:start], values])\n",
        killed_by="test_task_3_get_copies_nothing",
        breaks=(
            "KVCache: Growing an array by one token per step would copy the whole cache at every step",
            "KVCache.get: Reading the cache copies no row",
        ),
    ),
    Mutant(
        name="append-advances-before-it-checks",
        story="Counts the new tokens first and refuses them afterwards: the refused tokens are there, as rows of junk.",
        replace="        end = start + len(keys)\n",
        by="        end = self.lengths[layer] = start + len(keys)\n",
        killed_by="test_task_3_append_beyond_capacity_changes_nothing",
        breaks=(
            "KVCache.append: A call that raises has changed nothing: not a length",
            "invariant 5: A call that raises has changed nothing",
        ),
    ),
    Mutant(
        name="append-leaves-the-last-slot-empty",
        story="Refuses at capacity instead of beyond it.",
        replace="        if end > self.capacity:\n",
        by="        if end >= self.capacity:\n",
        killed_by="test_task_3_the_last_slot_can_be_used",
        breaks="KVCache.append: exactly ``capacity`` is allowed",
    ),
    Mutant(
        name="append-lets-numpy-broadcast",
        story="No check of the shapes: one value row is silently written three times.",
        replace="        self.check_new_rows(keys, values)\n",
        by="",
        killed_by="test_task_3_append_refuses_shapes_that_do_not_fit",
        breaks="KVCache.append: ValueError for what ``check_new_rows`` refuses",
    ),
    Mutant(
        name="decode-feeds-the-prompt-token-by-token",
        story="Right answers, but the prompt takes one call a token instead of one call.",
        replace="    not_computed = list(prompt_ids)\n",
        by="    for token_id in prompt_ids[:-1] if num_new_tokens else ():\n"
           "        model.forward([token_id], cache)\n"
           "    not_computed = list(prompt_ids[-1:])\n",
        killed_by="test_task_4_with_cache_every_token_is_sent_once",
        breaks=(
            "decode_with_cache: The prompt is sent in one call, then one token per call",
            "decode_with_cache: forward calls got ``P, 1, 1, ..., 1`` tokens",
        ),
    ),
    Mutant(
        name="decode-feeds-the-last-token-back",
        story="Computes K/V for the last emitted token, which nobody will ever read.",
        replace="        not_computed = token_ids[-1:]\n    return DecodeResult(token_ids, logits)\n",
        by="        not_computed = token_ids[-1:]\n"
           "    if num_new_tokens and cache.num_tokens < cache.capacity:\n"
           "        model.forward(not_computed, cache)\n"
           "    return DecodeResult(token_ids, logits)\n",
        killed_by="test_task_4_with_cache_every_token_is_sent_once",
        breaks=(
            "decode_with_cache: The last new token is never sent",
            "decode_with_cache: the cache holds exactly ``P + num_new_tokens - 1`` tokens",
            "invariant 4: The last emitted one is not sent at all",
        ),
    ),
    Mutant(
        name="decode-asks-for-one-slot-too-many",
        story="Takes prompt + new tokens for the size of the cache, although the last token is never cached.",
        replace="    num_slots = 0 if num_new_tokens == 0 else len(prompt_ids) + num_new_tokens - 1\n",
        by="    num_slots = 0 if num_new_tokens == 0 else len(prompt_ids) + num_new_tokens\n",
        killed_by="test_task_4_a_cache_of_exactly_the_right_size_is_enough",
        breaks="decode_with_cache: if the cache's capacity is below ``P + num_new_tokens - 1``",
    ),
    Mutant(
        name="decode-finds-out-too-late-that-the-cache-is-small",
        story="Relies on append to refuse: the ValueError comes, after most of the work and with a half-filled cache.",
        replace="    if num_slots > cache.capacity:\n",
        by="    if num_slots > cache.capacity + len(prompt_ids):\n",
        killed_by="test_task_4_bad_requests_are_refused_before_any_work",
        breaks=(
            "decode_with_cache: if the cache's capacity is below ``P + num_new_tokens - 1``",
            "decode_with_cache: Every refusal comes before any forward call",
        ),
    ),
    Mutant(
        name="formula-uses-float-division",
        story="n * (n + 1) * (2 * n + 1) / 6: exact on paper, 53 bits in a machine.",
        replace="    return n * (n + 1) * (2 * n + 1) // 6\n",
        by="    return int(n * (n + 1) * (2 * n + 1) / 6)\n",
        killed_by="test_task_5_formulas_stay_exact_at_real_sizes",
        breaks="multiply_adds_without_cache: exact Python integers at any size",
    ),
    Mutant(
        name="formula-applies-the-head-to-every-token",
        story="Charges the vocabulary matrix for every token fed; the model applies it to the last one of a call only.",
        replace="        linear=last * _linear_per_token(shape) + num_new_tokens * shape.width * shape.vocab_size,\n",
        by="        linear=last * _linear_per_token(shape) + last * shape.width * shape.vocab_size,\n",
        killed_by="test_task_5_formula_with_cache_equals_the_counter",
        breaks="multiply_adds_with_cache: what ``TinyDecoder.counts`` reads after ``decode_with_cache``",
    ),
    Mutant(
        name="formula-counts-one-step-too-many",
        story="Sums the lengths up to prompt + new tokens: the classic fence post.",
        replace="    first, last = num_prompt_tokens, num_prompt_tokens + num_new_tokens - 1\n",
        by="    first, last = num_prompt_tokens, num_prompt_tokens + num_new_tokens\n",
        killed_by="test_task_5_formula_without_cache_equals_the_counter",
        breaks="multiply_adds_without_cache: what ``TinyDecoder.counts`` reads after ``decode_without_cache``",
    ),
    Mutant(
        name="bytes-of-the-keys-only",
        story="Forgets that a token has a key and a value.",
        replace="    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_element\n",
        by="    return num_layers * num_kv_heads * head_dim * bytes_per_element\n",
        killed_by="test_task_6_bytes_per_token_of_real_models",
        breaks="kv_bytes_per_token: a key and a value vector",
    ),
    Mutant(
        name="tokens-that-fit-rounds-up",
        story="Counts the token that does not fit.",
        replace="    return budget_bytes // bytes_per_token\n",
        by="    return -(-budget_bytes // bytes_per_token)\n",
        killed_by="test_task_6_tokens_that_fit_are_whole_tokens",
        breaks="num_tokens_that_fit: How many whole tokens",
    ),
    Mutant(
        name="softmax-sums-over-a-fixed-axis",
        story="axis=1 is the last axis of a matrix, and of nothing else.",
        replace="    return weights / weights.sum(axis=-1, keepdims=True)\n",
        by="    return weights / weights.sum(axis=min(1, weights.ndim - 1), keepdims=True)\n",
        killed_by="test_task_1_softmax_works_along_the_last_axis_of_any_array",
        breaks=(
            "softmax: a row runs along the last axis",
            "softmax: the weights of a row come from its own scores only",
            "softmax: are not below 0, and sum to 1",
        ),
    ),
    Mutant(
        name="softmax-clips-its-scores",
        story="Keeps exp() from 0 by a floor: a masked entry weighs 1e-304.",
        replace="    weights = np.exp(shifted)\n",
        by="    weights = np.exp(np.maximum(shifted, -700.0))\n",
        killed_by="test_task_1_softmax_masked_entries_weigh_nothing_and_the_input_is_kept",
        breaks="softmax: a masked score has the weight 0, exactly",
    ),
    Mutant(
        name="softmax-returns-rows",
        story="Flattens to rows and forgets the shape.",
        replace="    return weights / weights.sum(axis=-1, keepdims=True)\n",
        by="    return (weights / weights.sum(axis=-1, keepdims=True)).reshape(-1, scores.shape[-1])\n",
        killed_by="test_task_1_softmax_works_along_the_last_axis_of_any_array",
        breaks="softmax: of the shape of ``scores``",
    ),
    Mutant(
        name="softmax-writes-into-the-kind-of-array-it-got",
        story="zeros_like of integers is an array of integers: every weight below 1 becomes 0.",
        replace="    return weights / weights.sum(axis=-1, keepdims=True)\n",
        by="    result = np.zeros_like(scores)\n"
           "    result[...] = weights / weights.sum(axis=-1, keepdims=True)\n"
           "    return result\n",
        killed_by="test_task_1_softmax_of_known_scores",
        breaks="softmax: an array of floats",
    ),
    Mutant(
        name="attention-masks-with-a-large-number",
        story="-1e9 instead of -inf: a score of -1e12 is below it, and the future wins.",
        replace="np.where(is_future, -np.inf, scores)",
        by="np.where(is_future, -1e9, scores)",
        killed_by="test_task_2_a_masked_key_weighs_nothing_however_low_the_other_scores_are",
        breaks=(
            "causal_attention: weighs nothing, however low the other scores are",
            "invariant 1: and no other",
        ),
    ),
    Mutant(
        name="attention-hides-the-own-key",
        story="A query sees the keys before its own, and the first one sees none.",
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
        story="Saves an array by scaling the queries of the caller.",
        replace='    scores = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(head_dim)\n',
        by="""    queries /= np.sqrt(head_dim)
    scores = np.einsum("qhd,khd->hqk", queries, keys)
""",
        killed_by="test_task_2_the_arguments_are_not_changed",
        breaks="causal_attention: the arguments are not changed",
    ),
    Mutant(
        name="attention-by-heads",
        story="Leaves the heads in front, as the scores have them.",
        replace='    return np.einsum("hqk,khd->qhd", weights, values)\n',
        by='    return np.einsum("hqk,khd->hqd", weights, values)\n',
        killed_by="test_task_2_agrees_with_attention_in_slow_motion",
        breaks="causal_attention: ``[num_queries, num_heads, head_dim]``: per query and head",
    ),
    Mutant(
        name="attention-does-not-look-at-shapes",
        story="Relies on einsum, which repeats an axis of length 1 without a word.",
        replace="    check_attention_shapes(queries, keys, values)\n",
        by="",
        killed_by="test_task_2_refuses_shapes_that_do_not_fit",
        breaks="causal_attention: ValueError for what ``check_attention_shapes`` refuses",
    ),
    Mutant(
        name="attention-counts-keys-and-values-itself",
        story="A check of its own instead of the given one: the numbers of rows, not what a row looks like.",
        replace="    check_attention_shapes(queries, keys, values)\n",
        by="""    if len(keys) != len(values) or len(queries) > len(keys):
        raise ValueError(f"{len(queries)} queries, {len(keys)} keys, {len(values)} values")
""",
        killed_by="test_task_2_refuses_shapes_that_do_not_fit",
        breaks="causal_attention: ValueError for what ``check_attention_shapes`` refuses",
    ),
    Mutant(
        name="num-tokens-asks-the-last-layer",
        story="The last layer is written last, as long as nobody writes it first.",
        replace="        return min(self.lengths)\n",
        by="        return self.lengths[-1]\n",
        killed_by="test_task_3_num_tokens_counts_what_every_layer_holds",
        breaks="KVCache.num_tokens: How many tokens *every* layer holds",
    ),
    Mutant(
        name="append-starts-at-the-front",
        story="Writes every chunk from row 0.",
        replace="        self.keys[layer][start:end] = keys\n",
        by="        self.keys[layer][:len(keys)] = keys\n",
        killed_by="test_task_3_append_then_get_in_order",
        breaks="KVCache.append: which are untouched",
    ),
    Mutant(
        name="append-counts-calls",
        story="One token a call is the usual case, and not the only one.",
        replace="        self.lengths[layer] = end\n",
        by="        self.lengths[layer] += 1\n",
        killed_by="test_task_3_append_then_get_in_order",
        breaks="KVCache.append: ``lengths[layer]`` is ``num_new`` more",
    ),
    Mutant(
        name="append-moves-all-layers-on",
        story="One length for all layers: the others seem to hold rows that were never written.",
        replace="        self.lengths[layer] = end\n",
        by="        self.lengths = [end] * self.num_layers\n",
        killed_by="test_task_3_append_then_get_in_order",
        breaks="KVCache.append: the other layers are as they were",
    ),
    Mutant(
        name="append-names-the-new-tokens-only",
        story="Says how many came instead of how many the layer would hold.",
        replace="would hold {end} tokens, capacity",
        by="cannot take {len(keys)} tokens, capacity",
        killed_by="test_task_3_append_beyond_capacity_changes_nothing",
        breaks="KVCache.append: the message names the number it would hold and the capacity",
    ),
    Mutant(
        name="append-clips-at-the-capacity",
        story="Writes what fits and drops the rest.",
        replace='            raise ValueError(f"layer {layer} would hold {end} tokens, capacity is {self.capacity}")\n',
        by="            return\n",
        killed_by="test_task_3_append_beyond_capacity_changes_nothing",
        breaks="KVCache.append: if the layer would hold more than ``capacity`` tokens",
    ),
    Mutant(
        name="get-copies",
        story="Right numbers, and a copy of the whole cache in every layer of every step.",
        replace="        return self.keys[layer][:end], self.values[layer][:end]\n",
        by="        return self.keys[layer][:end].copy(), self.values[layer][:end].copy()\n",
        killed_by="test_task_3_get_copies_nothing",
        breaks="KVCache.get: the rows are a slice of the storage (a *view*)",
    ),
    Mutant(
        name="get-gives-the-whole-storage",
        story="Rows that nobody wrote are keys of zeros, and get a weight.",
        replace="        return self.keys[layer][:end], self.values[layer][:end]\n",
        by="        return self.keys[layer], self.values[layer]\n",
        killed_by="test_task_3_append_then_get_in_order",
        breaks="KVCache.get: The keys and the values that were written into ``layer``",
    ),
    Mutant(
        name="decode-sends-the-new-tokens-only",
        story="Without a cache the model forgets the prompt.",
        replace="        logits[step] = model.forward([*prompt_ids, *token_ids])\n",
        by="        logits[step] = model.forward(token_ids or prompt_ids)\n",
        killed_by="test_task_4_without_cache_every_step_sends_the_whole_text",
        breaks=(
            "decode_without_cache: the whole text so far is sent through the model",
            "decode_without_cache: the forward calls got ``P, P + 1, ..., P + num_new_tokens - 1`` tokens",
        ),
    ),
    Mutant(
        name="decode-grows-the-callers-prompt",
        story="Appends to the list that it was given.",
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
        story="Keeps one row of logits, and repeats it for every token.",
        replace="        logits[step] = model.forward([*prompt_ids, *token_ids])\n",
        by="        logits[:] = model.forward([*prompt_ids, *token_ids])\n",
        killed_by="test_task_4_without_cache_every_step_sends_the_whole_text",
        breaks="decode_without_cache: per token, the logits that it was picked from",
    ),
    Mutant(
        name="decode-eats-the-callers-prompt",
        story="Empties the list that it was given, piece by piece.",
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
        story="The text so far is at hand, and all of it is returned.",
        replace="""        not_computed = token_ids[-1:]
    return DecodeResult(token_ids, logits)
""",
        by="""        not_computed = token_ids[-1:]
    return DecodeResult([*prompt_ids, *token_ids], logits)
""",
        killed_by="test_task_4_with_cache_gives_the_same_tokens_and_logits",
        breaks="decode_with_cache: what ``decode_without_cache`` returns",
    ),
    Mutant(
        name="decode-forgets-to-look-at-the-request",
        story="Without the check, -1 new tokens reach np.zeros, and an empty prompt of 0 new tokens passes.",
        replace="""    check_decode_request(prompt_ids, num_new_tokens)
    if any(cache.lengths):
""",
        by="    if any(cache.lengths):\n",
        killed_by="test_task_4_bad_requests_are_refused_before_any_work",
        breaks="decode_with_cache: ValueError for what ``check_decode_request`` refuses",
    ),
    Mutant(
        name="decode-fills-the-cache-for-0-tokens",
        story="Sends the prompt before it looks at the number of new tokens.",
        replace="    not_computed = list(prompt_ids)\n",
        by="""    not_computed = list(prompt_ids)
    if num_new_tokens == 0 and cache.capacity >= len(prompt_ids):
        model.forward(not_computed, cache)
""",
        killed_by="test_task_4_zero_new_tokens_cost_nothing",
        breaks="decode_with_cache: for 0 new tokens there was no forward call, and the cache is empty",
    ),
    Mutant(
        name="decode-adds-to-a-list",
        story="prompt_ids + [...] needs a list, and a prompt is any sequence.",
        replace="    not_computed = list(prompt_ids)\n",
        by="    not_computed = prompt_ids + []\n",
        killed_by="test_task_4_a_prompt_of_one_token",
        breaks="decode_with_cache: The prompt is sent in one call",
    ),
    Mutant(
        name="decode-emits-numbers-of-numpy",
        story="np.argmax gives an np.int64, which json refuses.",
        replace="""        token_ids.append(int(np.argmax(logits[step])))
        not_computed""",
        by="""        token_ids.append(np.argmax(logits[step]))
        not_computed""",
        killed_by="test_task_4_with_cache_gives_the_same_tokens_and_logits",
        breaks="DecodeResult: as plain ints",
    ),
    Mutant(
        name="decode-looks-at-the-request-late",
        story="Counts on forward to refuse an empty prompt: with 0 new tokens there is no forward.",
        replace="""    check_decode_request(prompt_ids, num_new_tokens)
    token_ids: list[int] = []
""",
        by="""    if num_new_tokens:
        check_decode_request(prompt_ids, num_new_tokens)
    token_ids: list[int] = []
""",
        killed_by="test_task_4_bad_requests_are_refused_before_any_work",
        breaks="decode_without_cache: for what ``check_decode_request`` refuses",
    ),
    Mutant(
        name="decode-checks-after-the-first-call",
        story="Sends the prompt, then looks at what was asked for.",
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
        story="A cache of which only some layers were written says that it holds 0 tokens.",
        replace="    if any(cache.lengths):\n",
        by="    if cache.num_tokens:\n",
        killed_by="test_task_4_bad_requests_are_refused_before_any_work",
        breaks="decode_with_cache: if any layer of the cache holds a token",
    ),
    Mutant(
        name="decode-names-one-number",
        story="The capacity alone does not say how much is missing.",
        replace="{num_slots} tokens will be cached, capacity is {cache.capacity}",
        by="a capacity of {cache.capacity} is too small",
        killed_by="test_task_4_a_cache_that_is_too_small_is_told_both_numbers",
        breaks="decode_with_cache: the message names both numbers",
    ),
    Mutant(
        name="decode-asks-for-slots-it-does-not-need",
        story="0 new tokens after 5 need no slot; the formula says 4.",
        replace="    num_slots = 0 if num_new_tokens == 0 else len(prompt_ids) + num_new_tokens - 1\n",
        by="    num_slots = len(prompt_ids) + num_new_tokens - 1\n",
        killed_by="test_task_4_zero_new_tokens_cost_nothing",
        breaks="decode_with_cache: A decode of 0 new tokens needs no slot",
    ),
    Mutant(
        name="decode-returns-an-empty-list-of-logits",
        story="0 rows of logits are still rows of the vocabulary.",
        replace="""    return DecodeResult(token_ids, logits)
    # END TASK


def decode_with_cache""",
        by="""    return DecodeResult(token_ids, logits if token_ids else np.zeros(0))
    # END TASK


def decode_with_cache""",
        killed_by="test_task_4_zero_new_tokens_cost_nothing",
        breaks="decode_without_cache: ``logits`` is ``[0, vocab_size]``",
    ),
    Mutant(
        name="formula-sums-in-floats",
        story="n * (n + 1) / 2 is exact as long as nobody asks for more than 53 bits.",
        replace="    return n * (n + 1) // 2\n",
        by="    return int(n * (n + 1) / 2)\n",
        killed_by="test_task_5_formulas_stay_exact_after_a_very_long_prompt",
        breaks="multiply_adds_with_cache: exact Python integers at any size",
    ),
    Mutant(
        name="formula-charges-for-a-prompt-that-is-not-sent",
        story="0 new tokens after a prompt still cost the prompt.",
        replace="""    if num_new_tokens == 0:
        return MultiplyAdds()
""",
        by="",
        killed_by="test_task_5_zero_new_tokens_cost_zero",
        breaks="multiply_adds_with_cache: 0 and 0 for 0 new tokens",
    ),
    Mutant(
        name="formula-counts-at-least-one-step",
        story="Takes the first step for granted.",
        replace="    first, last = num_prompt_tokens, num_prompt_tokens + num_new_tokens - 1\n",
        by="    num_new_tokens = max(1, num_new_tokens)\n"
           "    first, last = num_prompt_tokens, num_prompt_tokens + num_new_tokens - 1\n",
        killed_by="test_task_5_zero_new_tokens_cost_zero",
        breaks="multiply_adds_without_cache: 0 and 0 for 0 new tokens",
    ),
    Mutant(
        name="formula-returns-one-object-to-all",
        story="Fills in the same result again: a second call changes what the first one returned.",
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
        story="Checks all arguments but the last.",
        replace="""head_dim=head_dim,
                   bytes_per_element=bytes_per_element)
""",
        by="head_dim=head_dim)\n",
        killed_by="test_task_6_impossible_shapes_are_refused",
        breaks="kv_bytes_per_token: if one of the four is below 1",
    ),
    Mutant(
        name="bytes-with-a-nameless-error",
        story="Checks the smallest of the four, and cannot say which one that is.",
        replace="""    check_at_least(1, num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim,
                   bytes_per_element=bytes_per_element)
""",
        by="    check_at_least(1, argument=min(num_layers, num_kv_heads, head_dim, bytes_per_element))\n",
        killed_by="test_task_6_impossible_shapes_are_refused",
        breaks="kv_bytes_per_token: the message names the argument and its value",
    ),
    Mutant(
        name="tokens-that-fit-in-floats",
        story="int(a / b) is wrong where a has more than 53 bits.",
        replace="    return budget_bytes // bytes_per_token\n",
        by="    return int(budget_bytes / bytes_per_token)\n",
        killed_by="test_task_6_tokens_that_fit_are_whole_tokens",
        breaks="num_tokens_that_fit: exactly, at any size",
    ),
    Mutant(
        name="no-tokens-fit-into-a-negative-budget",
        story="-7 // 10 is -1 tokens.",
        replace="    check_at_least(0, budget_bytes=budget_bytes)\n",
        by="",
        killed_by="test_task_6_tokens_that_fit_are_whole_tokens",
        breaks="num_tokens_that_fit: if the budget is below 0",
    ),
    Mutant(
        name="tokens-of-no-bytes",
        story="0 bytes per token is a ZeroDivisionError, in the words of Python.",
        replace="    check_at_least(1, bytes_per_token=bytes_per_token)\n",
        by="",
        killed_by="test_task_6_tokens_that_fit_are_whole_tokens",
        breaks="num_tokens_that_fit: or ``bytes_per_token`` below 1",
    ),
    Mutant(
        name="attention-wants-a-query",
        story="0 queries look like a mistake; a step in which a request computes nothing has them.",
        replace="    check_attention_shapes(queries, keys, values)\n",
        by="    check_attention_shapes(queries, keys, values)\n"
           "    if len(queries) == 0:\n"
           '        raise ValueError("0 queries")\n',
        killed_by="test_task_2_no_queries_are_no_error",
        breaks="causal_attention: 0 rows for 0 queries over one key or more",
    ),
    Mutant(
        name="append-looks-at-two-axes-of-the-values",
        story="A check of its own instead of the given one: one number per head is silently written head_dim times.",
        replace="        self.check_new_rows(keys, values)\n",
        by="""        if keys.shape[1:] != (self.num_heads, self.head_dim) or values.shape[:2] != keys.shape[:2]:
            raise ValueError(f"keys {keys.shape}, values {values.shape}")
""",
        killed_by="test_task_3_append_refuses_shapes_that_do_not_fit",
        breaks="KVCache.append: ValueError for what ``check_new_rows`` refuses",
    ),
    Mutant(
        name="append-writes-the-keys-first",
        story="Writes the keys and calls the check then: it refuses the values, but the keys are in the storage.",
        replace="        self.check_new_rows(keys, values)\n",
        by="""        start = self.lengths[layer]
        if keys.shape[1:] == (self.num_heads, self.head_dim) and start + len(keys) <= self.capacity:
            self.keys[layer][start:start + len(keys)] = keys
        self.check_new_rows(keys, values)
""",
        killed_by="test_task_3_append_refuses_shapes_that_do_not_fit",
        breaks=(
            "KVCache.append: and not a row of the storage, free or written",
            "invariant 5: A call that raises has changed nothing",
        ),
    ),
    Mutant(
        name="append-wants-a-row",
        story="0 rows look like a mistake, and are refused.",
        replace="        if end > self.capacity:\n",
        by="        if end == start or end > self.capacity:\n",
        killed_by="test_task_3_no_rows_are_no_error",
        breaks="KVCache.append: ``num_new`` may be 0",
    ),
    Mutant(
        name="decode-looks-at-some-layers",
        story="Looks at the smallest length and at one layer more.",
        replace="    if any(cache.lengths):\n",
        by="    if cache.num_tokens or cache.lengths[1]:\n",
        killed_by="test_task_4_bad_requests_are_refused_before_any_work",
        breaks="decode_with_cache: if any layer of the cache holds a token",
    ),
    Mutant(
        name="formula-gives-a-float",
        story="The number is right and its kind is not: a float of 1.8e11 is still exact, one of 1e17 is not.",
        replace="        linear=last * _linear_per_token(shape) + num_new_tokens * shape.width * shape.vocab_size,\n",
        by="        linear=1.0 * last * _linear_per_token(shape) + num_new_tokens * shape.width * shape.vocab_size,\n",
        killed_by="test_task_5_formulas_stay_exact_after_a_very_long_prompt",
        breaks="multiply_adds_with_cache: exact Python integers",
    ),
]
