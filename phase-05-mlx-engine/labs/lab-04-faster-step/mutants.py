"""Wrong solutions of lab 5.4, each with the test that catches it."""

from course.mutants import Mutant

MUTANTS = [
    # ---- Task 1
    Mutant(
        name="pages-by-head-first",
        story="Numbers the pages as if a pool held all blocks of head 0, then all blocks of head 1.",
        replace="mx.array(blocks[:, None] * num_both + np.arange(num_both, dtype=np.int32)[:, None])",
        by="mx.array(blocks[:, None] + 30 * np.arange(num_both, dtype=np.int32)[:, None])",
        killed_by="test_task_1_each_head_of_each_block_is_a_page",
        breaks="gather_index: entry [i, head, b] is the page of ``block_tables[i][b]`` for that head",
    ),
    Mutant(
        name="blocks-before-heads",
        story="Returns [num_requests, num_blocks, num_both], the order in which the blocks are stored.",
        replace="    return mx.array(blocks[:, None] * num_both + np.arange(num_both, dtype=np.int32)[:, None])\n",
        by="    return mx.array(blocks[:, :, None] * num_both + np.arange(num_both, dtype=np.int32))\n",
        killed_by="test_task_1_each_request_has_its_own_table",
        breaks="gather_index: an int32 array [num_requests, num_both, num_blocks]",
    ),
    Mutant(
        name="index-of-64-bits",
        story="Leaves the type to numpy, which makes an index of 64-bit numbers.",
        replace="np.zeros((len(block_tables), max(num_blocks)), dtype=np.int32)",
        by="np.zeros((len(block_tables), max(num_blocks)), dtype=np.int64)",
        killed_by="test_task_1_random_tables",
        breaks="gather_index: an int32 array",
    ),
    Mutant(
        name="missing-blocks-repeat-the-last",
        story="Fills the rest of a row with the last block of the context instead of block 0.",
        replace="        row[:count] = table[:count]\n",
        by="        row[:] = table[count - 1]\n        row[:count] = table[:count]\n",
        killed_by="test_task_1_missing_blocks_are_those_of_block_0",
        breaks="gather_index: if context i has no block b, the entry is the page of block 0",
    ),
    Mutant(
        name="whole-tables",
        story="Takes as many blocks as the longest table has, whatever the contexts need.",
        replace="    num_blocks = [-(-context_len // block_size) for context_len in context_lens]\n",
        by="    num_blocks = [len(table) for table in block_tables]\n",
        killed_by="test_task_1_a_table_may_be_longer_than_its_context",
        breaks=("gather_index: entries of a table after the last block of its context are not used",
                "gather_index: ``num_blocks`` is that of the longest context"),
    ),
    # ---- Task 2
    Mutant(
        name="mask-of-booleans",
        story="Returns True and False, which would be added to the scores as 1 and 0.",
        replace="    return mx.array(np.where(sees, np.float32(0), np.float32(-np.inf)))\n",
        by="    return mx.array(sees)\n",
        killed_by="test_task_2_one_query_sees_its_whole_context",
        breaks="score_mask: a float32 array [num_requests, num_queries, num_slots]",
    ),
    Mutant(
        name="mask-ends-at-the-longest-context",
        story="Has one column per token of the longest context, not per slot of its blocks.",
        replace="    num_slots = -(-max(context_lens) // block_size) * block_size\n",
        by="    num_slots = max(context_lens)\n",
        killed_by="test_task_2_requests_have_lengths_of_their_own",
        breaks="score_mask: ``num_slots`` is the number of slots of the longest context's blocks",
    ),
    Mutant(
        name="queries-see-the-whole-context",
        story="All queries of a chunk see the context's last token.",
        replace=" - num_queries + np.arange(num_queries)[:, None]\n    sees",
        by=" - 1 + 0 * np.arange(num_queries)[:, None]\n    sees",
        killed_by="test_task_2_a_chunk_is_causal",
        breaks="score_mask: a query sees the slots from position 0 to its own position",
    ),
    Mutant(
        name="own-slot-is-not-seen",
        story="A query sees the tokens before it, but not its own.",
        replace="    sees = slots <= own\n",
        by="    sees = slots < own\n",
        killed_by="test_task_2_one_query_sees_its_whole_context",
        breaks="score_mask: a query sees the slots from position 0 to its own position",
    ),
    Mutant(
        name="window-is-one-too-long",
        story="Counts the query's own slot in addition to the window.",
        replace="        sees &= slots > own - window\n",
        by="        sees &= slots >= own - window\n",
        killed_by="test_task_2_a_window_ends_the_view_backwards",
        breaks="score_mask: with a ``window`` it sees only the last ``window`` of these slots, its own included",
    ),
    Mutant(
        name="window-from-the-longest-context",
        story="Counts the window from the end of the longest context in the batch.",
        replace="        sees &= slots > own - window\n",
        by="        sees &= slots > own.max() - window\n",
        killed_by="test_task_2_random_masks",
        breaks="score_mask: with a ``window`` it sees only the last ``window`` of these slots, its own included",
    ),
    # ---- Task 3
    Mutant(
        name="heads-take-turns",
        story="Head h reads KV head h % num_kv_heads, as if the heads of a group were not next to each other.",
        replace="    rows = (queries * scale).reshape(num_requests, num_queries, num_kv_heads, group, head_dim)\n",
        by="    rows = (queries * scale).reshape(num_requests, num_queries, group, num_kv_heads, head_dim)\n"
           "    rows = rows.swapaxes(2, 3)\n",
        killed_by="test_task_3_heads_are_grouped_over_kv_heads",
        breaks="attend: head ``h`` reads KV head ``h // (num_heads // num_kv_heads)``",
    ),
    Mutant(
        name="values-first",
        story="Takes the first half of a block for the values and the second for the keys.",
        replace="    keys, values = keys_values[:, :num_kv_heads], keys_values[:, num_kv_heads:]\n",
        by="    keys, values = keys_values[:, num_kv_heads:], keys_values[:, :num_kv_heads]\n",
        killed_by="test_task_3_one_query_attends_to_its_context",
        breaks="attend: a block holds first the keys, then the values",
    ),
    Mutant(
        name="scale-is-forgotten",
        story="Does not multiply by the scale.",
        replace="(queries * scale).reshape(",
        by="queries.reshape(",
        killed_by="test_task_3_scores_are_multiplied_by_the_scale",
        breaks="attend: scores are multiplied by ``scale``",
    ),
    Mutant(
        name="mask-is-forgotten",
        story="Does not add the mask, so a short context also sees the slots that fill its row.",
        replace="mx.softmax(scores + mask[:, None, None], axis=-1)",
        by="mx.softmax(scores, axis=-1)",
        killed_by="test_task_3_slots_that_are_not_seen_do_not_matter",
        breaks=("attend: then the mask is added",
                "attend: the content of slots that a query does not see does not change its result"),
    ),
    Mutant(
        name="mask-of-the-first-request",
        story="Uses the mask of the first request for all of them.",
        replace="scores + mask[:, None, None]",
        by="scores + mask[:1, None, None]",
        killed_by="test_task_3_requests_of_different_lengths_in_one_call",
        breaks="attend: the attention output of each query",
    ),
    Mutant(
        name="queries-and-heads-mixed-up",
        story="Reshapes the result without bringing the queries back before the heads. With one query it is right.",
        replace="num_queries, head_dim).transpose(0, 3, 1, 2, 4)\n    return",
        by="num_queries, head_dim)\n    return",
        killed_by="test_task_3_several_queries_of_one_request",
        breaks="attend: the attention output of each query: an array of the shape and the type of ``queries``",
    ),
    Mutant(
        name="result-in-single-precision",
        story="Returns float32 for queries in bfloat16, because the mask is float32.",
        replace="    return out.reshape(queries.shape).astype(queries.dtype)\n",
        by="    return out.reshape(queries.shape).astype(mx.float32)\n",
        killed_by="test_task_3_the_result_has_the_type_of_the_queries",
        breaks="attend: an array of the shape and the type of ``queries``",
    ),
    # ---- Task 4
    Mutant(
        name="copies-come-last",
        story="Copies blocks after the step has written into them.",
        replace="        self.cache.copy_blocks(copies)\n        hidden = self.model(token_ids, "
                "mx.array(positions.astype(np.int32)), write_and_attend, rows if is_cut else None)\n",
        by="        hidden = self.model(token_ids, "
           "mx.array(positions.astype(np.int32)), write_and_attend, rows if is_cut else None)\n"
           "        mx.eval(hidden, pools)\n        self.cache.copy_blocks(copies)\n",
        killed_by="test_task_4_copies_come_first",
        breaks=("ModelRunner.step: ``copies`` were made before anything was written", "invariant 2: Copies come first"),
    ),
    Mutant(
        name="the-first-request-does-not-wait",
        story="The first request attends before the other requests of the step have written.",
        replace="            return (last_plan if layer == last else plan).attend(queries, pools[layer], self.scale, "
                "windows[layer])\n",
        by="            chosen = last_plan if layer == last else plan\n"
           "            out = chosen.attend(queries, pools[layer], self.scale, windows[layer])\n"
           "            if len(requests) == 1:\n"
           "                return out\n"
           "            early = pools[layer].reshape(-1, head_dim) + 0\n"
           "            early[vectors[len(requests[0].token_ids) * num_both:]] = 0\n"
           "            first = chosen.attend(queries, early.reshape(pools[layer].shape), self.scale, windows[layer])\n"
           "            count = starts[1] if len(queries) == starts[-1] else 1\n"
           "            return mx.concatenate([first[:count], out[count:]])\n",
        killed_by="test_task_4_a_block_that_the_same_step_writes_can_be_read",
        breaks=("ModelRunner.step: in every layer all keys and values were written before any were read",
                "invariant 2: In every layer all writes come before the first read"),
    ),
    Mutant(
        name="nothing-wanted-nothing-done",
        story="Returns at once if no request needs logits. The next chunk then reads keys that were never written.",
        replace="        self.cache.copy_blocks(copies)\n        hidden",
        by="        self.cache.copy_blocks(copies)\n        if not wanted:\n"
           "            return mx.zeros((0, self.model.config.vocab_size))\n        hidden",
        killed_by="test_task_4_no_logits_are_wanted",
        breaks="ModelRunner.step: the keys and values of all tokens are in their slots, even if no logits are wanted",
    ),
    Mutant(
        name="a-new-block-is-cleared",
        story="Fills a block with zeros when its first slot is written. Every result is right, but slots change that "
              "are not the step's.",
        replace="            pool = pools[layer].reshape(-1, head_dim)\n",
        by="            new = blocks[offsets == 0].tolist()\n"
           "            if new:\n"
           "                pools[layer][mx.array(new)] = 0\n"
           "            pool = pools[layer].reshape(-1, head_dim)\n",
        killed_by="test_task_4_only_the_slots_of_the_step_change",
        breaks=("ModelRunner.step: no other slot has changed",
                "invariant 3: A step changes the slots of its own tokens and no others"),
    ),
    Mutant(
        name="decodes-come-first",
        story="Returns the results in the order in which they were computed: all decodes, then the chunks.",
        replace="None if rows == list(range(len(rows))) else mx.array(np.argsort(rows).astype(np.int32))",
        by="None",
        killed_by="test_task_4_requests_come_in_any_order",
        breaks="ModelRunner.step: in the order of ``requests``",
    ),
    Mutant(
        name="one-row-per-request",
        story="Returns only the last row of a request that needs all logits.",
        replace="            wanted += range(start if request.needs_all_logits else end - 1,\n",
        by="            wanted += range(end - 1,\n",
        killed_by="test_task_4_all_logits_of_a_request",
        breaks="ModelRunner.step: for a request with ``needs_all_logits``: a row for each of its ``token_ids``",
    ),
    Mutant(
        name="all-logits-need-logits-too",
        story="Looks at needs_all_logits only if needs_logits is set.",
        replace="end if request.needs_logits or request.needs_all_logits else end - 1)",
        by="end if request.needs_logits else start if request.needs_all_logits else end - 1)",
        killed_by="test_task_4_all_logits_of_a_request",
        breaks="ModelRunner.step: for a request with ``needs_all_logits``: a row for each of its ``token_ids``",
    ),
    Mutant(
        name="first-token-instead-of-last",
        story="Takes the logits of the first new token of a request. In a decode that is the last one, too.",
        replace="            wanted += range(start if request.needs_all_logits else end - 1,\n"
                "                            end if request.needs_logits or request.needs_all_logits else end - 1)\n",
        by="            wanted += range(start, end if request.needs_all_logits else\n"
           "                            start + 1 if request.needs_logits else start)\n",
        killed_by="test_task_4_a_prompt_is_computed_as_by_the_dense_model",
        breaks="ModelRunner.step: for any other request with ``needs_logits``: a row for its last token",
    ),
    Mutant(
        name="a-row-for-every-request",
        story="Returns a row for each request, whether it needs logits or not.",
        replace="end if request.needs_logits or request.needs_all_logits else end - 1)",
        by="end)",
        killed_by="test_task_4_only_requests_that_need_logits_get_them",
        breaks="ModelRunner.step: for the remaining requests: no row",
    ),
    Mutant(
        name="the-shape-of-nothing",
        story="Returns an empty array without columns if no logits are wanted.",
        replace="        return self.model.logits(hidden if is_cut or len(wanted) == starts[-1] else hidden[rows])\n",
        by="        if not wanted:\n            mx.eval(hidden)\n            return mx.array([])\n"
           "        return self.model.logits(hidden if is_cut or len(wanted) == starts[-1] else hidden[rows])\n",
        killed_by="test_task_4_no_logits_are_wanted",
        breaks="ModelRunner.step: if no logits are wanted, the shape is (0, vocab_size)",
    ),
    Mutant(
        name="every-chunk-starts-at-0",
        story="Counts positions from 0 in every step: right for whole prompts only.",
        replace="        positions = base.token_positions(lens, starts)\n",
        by="        positions = base.token_positions(np.diff(starts).tolist(), starts)\n",
        killed_by="test_task_4_chunks_are_as_the_whole_prompt",
        breaks=("ModelRunner.step: each row is that of the dense model",
                "invariant 1: The logits of a step are those of the dense model"),
    ),
    Mutant(
        name="the-plan-of-the-last-step",
        story="Keeps index and mask as long as the block tables are the same. The mask also depends on the lengths.",
        replace="        plan = _Plan(tables, lens, starts, num_both, block_size, set(windows))\n",
        by="        kept = self.__dict__.setdefault('kept', {})\n"
           "        key = str((tables, np.diff(starts).tolist()))\n"
           "        plan = kept[key] = kept.get(key) or _Plan(tables, lens, starts, num_both, block_size,\n"
           "                                                  set(windows))\n",
        killed_by="test_task_4_decoding_step_by_step_is_as_the_whole_text",
        breaks="ModelRunner.step: each row is that of the dense model",
    ),
    Mutant(
        name="the-longest-context-for-all",
        story="Gives all requests that decode the mask of the longest context.",
        replace="                {window: score_mask(lens, num, block_size, window) for window in windows}))\n",
        by="                {window: score_mask([max(lens)] * len(lens), num, block_size, window)\n"
           "                 for window in windows}))\n",
        killed_by="test_task_4_contexts_of_very_different_lengths_decode_together",
        breaks=("ModelRunner.step: whatever other requests are in the step",
                "invariant 4: which other requests are in the step"),
    ),
    Mutant(
        name="only-the-first-tables-prefix",
        story="Assumes that requests with the same first block have the same table.",
        replace="                gather_index(tables, lens, num_both, block_size),\n",
        by="                gather_index([next(other for other in block_tables if other[0] == table[0])\n"
           "                              for table in tables], lens, num_both, block_size),\n",
        killed_by="test_task_4_a_prefix_that_many_requests_share",
        breaks="invariant 4: which blocks it shares",
    ),
    Mutant(
        name="windows-are-forgotten",
        story="Treats all layers as if they had no window.",
        replace="        windows: list[int | None] = [options.get(\"window\") for options in self.options]\n",
        by="        windows: list[int | None] = [None for options in self.options]\n",
        killed_by="test_task_4_layers_have_windows_of_their_own",
        breaks="ModelRunner.step: in a layer with a window (``self.options[layer]``) a token sees only",
    ),
    Mutant(
        name="one-window-for-all-layers",
        story="Uses the window of the last layer in all layers.",
        replace="        windows: list[int | None] = [options.get(\"window\") for options in self.options]\n",
        by="        windows: list[int | None] = [self.options[-1].get(\"window\") for options in self.options]\n",
        killed_by="test_task_4_layers_have_windows_of_their_own",
        breaks="ModelRunner.step: in a layer with a window (``self.options[layer]``)",
    ),
    Mutant(
        name="keys-in-half-precision",
        story="Stores keys and values in 16 bits to read less memory. The best token is nearly always the same.",
        replace="            pool[vectors] = keys_values.reshape(-1, head_dim)\n",
        by="            pool[vectors] = keys_values.reshape(-1, head_dim).astype(mx.float16).astype(mx.float32)\n",
        killed_by="test_task_4_the_tokens_of_the_comparison_are_the_references",
        breaks="invariant 5: and so is its logit",
    ),
    Mutant(
        name="only-the-last-128-tokens",
        story="Sees at most 128 slots of a context, which is enough for every small test.",
        replace="    sees = slots <= own\n",
        by="    sees = (slots <= own) & (slots > own - 128)\n",
        killed_by="test_task_4_the_tokens_of_the_comparison_are_the_references",
        breaks="invariant 5: the same tokens",
    ),
]
