from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="softmax-without-a-shift",
        story="The textbook formula; right until a score passes 709 and exp() is inf.",
        replace="    shifted = scores - scores.max(axis=-1, keepdims=True)\n",
        by="    shifted = scores\n",
        killed_by="test_task_1_softmax_does_not_overflow_on_huge_scores",
    ),
    Mutant(
        name="softmax-shifts-by-the-largest-of-all",
        story="One maximum for the whole array: no overflow, but a row far below it becomes 0 / 0.",
        replace="    shifted = scores - scores.max(axis=-1, keepdims=True)\n",
        by="    shifted = scores - scores.max()\n",
        killed_by="test_task_1_softmax_rows_of_very_different_size",
    ),
    Mutant(
        name="softmax-works-in-place",
        story="Saves an array by changing the caller's.",
        replace="    shifted = scores - scores.max(axis=-1, keepdims=True)\n",
        by="    scores -= scores.max(axis=-1, keepdims=True)\n    shifted = scores\n",
        killed_by="test_task_1_softmax_masked_entries_weigh_nothing_and_the_input_is_kept",
    ),
    Mutant(
        name="attention-without-the-scale",
        story="Forgets 1 / sqrt(head_dim); every property test of a mask still passes.",
        replace=" / np.sqrt(head_dim)\n    query_positions",
        by="\n    query_positions",
        killed_by="test_task_2_agrees_with_attention_in_slow_motion",
    ),
    Mutant(
        name="attention-mask-counts-from-the-first-key",
        story="Query i sees keys 0..i. Right for a whole text; a chunk, or one decoded token, sees almost nothing.",
        replace="    query_positions = num_keys - num_queries + np.arange(num_queries)\n",
        by="    query_positions = np.arange(num_queries)\n",
        killed_by="test_task_2_a_chunk_is_the_tail_of_the_whole",
    ),
    Mutant(
        name="attention-masks-after-softmax",
        story="Zeroes the future weights after normalising: what is left no longer sums to 1.",
        replace="    weights = softmax(np.where(is_future, -np.inf, scores))\n",
        by="    weights = np.where(is_future, 0.0, softmax(scores))\n",
        killed_by="test_task_2_equal_scores_give_the_mean_of_the_visible_values",
    ),
    Mutant(
        name="attention-forgets-the-mask",
        story="Bidirectional attention: decoding one token at a time looks right, recomputing does not.",
        replace="    weights = softmax(np.where(is_future, -np.inf, scores))\n",
        by="    weights = softmax(scores)\n",
        killed_by="test_task_2_future_tokens_do_not_influence_earlier_outputs",
    ),
    Mutant(
        name="num-tokens-asks-the-first-layer",
        story="Layer 0 is written first, so in the middle of a pass it is ahead of the others.",
        replace="        return min(self.lengths)\n",
        by="        return self.lengths[0]\n",
        killed_by="test_task_3_num_tokens_counts_what_every_layer_holds",
    ),
    Mutant(
        name="append-keeps-the-callers-arrays",
        story="A first append that fills the cache is stored by assignment: it looks like a copy and is none.",
        replace="        self.keys[layer][start:end] = keys\n        self.values[layer][start:end] = values\n",
        by="        if num_new == self.capacity:\n"
           "            self.keys[layer], self.values[layer] = keys, values\n"
           "        else:\n"
           "            self.keys[layer][start:end] = keys\n"
           "            self.values[layer][start:end] = values\n",
        killed_by="test_task_3_the_cache_keeps_copies",
    ),
    Mutant(
        name="append-concatenates",
        story="Grows the arrays by concatenation: right numbers, and a copy of the whole cache at every token.",
        replace="        self.keys[layer][start:end] = keys\n        self.values[layer][start:end] = values\n",
        by="        self.keys[layer] = np.concatenate([self.keys[layer][:start], keys])\n"
           "        self.values[layer] = np.concatenate([self.values[layer][:start], values])\n",
        killed_by="test_task_3_get_copies_nothing",
    ),
    Mutant(
        name="append-advances-before-it-checks",
        story="Counts the new tokens first and refuses them afterwards: the refused tokens are there, as rows of junk.",
        replace="        end = start + num_new\n",
        by="        end = self.lengths[layer] = start + num_new\n",
        killed_by="test_task_3_append_beyond_capacity_changes_nothing",
    ),
    Mutant(
        name="append-leaves-the-last-slot-empty",
        story="Refuses at capacity instead of beyond it.",
        replace="        if end > self.capacity:\n",
        by="        if end >= self.capacity:\n",
        killed_by="test_task_3_the_last_slot_can_be_used",
    ),
    Mutant(
        name="append-lets-numpy-broadcast",
        story="No check of the shapes: one value row is silently written three times.",
        replace="        if keys.shape != expected or values.shape != expected:\n",
        by="        if False:\n",
        killed_by="test_task_3_append_refuses_shapes_that_do_not_fit",
    ),
    Mutant(
        name="decode-feeds-the-prompt-token-by-token",
        story="Right answers, but the prompt takes one call a token instead of one call.",
        replace="    not_computed = list(prompt_ids)\n",
        by="    for token_id in prompt_ids[:-1] if num_new_tokens else ():\n"
           "        model.forward([token_id], cache)\n"
           "    not_computed = list(prompt_ids[-1:])\n",
        killed_by="test_task_4_with_cache_every_token_is_sent_once",
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
    ),
    Mutant(
        name="decode-asks-for-one-slot-too-many",
        story="Takes prompt + new tokens for the size of the cache, although the last token is never cached.",
        replace="    num_slots = 0 if num_new_tokens == 0 else len(prompt_ids) + num_new_tokens - 1\n",
        by="    num_slots = 0 if num_new_tokens == 0 else len(prompt_ids) + num_new_tokens\n",
        killed_by="test_task_4_a_cache_of_exactly_the_right_size_is_enough",
    ),
    Mutant(
        name="decode-finds-out-too-late-that-the-cache-is-small",
        story="Relies on append to refuse: the ValueError comes, after most of the work and with a half-filled cache.",
        replace="    if num_slots > cache.capacity:\n",
        by="    if num_slots > cache.capacity + len(prompt_ids):\n",
        killed_by="test_task_4_bad_requests_are_refused_before_any_work",
    ),
    Mutant(
        name="formula-uses-float-division",
        story="n * (n + 1) * (2 * n + 1) / 6: exact on paper, 53 bits in a machine.",
        replace="    return n * (n + 1) * (2 * n + 1) // 6\n",
        by="    return int(n * (n + 1) * (2 * n + 1) / 6)\n",
        killed_by="test_task_5_formulas_stay_exact_at_real_sizes",
    ),
    Mutant(
        name="formula-applies-the-head-to-every-token",
        story="Charges the vocabulary matrix for every token fed; the model applies it to the last one of a call only.",
        replace="        linear=last * _linear_per_token(shape) + num_new_tokens * shape.width * shape.vocab_size,\n",
        by="        linear=last * _linear_per_token(shape) + last * shape.width * shape.vocab_size,\n",
        killed_by="test_task_5_formula_with_cache_equals_the_counter",
    ),
    Mutant(
        name="formula-counts-one-step-too-many",
        story="Sums the lengths up to prompt + new tokens: the classic fence post.",
        replace="    first, last = num_prompt_tokens, num_prompt_tokens + num_new_tokens - 1\n",
        by="    first, last = num_prompt_tokens, num_prompt_tokens + num_new_tokens\n",
        killed_by="test_task_5_formula_without_cache_equals_the_counter",
    ),
    Mutant(
        name="bytes-of-the-keys-only",
        story="Forgets that a token has a key and a value.",
        replace="    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_element\n",
        by="    return num_layers * num_kv_heads * head_dim * bytes_per_element\n",
        killed_by="test_task_6_bytes_per_token_of_real_models",
    ),
    Mutant(
        name="tokens-that-fit-rounds-up",
        story="Counts the token that does not fit.",
        replace="    return budget_bytes // bytes_per_token\n",
        by="    return -(-budget_bytes // bytes_per_token)\n",
        killed_by="test_task_6_tokens_that_fit_are_whole_tokens",
    ),
]
