"""Wrong solutions of lab 5.1, each with the test that must catch it."""

from course.mutants import Mutant

MUTANTS = [
    # ---- Task 1
    Mutant(
        name="every-chunk-starts-at-0",
        story="Computes positions as for a whole prompt: right for the first chunk, wrong from the second on.",
        replace="np.arange(context_len - (end - start), context_len)\n",
        by="np.arange(end - start)\n",
        killed_by="test_task_1_positions_are_the_last_of_each_context",
        breaks=("token_positions: They are the last ones of its context_lens[i] tokens",
                "invariant 1: The tokens of a request are the last ones of its context"),
    ),
    Mutant(
        name="positions-count-from-1",
        story="Uses the context length as the position of the last token.",
        replace="np.arange(context_len - (end - start), context_len)\n",
        by="np.arange(context_len - (end - start) + 1, context_len + 1)\n",
        killed_by="test_task_1_positions_are_the_last_of_each_context",
        breaks="token_positions: The first token of a request has position 0",
    ),
    Mutant(
        name="the-latest-token-first",
        story="Counts back from the end of the context. A decode has only one token, so it does not show the mistake.",
        replace="np.arange(context_len - (end - start), context_len)\n",
        by="np.arange(context_len - 1, context_len - 1 - (end - start), -1)\n",
        killed_by="test_task_1_positions_are_the_last_of_each_context",
        breaks="token_positions: in order",
    ),
    Mutant(
        name="positions-of-32-bits",
        story="Uses the type that the network takes. Slots are computed from positions, and the slots of a large pool "
              "do not fit into 32 bits.",
        replace="np.arange(context_len - (end - start), context_len)\n",
        by="np.arange(context_len - (end - start), context_len, dtype=np.int32)\n",
        killed_by="test_task_1_positions_are_the_last_of_each_context",
        breaks="token_positions: an int64 array [num_tokens]",
    ),
    Mutant(
        name="one-table-for-all",
        story="Looks all tokens up in the first request's table.",
        replace="np.asarray(table)[positions[start:end] // block_size]\n",
        by="np.asarray(block_tables[0])[positions[start:end] // block_size % len(block_tables[0])]\n",
        killed_by="test_task_1_slots_go_through_each_requests_own_table",
        breaks=("slot_mapping: in block block_tables[i][positions[t] // block_size]",
                "invariant 1: Their positions follow from that, and their slots from the positions and the table"),
    ),
    Mutant(
        name="offsets-count-from-the-first-token-of-the-step",
        story="Computes a token's offset from its place in the batch, not from its position in its request.",
        replace="* block_size + positions % block_size\n    # END TASK\n",
        by="* block_size + np.arange(len(positions)) % block_size\n    # END TASK\n",
        killed_by="test_task_1_slots_of_random_batches",
        breaks="slot_mapping: it is at position positions[t] of that request",
    ),
    Mutant(
        name="slots-of-32-bits",
        story="Stores slots in 32 bits to save memory. From slot 2 ** 31 on, they are negative.",
        replace="    return np.concatenate(block_ids) * block_size + positions % block_size\n",
        by="    return (np.concatenate(block_ids) * block_size + positions % block_size).astype(np.int32)\n",
        killed_by="test_task_1_slots_go_through_each_requests_own_table",
        breaks="slot_mapping: an int64 array [num_tokens]",
    ),
    # ---- Task 2
    Mutant(
        name="write-goes-to-layer-0",
        story="Writes everything into one pool. With one layer this is right.",
        replace="        self.pools[layer][mx.array(block_ids), :, mx.array(offsets)] = keys_values\n",
        by="        self.pools[0][mx.array(block_ids), :, mx.array(offsets)] = keys_values\n",
        killed_by="test_task_2_each_token_lands_in_its_slot_and_nothing_else_changes",
        breaks="PagedKVCache.write: each of these slots of pools[layer] holds its token's keys and values",
    ),
    Mutant(
        name="write-takes-offsets-for-blocks",
        story="Swaps the two results of divmod, which are (block, offset).",
        replace="        block_ids, offsets = np.divmod(slots, self.block_size)\n",
        by="        offsets, block_ids = np.divmod(slots, self.block_size)\n",
        killed_by="test_task_2_each_token_lands_in_its_slot_and_nothing_else_changes",
        breaks="PagedKVCache.write: each token in its slot",
    ),
    Mutant(
        name="write-sorts-the-slots",
        story="Sorts the slots into memory order, but leaves the tokens in their own order.",
        replace="        block_ids, offsets = np.divmod(slots, self.block_size)\n",
        by="        block_ids, offsets = np.divmod(np.sort(slots), self.block_size)\n",
        killed_by="test_task_2_each_token_lands_in_its_slot_and_nothing_else_changes",
        breaks="PagedKVCache.write: slots are all different, in any order",
    ),
    Mutant(
        name="write-begins-with-an-empty-block",
        story="Clears a block before it writes into it: the tokens of earlier steps, or of another request that shares "
              "the block, are lost.",
        replace="        block_ids, offsets = np.divmod(slots, self.block_size)\n",
        by="        block_ids, offsets = np.divmod(slots, self.block_size)\n"
           "        self.pools[layer][mx.array(block_ids)] = 0\n",
        killed_by="test_task_2_each_token_lands_in_its_slot_and_nothing_else_changes",
        breaks=("PagedKVCache.write: nothing else in any pool has changed",
                "invariant 3: A write changes its slots and nothing else"),
    ),
    Mutant(
        name="write-adds",
        story="Uses at[...].add, as for gradients: right as long as every slot is written only once.",
        replace="        self.pools[layer][mx.array(block_ids), :, mx.array(offsets)] = keys_values\n",
        by="        pool = self.pools[layer]\n"
           "        self.pools[layer] = pool.at[mx.array(block_ids), :, mx.array(offsets)].add(keys_values)\n",
        killed_by="test_task_2_a_slot_holds_what_was_written_last",
        breaks="PagedKVCache.write: whatever it held before",
    ),
    Mutant(
        name="write-turns-the-pool-around",
        story="Rearranges the pool slot by slot, writes, and rearranges it back. Every number is right, but the pool "
              "is copied.",
        replace="        self.pools[layer][mx.array(block_ids), :, mx.array(offsets)] = keys_values\n",
        by="        pool = self.pools[layer]\n"
           "        slotwise = pool.swapaxes(1, 2).reshape(-1, pool.shape[1], pool.shape[3])\n"
           "        slotwise[mx.array(slots)] = keys_values\n"
           "        self.pools[layer] = slotwise.reshape(-1, self.block_size, *slotwise.shape[1:]).swapaxes(1, 2)\n",
        killed_by="test_task_2_the_pool_is_written_in_place",
        breaks=("PagedKVCache.write: the pool was written in place: no second pool was made",
                "invariant 3: it makes no array of a pool's size"),
    ),
    Mutant(
        name="write-keeps-the-old-pool",
        story="Keeps a view of the pool for debugging, so MLX must not write into the old array.",
        replace="        block_ids, offsets = np.divmod(slots, self.block_size)\n",
        by="        block_ids, offsets = np.divmod(slots, self.block_size)\n"
           "        self.before = self.pools[layer].reshape(-1)\n        mx.eval(self.before)\n",
        killed_by="test_task_2_the_pool_is_written_in_place",
        breaks=("PagedKVCache.write: the pool was written in place",
                "PagedKVCache: no other object keeps a reference to a pool, or to a view of one"),
    ),
    Mutant(
        name="write-goes-token-by-token",
        story="Loops over the tokens. Every number is right and written in place, but a prompt of 256 tokens takes 256 "
              "writes.",
        replace="        self.pools[layer][mx.array(block_ids), :, mx.array(offsets)] = keys_values\n",
        by="        for token, (block_id, offset) in enumerate(zip(block_ids.tolist(), offsets.tolist())):\n"
           "            self.pools[layer][block_id, :, offset] = keys_values[token]\n",
        killed_by="test_task_2_all_tokens_are_one_write",
        breaks="PagedKVCache.write: there was one write for all tokens, not one per token",
    ),
    # ---- Task 3
    Mutant(
        name="copies-in-the-first-layer",
        story="Forgets that a block exists in every layer.",
        replace="        for pool, blocks in zip(self.pools, copied):\n",
        by="        for pool, blocks in zip(self.pools[:1], copied):\n",
        killed_by="test_task_3_whole_blocks_of_every_layer_are_copied",
        breaks="PagedKVCache.copy_blocks: in every layer the blocks are as if",
    ),
    Mutant(
        name="copies-all-at-once",
        story="Reads all sources before it writes: a copy of a copy gets the content from before the first copy.",
        replace="            origins[destination] = origins.get(source, source)\n",
        by="            origins[destination] = source\n",
        killed_by="test_task_3_copies_are_as_if_made_one_after_the_other",
        breaks=("PagedKVCache.copy_blocks: as if the copies had been made one after the other",
                "PagedKVCache.copy_blocks: a block that an earlier pair wrote is copied with its new content"),
    ),
    Mutant(
        name="the-first-copy-into-a-block-stays",
        story="Uses setdefault, so a second copy into the same block is ignored.",
        replace="            origins[destination] = origins.get(source, source)\n",
        by="            origins.setdefault(destination, origins.get(source, source))\n",
        killed_by="test_task_3_copies_are_as_if_made_one_after_the_other",
        breaks="PagedKVCache.copy_blocks: if two pairs have the same destination, the later pair wins",
    ),
    Mutant(
        name="copies-counted-per-layer",
        story="Counts inside the loop over the layers.",
        replace="        self.num_copied_blocks += len(copies)\n",
        by="        self.num_copied_blocks += len(copies) * len(self.pools)\n",
        killed_by="test_task_3_copies_are_counted",
        breaks="PagedKVCache.copy_blocks: num_copied_blocks has grown by the number of pairs",
    ),
    Mutant(
        name="copies-counted-by-destination",
        story="Counts the blocks written in the end: two copies into the same block count once.",
        replace="        self.num_copied_blocks += len(copies)\n",
        by="        self.num_copied_blocks += len(origins)\n",
        killed_by="test_task_3_copies_are_counted",
        breaks="PagedKVCache.copy_blocks: num_copied_blocks has grown by the number of pairs",
    ),
    Mutant(
        name="no-copies-are-an-index",
        story="Does not check whether there is anything to copy: an empty list becomes an array of float32.",
        replace="        if not copies:\n            return\n",
        by="",
        killed_by="test_task_3_copies_are_counted",
        breaks="PagedKVCache.copy_blocks: if there are no pairs, nothing has changed",
    ),
    Mutant(
        name="copies-are-not-read-first",
        story="Leaves the reads pending until the write. The pool is then still in use, so MLX copies it.",
        replace="        mx.eval(copied)\n",
        by="",
        killed_by="test_task_3_a_copied_block_does_not_copy_the_pool",
        breaks=("PagedKVCache.copy_blocks: the pools were written in place",
                "PagedKVCache.copy_blocks: Evaluate the blocks read from a pool (mx.eval) before"),
    ),
    Mutant(
        name="copies-from-a-snapshot",
        story="Copies the whole pools before it changes them, so that no read happens too late.",
        replace="        copied = [pool[sources] for pool in self.pools]\n",
        by="        snapshot = [pool + 0 for pool in self.pools]\n        mx.eval(snapshot)\n"
           "        copied = [pool[sources] for pool in snapshot]\n",
        killed_by="test_task_3_a_copied_block_does_not_copy_the_pool",
        breaks="PagedKVCache.copy_blocks: the pools were written in place",
    ),
    # ---- Task 4
    Mutant(
        name="a-query-does-not-see-itself",
        story="Is off by one in the mask: < instead of <=.",
        replace="    sees = positions <= own_positions ",
        by="    sees = positions < own_positions ",
        killed_by="test_task_4_one_query_sees_its_whole_context",
        breaks="_attend_alike: a query attends to all tokens of its request up to its own position",
    ),
    Mutant(
        name="chunk-stands-at-the-start",
        story="Uses the mask of a whole prompt: query j sees positions 0 to j, wherever the chunk begins.",
        replace="    own_positions = lengths - num_queries + np.arange(num_queries)[:, None]\n",
        by="    own_positions = 0 * lengths + np.arange(num_queries)[:, None]\n",
        killed_by="test_task_4_a_chunk_is_causal_from_where_it_stands",
        breaks="_attend_alike: query j of request i is at position context_lens[i] - num_queries + j",
    ),
    Mutant(
        name="everybody-sees-the-whole-context",
        story="Masks only the slots after the context: right for decodes, whose query is the last token.",
        replace="    sees = positions <= own_positions ",
        by="    sees = positions < lengths + 0 * own_positions ",
        killed_by="test_task_4_a_chunk_is_causal_from_where_it_stands",
        breaks="_attend_alike: up to its own position",
    ),
    Mutant(
        name="blocks-are-glued-without-turning",
        story="Reshapes without swapaxes: the heads of one block become tokens of another. With one block this is "
              "right.",
        replace="    keys_values = blocks.swapaxes(1, 2).reshape(",
        by="    keys_values = blocks.reshape(",
        killed_by="test_task_4_one_query_sees_its_whole_context",
        breaks="module: position p of a request block table[p // block_size], offset p % block_size",
    ),
    Mutant(
        name="keys-and-values-take-turns",
        story="Assumes that keys and values are interleaved head by head. With one KV head this is right.",
        replace="    keys, values = mx.split(keys_values, 2, axis=1)\n",
        by="    keys, values = keys_values[:, ::2], keys_values[:, 1::2]\n",
        killed_by="test_task_4_heads_are_grouped_over_kv_heads",
        breaks="module: a block's keys, then its values",
    ),
    Mutant(
        name="heads-are-interleaved",
        story="Repeats the KV heads as a whole, so that head h reads KV head h % num_kv_heads.",
        replace="    lengths = np.array(context_lens)[:, None, None]\n",
        by="    repeats = (1, queries.shape[2] // keys.shape[1], 1, 1)\n"
           "    keys, values = mx.tile(keys, repeats), mx.tile(values, repeats)\n"
           "    lengths = np.array(context_lens)[:, None, None]\n",
        killed_by="test_task_4_heads_are_grouped_over_kv_heads",
        breaks="_attend_alike: head h reads KV head h // (num_heads // num_kv_heads)",
    ),
    Mutant(
        name="scale-by-habit",
        story="Always uses 1 / sqrt(head_dim) and ignores ``scale``.",
        replace="keys, values, scale=scale,\n",
        by="keys, values, scale=head_dim ** -0.5,\n",
        killed_by="test_task_4_scores_are_multiplied_by_the_scale",
        breaks="_attend_alike: scores are multiplied by scale",
    ),
    Mutant(
        name="window-one-too-long",
        story="Counts only the tokens before the query, so the window is one token too long.",
        replace="        sees &= positions > own_positions - window\n",
        by="        sees &= positions >= own_positions - window\n",
        killed_by="test_task_4_a_window_ends_the_view_backwards",
        breaks="_attend_alike: the last window of these tokens, itself included",
    ),
    Mutant(
        name="window-from-the-end-of-the-context",
        story="Uses one window for the whole chunk, the last tokens of the context. This is right for decodes.",
        replace="        sees &= positions > own_positions - window\n",
        by="        sees &= (positions > lengths - 1 - window) | (positions == own_positions)\n",
        killed_by="test_task_4_a_window_ends_the_view_backwards",
        breaks="_attend_alike: with a window, it attends to the last window of these tokens",
    ),
    Mutant(
        name="all-are-as-long-as-the-first",
        story="Uses the first request's length for all: the requests have the same number of blocks, but not of "
              "tokens.",
        replace="    lengths = np.array(context_lens)[:, None, None]\n",
        by="    lengths = np.full(num_requests, context_lens[0])[:, None, None]\n",
        killed_by="test_task_4_requests_alike_are_each_as_alone",
        breaks="_attend_alike: their lengths may differ, by less than a block",
    ),
    Mutant(
        name="garbage-gets-weight-0",
        story="Masks the slots after the context but leaves their content in the values: 0 times NaN is NaN.",
        replace="    values = mx.where(mx.array(is_written)[:, None], values, 0)",
        by="    values = values",
        killed_by="test_task_4_what_stands_after_a_context_does_not_matter",
        breaks=("_attend_alike: the content of the slots after a context does not matter, even if it is NaN",
                "invariant 4: The slots after a context do not matter, even if they hold NaN"),
    ),
    Mutant(
        name="nan-is-taken-for-garbage",
        story="Replaces every value that is not finite by 0, even inside the context: a broken network looks healthy.",
        replace="    values = mx.where(mx.array(is_written)[:, None], values, 0)",
        by="    values = mx.where(mx.isnan(values) | mx.isinf(values), 0, values)",
        killed_by="test_task_4_what_stands_in_a_context_shows_even_if_it_is_nan",
        breaks="_attend_alike: if a query sees a value that is NaN, its result contains NaN",
    ),
    Mutant(
        name="garbage-is-masked-by-adding",
        story="Adds -inf to the scores of garbage keys instead of replacing them: NaN minus inf is NaN.",
        replace="mask=mx.array(sees)[:, None])\n",
        by="mask=mx.array(np.where(sees, 0, -np.inf)[:, None]).astype(queries.dtype))\n",
        killed_by="test_task_4_what_stands_after_a_context_does_not_matter",
        breaks="_attend_alike: the content of the slots after a context does not matter, even if it is NaN",
    ),
    Mutant(
        name="tables-are-not-cut",
        story="Does not cut the tables: with extra blocks they do not form a rectangle, or the rectangle is too wide.",
        replace="[list(table[:num_blocks]) for table in block_tables]",
        by="[list(table) for table in block_tables]",
        killed_by="test_task_4_what_stands_after_a_context_does_not_matter",
        breaks=("_attend_alike: a table may be longer than its context needs, and tables may differ in length",
                "module: Ignore the entries after the context's last block"),
    ),
    Mutant(
        name="result-in-float32",
        story="Computes in float32 for safety and forgets to convert back.",
        replace="    return out.swapaxes(1, 2)\n",
        by="    return out.swapaxes(1, 2).astype(mx.float32)\n",
        killed_by="test_task_4_the_result_has_the_type_of_the_queries",
        breaks="_attend_alike: an array of the shape and the type of queries",
    ),
    # ---- Task 5
    Mutant(
        name="groups-by-blocks-alone",
        story="Assumes that all requests have as many queries as the first one.",
        replace="    for shape in dict.fromkeys(shapes):\n",
        by="    shapes = [(shapes[0][0], num_blocks) for _, num_blocks in shapes]\n"
           "    for shape in dict.fromkeys(shapes):\n",
        killed_by="test_task_5_decodes_and_chunks_in_one_batch",
        breaks="paged_attention: In a ragged batch the requests may differ in these numbers",
    ),
    Mutant(
        name="results-stay-in-groups",
        story="Concatenates the groups and does not restore the order: right if the batch happens to be sorted.",
        replace="    return mx.concatenate(outs)[mx.array(np.argsort(rows_of_outs))]\n",
        by="    return mx.concatenate(outs)\n",
        killed_by="test_task_5_results_stand_in_the_order_of_the_queries",
        breaks="paged_attention: be in any order",
    ),
    Mutant(
        name="sorts-by-where-it-came-from",
        story="Indexes with the rows themselves, which applies the inverse permutation: right if only pairs are "
              "swapped.",
        replace="    return mx.concatenate(outs)[mx.array(np.argsort(rows_of_outs))]\n",
        by="    return mx.concatenate(outs)[mx.array(rows_of_outs)]\n",
        killed_by="test_task_5_results_stand_in_the_order_of_the_queries",
        breaks="paged_attention: Each row of the result is the same as if its request were alone",
    ),
    Mutant(
        name="groups-take-the-first-tables",
        story="Groups the queries but not the tables.",
        replace="[block_tables[i] for i in members]",
        by="block_tables[:len(members)]",
        killed_by="test_task_5_decodes_and_chunks_in_one_batch",
        breaks=("paged_attention: Each row of the result is the same as if its request were alone",
                "invariant 5: which other requests are in the batch"),
    ),
    Mutant(
        name="groups-forget-the-window",
        story="Calls the inner attention without the window.",
        replace=" scale,\n                                    window))\n",
        by=" scale))\n",
        killed_by="test_task_5_random_batches",
        breaks="paged_attention: _attend_alike says what a query sees",
    ),
    Mutant(
        name="every-block-is-read-once",
        story="Reads a block only for the first request whose table names it, and gives the other requests the null "
              "block.",
        replace="        members = [i for i, other in enumerate(shapes) if other == shape]\n",
        by="        members = [i for i, other in enumerate(shapes) if other == shape]\n"
           "        is_read = set(block_tables[members[0]])\n"
           "        block_tables = [table if i == members[0] else [0 if b in is_read else b for b in table]\n"
           "                        for i, table in enumerate(block_tables)]\n",
        killed_by="test_task_5_requests_may_share_blocks",
        breaks=("paged_attention: and share blocks",
                "invariant 5: which requests share them"),
    ),
    Mutant(
        name="blocks-in-order-of-their-ids",
        story="Sorts the table to read memory in order: right as long as the blocks were allocated in order.",
        replace="[list(table[:num_blocks]) for table in block_tables]",
        by="[sorted(table[:num_blocks]) for table in block_tables]",
        killed_by="test_task_5_where_blocks_lie_does_not_show",
        breaks="invariant 5: which blocks are used",
    ),
    # ---- Task 6
    Mutant(
        name="positions-of-the-batch",
        story="Rotates every token by its place in the batch. This is right for the first request.",
        replace="mx.array(positions.astype(np.int32)), attend)\n",
        by="mx.arange(len(token_ids)), attend)\n",
        killed_by="test_task_6_chunks_are_as_the_whole_prompt",
        breaks=("ModelRunner.step: self.model(token_ids, positions, attend) gives the hidden states of the flat "
                "batch",
                "invariant 6: The logits equal those of the dense model"),
    ),
    Mutant(
        name="attends-before-it-writes",
        story="Reads the pool as it was before the step: a token does not even see itself.",
        replace="            self.cache.write(layer, keys_values, slots)\n"
                "            return self.attention(queries, self.cache.pools[layer], block_tables, context_lens, "
                "query_starts,\n"
                "                                  self.scale, **self.options[layer])\n",
        by="            out = self.attention(queries, self.cache.pools[layer], block_tables, context_lens,\n"
           "                                 query_starts, self.scale, **self.options[layer])\n"
           "            mx.eval(out)\n"
           "            self.cache.write(layer, keys_values, slots)\n"
           "            return out\n",
        killed_by="test_task_6_a_prompt_is_computed_as_by_the_dense_model",
        breaks=("ModelRunner.step: in every layer all keys and values were written before any were read",
                "invariant 2: In every layer all writes come before the first read"),
    ),
    Mutant(
        name="writes-and-attends-request-by-request",
        story="Each request writes its own K/V and attends at once: it cannot see what a later request of the step "
              "writes.",
        replace="            self.cache.write(layer, keys_values, slots)\n"
                "            return self.attention(queries, self.cache.pools[layer], block_tables, context_lens, "
                "query_starts,\n"
                "                                  self.scale, **self.options[layer])\n",
        by="            outs = []\n"
           "            for i, (start, end) in enumerate(zip(query_starts, query_starts[1:])):\n"
           "                self.cache.write(layer, keys_values[start:end], slots[start:end])\n"
           "                outs.append(self.attention(\n"
           "                    queries[start:end], self.cache.pools[layer], [block_tables[i]], [context_lens[i]],\n"
           "                    [0, end - start], self.scale, **self.options[layer]))\n"
           "            return mx.concatenate(outs)\n",
        killed_by="test_task_6_requests_of_one_step_may_share_a_block",
        breaks="ModelRunner.step: a request may read what another request writes in the same step",
    ),
    Mutant(
        name="copies-after-the-step",
        story="Makes the copies after the computation: their destinations have already been read by then.",
        replace="        self.cache.copy_blocks(copies)\n        block_tables = [",
        by="        if copies:\n            logits = self.step(requests)\n            mx.eval(logits)\n"
           "            self.cache.copy_blocks(copies)\n            return logits\n        block_tables = [",
        killed_by="test_task_6_copies_are_made_before_anything_is_written",
        breaks=("ModelRunner.step: copies were made before anything was written",
                "invariant 2: Copies come first, then writes"),
    ),
    Mutant(
        name="the-first-token-has-the-logits",
        story="Takes the first token of each request. This is right for decodes.",
        replace="                wanted.append(end - 1)\n",
        by="                wanted.append(start)\n",
        killed_by="test_task_6_a_prompt_is_computed_as_by_the_dense_model",
        breaks="ModelRunner.step: for any other request with needs_logits: a row for its last token",
    ),
    Mutant(
        name="everybody-gets-logits",
        story="Returns a row for each request, whether it needs one or not.",
        replace="            elif request.needs_logits:\n",
        by="            else:\n",
        killed_by="test_task_6_only_requests_that_need_logits_get_them",
        breaks="ModelRunner.step: for the remaining requests: no row",
    ),
    Mutant(
        name="nobody-wants-floats",
        story="An empty list becomes an array of float32, which cannot be an index.",
        replace="        return self.model.logits(hidden[mx.array(wanted, dtype=mx.int32)])\n",
        by="        return self.model.logits(hidden[mx.array(wanted)])\n",
        killed_by="test_task_6_no_request_needs_logits",
        breaks="ModelRunner.step: if no logits are wanted, the shape is (0, vocab_size)",
    ),
    Mutant(
        name="logits-first-then-the-choice",
        story="Computes the logits of all tokens and then takes the wanted rows. The result is the same.",
        replace="        return self.model.logits(hidden[mx.array(wanted, dtype=mx.int32)])\n",
        by="        return self.model.logits(hidden)[mx.array(wanted, dtype=mx.int32)]\n",
        killed_by="test_task_6_logits_are_computed_only_where_they_are_wanted",
        breaks="ModelRunner.step: was called with the hidden states of the wanted tokens only",
    ),
    Mutant(
        name="all-logits-if-anybody-wants-one",
        story="Skips the logits when no request wants any, and computes all of them when one request does.",
        replace="        return self.model.logits(hidden[mx.array(wanted, dtype=mx.int32)])\n",
        by="        if not wanted:\n"
           "            return mx.zeros((0, self.model.config.vocab_size))\n"
           "        return self.model.logits(hidden)[mx.array(wanted)]\n",
        killed_by="test_task_6_logits_are_computed_only_where_they_are_wanted",
        breaks="ModelRunner.step: was called with the hidden states of the wanted tokens only",
    ),
    Mutant(
        name="step-keeps-the-pools-of-before",
        story="Keeps views of the old pools, to undo a failed step. Each step then writes into copies.",
        replace="        block_tables = [request.block_ids for request in requests]\n",
        by="        self.before = [pool.reshape(-1) for pool in self.cache.pools]\n"
           "        mx.eval(self.before)\n"
           "        block_tables = [request.block_ids for request in requests]\n",
        killed_by="test_task_6_a_step_leaves_the_pools_where_they_are",
        breaks="ModelRunner.step: the step held no pool, and no view of a pool, while it wrote",
    ),
    Mutant(
        name="views-outlive-their-step",
        story="Keeps views of the pools after the step, and evaluates each layer's write at once. At the next write "
              "the pool is still in use.",
        replace="            self.cache.write(layer, keys_values, slots)\n",
        by="            self.cache.write(layer, keys_values, slots)\n"
           "            mx.eval(self.cache.pools[layer])\n"
           "            self.views = [pool.reshape(-1) for pool in self.cache.pools]\n"
           "            mx.eval(self.views)\n",
        killed_by="test_task_6_a_step_leaves_the_pools_where_they_are",
        breaks="ModelRunner.step: the pools were written in place",
    ),
    Mutant(
        name="nothing-wanted-nothing-done",
        story="Returns early when no request needs logits: the chunk's keys and values are never written.",
        replace="        self.cache.copy_blocks(copies)\n        block_tables = [",
        by="        self.cache.copy_blocks(copies)\n"
           "        if not any(request.needs_logits or request.needs_all_logits for request in requests):\n"
           "            return mx.zeros((0, self.model.config.vocab_size))\n"
           "        block_tables = [",
        killed_by="test_task_6_no_request_needs_logits",
        breaks="ModelRunner.step: the keys and values of all tokens are in their slots, even if no logits are wanted",
    ),
    Mutant(
        name="all-logits-only-if-the-last-is-needed",
        story="Checks needs_logits first: a chunk in the middle of a prompt that wants all its rows gets none.",
        replace="            if request.needs_all_logits:\n",
        by="            if request.needs_all_logits and request.needs_logits:\n",
        killed_by="test_task_6_all_logits_of_a_request",
        breaks="ModelRunner.step: for a request with needs_all_logits: a row for each of its token_ids",
    ),
    Mutant(
        name="the-last-row-twice",
        story="Uses two separate conditions: a request with both flags gets its last row twice.",
        replace="            elif request.needs_logits:\n",
        by="            if request.needs_logits:\n",
        killed_by="test_task_6_all_logits_of_a_request",
        breaks="ModelRunner.step: for any other request with needs_logits",
    ),
    Mutant(
        name="all-logits-come-last",
        story="Collects the single rows first, then the rows of requests that want all logits.",
        replace="            if request.needs_all_logits:\n"
                "                wanted += range(start, end)\n"
                "            elif request.needs_logits:\n"
                "                wanted.append(end - 1)\n",
        by="            if request.needs_logits and not request.needs_all_logits:\n"
           "                wanted.append(end - 1)\n"
           "        for request, start, end in zip(requests, query_starts, query_starts[1:]):\n"
           "            if request.needs_all_logits:\n"
           "                wanted += range(start, end)\n",
        killed_by="test_task_6_all_logits_of_a_request",
        breaks="ModelRunner.step: in the order of requests",
    ),
    Mutant(
        name="windows-are-forgotten",
        story="Calls attention without the options of the layer.",
        replace="self.scale, **self.options[layer])\n",
        by="self.scale)\n",
        killed_by="test_task_6_layers_have_windows_of_their_own",
        breaks="ModelRunner.step: the keyword argument window only in layers that have a window (self.options[layer])",
    ),
    Mutant(
        name="one-window-for-all-layers",
        story="Uses the options of the last layer for all layers.",
        replace="self.scale, **self.options[layer])\n",
        by="self.scale, **self.options[-1])\n",
        killed_by="test_task_6_layers_have_windows_of_their_own",
        breaks="ModelRunner.step: the keyword argument window only in layers that have a window (self.options[layer])",
    ),
    Mutant(
        name="window-is-always-passed",
        story="Passes window=None where there is no window: an attention function without that parameter fails.",
        replace="self.scale, **self.options[layer])\n",
        by="self.scale, **{\"window\": None, **self.options[layer]})\n",
        killed_by="test_task_6_attention_is_called_as_promised",
        breaks="ModelRunner.step: self.attention got the keyword argument window only in layers that have a window",
    ),
    Mutant(
        name="attention-built-in",
        story="Always calls the paged_attention of this file and ignores the function that was passed in.",
        replace="            return self.attention(queries,",
        by="            return paged_attention(queries,",
        killed_by="test_task_6_attention_is_called_as_promised",
        breaks="ModelRunner.step: self.attention was called with all requests of the step, in their order, as "
               "attention(queries, pool, block_tables, context_lens, query_starts, scale)",
    ),
    Mutant(
        name="rows-by-context",
        story="Computes the starts from the context lengths: right as long as every request computes its whole prompt.",
        replace="        query_starts = [0, *np.cumsum([len(request.token_ids) for request in requests]).tolist()]\n",
        by="        query_starts = [0, *np.cumsum(context_lens).tolist()]\n",
        killed_by="test_task_6_a_batch_is_as_each_request_alone",
        breaks="ModelRunner.step: for any other request with needs_logits: a row for its last token",
    ),
]
