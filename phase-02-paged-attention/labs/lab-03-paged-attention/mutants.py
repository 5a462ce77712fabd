"""Wrong solutions of lab 2.3, each with the test that must catch it."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="slots-run-on-from-the-first-block",
        story="Looks up the first block only and counts on from there, as if a table's blocks lay side by side.",
        replace="    return block_ids * block_size + positions % block_size\n",
        by="    return block_ids[0] * block_size + first_position % block_size + np.arange(num_tokens)\n",
        killed_by="test_task_1_positions_go_through_the_table",
        breaks=("invariant 1: Position p lives in block table[p // block_size]",
                "slot_mapping: Position p is in block block_table[p // block_size]"),
    ),
    Mutant(
        name="a-step-always-starts-a-block",
        story="Counts offsets from the first token of the step, not from the first token of the sequence.",
        replace="    return block_ids * block_size + positions % block_size\n",
        by="    return block_ids * block_size + np.arange(num_tokens) % block_size\n",
        killed_by="test_task_1_start_inside_a_block",
        breaks=("invariant 1: at offset p % block_size",
                "slot_mapping: at offset p % block_size"),
    ),
    Mutant(
        name="no-slots-are-floats",
        story="An empty array of numpy is one of floats, and no index.",
        replace="    positions = np.arange(first_position,",
        by="""    if num_tokens == 0:
        return np.zeros(0)
    positions = np.arange(first_position,""",
        killed_by="test_task_1_slots_are_int64",
        breaks="slot_mapping: for no tokens it is empty, and still int64",
    ),
    Mutant(
        name="no-slots-of-no-table-are-floats",
        story="Leaves the type to numpy: of ints it makes an array of ints, of an empty list one of floats.",
        replace="    block_ids = np.asarray(block_table, dtype=np.int64)",
        by="    block_ids = np.array(list(map(int, block_table)))",
        killed_by="test_task_1_slots_are_int64",
        breaks="slot_mapping: for no tokens it is empty, and still int64",
    ),
    Mutant(
        name="slots-of-32-bits",
        story="Block ids are small, so int32 will do; slots are not.",
        replace="    return block_ids * block_size + positions % block_size\n",
        by="    return (block_ids * block_size + positions % block_size).astype(np.int32)\n",
        killed_by="test_task_1_slots_are_int64",
        breaks="slot_mapping: the slots in the order of the positions, an int64 array [num_tokens]",
    ),
    Mutant(
        name="a-table-of-32-bits-stays-one",
        story="Widens the ids of a list, but multiplies those of an int32 array in 32 bits; the sum is int64 again.",
        replace="np.asarray(block_table, dtype=np.int64)",
        by="np.asarray(block_table, dtype=None if len(block_table) else np.int64)",
        killed_by="test_task_1_slots_are_int64",
        breaks="slot_mapping: block_table is a list of ints, or an array of int32",
    ),
    Mutant(
        name="fewer-than-no-tokens",
        story="Takes a negative number of tokens for none, before it checks.",
        replace="    check_slot_mapping_inputs(block_table, first_position,",
        by="""    num_tokens = max(num_tokens, 0)
    check_slot_mapping_inputs(block_table, first_position,""",
        killed_by="test_task_1_negative_numbers_are_refused",
        breaks="slot_mapping: ValueError for what check_slot_mapping_inputs refuses",
    ),
    Mutant(
        name="no-tokens-fit-anywhere",
        story="Returns before the check if there are no tokens.",
        replace="    check_slot_mapping_inputs(block_table, first_position,",
        by="""    if num_tokens == 0:
        return np.zeros(0, dtype=np.int64)
    check_slot_mapping_inputs(block_table, first_position,""",
        killed_by="test_task_1_a_table_too_short_is_refused",
        breaks="slot_mapping: even if there are no tokens",
    ),
    Mutant(
        name="negative-ids-wrap-around",
        story="Does not call the check: -9 gives a negative slot, and numpy counts that from the end of the pool.",
        replace="    check_slot_mapping_inputs(block_table, first_position, num_tokens, block_size)\n",
        by="",
        killed_by="test_task_1_negative_numbers_are_refused",
        breaks="slot_mapping: ValueError for what check_slot_mapping_inputs refuses",
    ),
    Mutant(
        name="looks-at-the-table-before-the-step",
        story="Checks all positions from 0 on: refuses a -1 in front of this step's first block.",
        replace="    check_slot_mapping_inputs(block_table, first_position, num_tokens, block_size)\n",
        by="    check_slot_mapping_inputs(block_table, 0, first_position + num_tokens, block_size)\n",
        killed_by="test_task_1_padding_and_no_tokens",
        breaks="slot_mapping: the same slots whatever the table has before and after these positions",
    ),
    Mutant(
        name="looks-at-the-whole-table",
        story="Refuses a -1 anywhere in the table: padding, or blocks that were given back.",
        replace="    positions = np.arange(first_position,",
        by="""    if len(block_table) and min(block_table) < 0:
        raise ValueError(f"slot_mapping: block id {min(block_table)}")
    positions = np.arange(first_position,""",
        killed_by="test_task_1_padding_and_no_tokens",
        breaks="slot_mapping: those entries are padding",
    ),
    Mutant(
        name="write-goes-into-a-copy",
        story="transpose().reshape() of a pool is a copy, so the assignment is lost without a word.",
        replace="    k_pool[block_ids, :, offsets] = keys\n",
        by="    k_pool.transpose(0, 2, 1, 3).reshape(-1, *k_pool.shape[1::2])[slots] = keys\n",
        killed_by="test_task_2_each_token_lands_in_its_slot",
        breaks="write_kv: those slots hold the new vectors, in the pools themselves",
    ),
    Mutant(
        name="write-by-the-wrong-layout",
        story="reshape() without the transpose is a view, but of rows that mix kv heads and offsets.",
        replace="    v_pool[block_ids, :, offsets] = values\n",
        by="    v_pool.reshape(-1, *v_pool.shape[1::2])[slots] = values\n",
        killed_by="test_task_2_nothing_else_changes",
        breaks=("invariant 2: A write changes its own slots and no other number in the pools",
                "write_kv: every other number in the pools is what it was"),
    ),
    Mutant(
        name="write-cleans-up",
        story="Makes numbers of the NaN that lies in the blocks that it writes to.",
        replace="    k_pool[block_ids, :, offsets] = keys\n",
        by="""    k_pool[block_ids] = np.nan_to_num(k_pool[block_ids])
    k_pool[block_ids, :, offsets] = keys
""",
        killed_by="test_task_2_nothing_else_changes",
        breaks="invariant 2: no other number in the pools",
    ),
    Mutant(
        name="write-nothing-is-an-error",
        story="An empty list becomes an array of floats, and numpy takes no floats for an index.",
        replace="    slots = np.asarray(slots, dtype=np.int64)\n",
        by="    slots = np.asarray(slots)\n",
        killed_by="test_task_2_nothing_else_changes",
        breaks="write_kv: it may be empty",
    ),
    Mutant(
        name="write-in-the-order-of-the-slots",
        story="Sorts the slots to write memory front to back, and leaves the tokens as they are.",
        replace="""    block_ids, offsets = slots // block_size, slots % block_size
    # Two index arrays""",
        by="""    slots = np.sort(slots)
    block_ids, offsets = slots // block_size, slots % block_size
    # Two index arrays""",
        killed_by="test_task_2_each_token_lands_in_its_slot",
        breaks="write_kv: distinct slots in any order",
    ),
    Mutant(
        name="write-unchecked",
        story="Does not call the check: numpy stretches an array of a wrong shape, or refuses it in its own words.",
        replace="    check_write_inputs(k_pool, v_pool, keys, values, slots)\n",
        by="",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks="write_kv: ValueError for what check_write_inputs refuses",
    ),
    Mutant(
        name="write-lets-numpy-broadcast",
        story="Stretches the keys over the slots before the check: one token's keys are written to every slot.",
        replace="    check_write_inputs(k_pool, v_pool, keys, values, slots)\n",
        by="""    keys = np.broadcast_to(keys, (len(slots), *k_pool.shape[1::2]))
    check_write_inputs(k_pool, v_pool, keys, values, slots)
""",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks="write_kv: keys and values are [len(slots), num_kv_heads, head_dim]",
    ),
    Mutant(
        name="write-checks-each-slot-as-it-comes",
        story="One token at a time, checked and written: those before the bad one are in the pools.",
        replace="    check_write_inputs(k_pool, v_pool, keys, values, slots)\n",
        by="""    for i, slot in enumerate(slots):
        check_write_inputs(k_pool, v_pool, keys[i:i + 1], values[i:i + 1], [slot])
        k_pool[slot // k_pool.shape[2], :, slot % k_pool.shape[2]] = keys[i]
""",
        killed_by="test_task_2_slots_out_of_range_are_refused_before_the_first_write",
        breaks=("invariant 6: A call that raises has changed nothing",
                "write_kv: nothing is written then"),
    ),
    Mutant(
        name="write-counts-slots-from-the-end",
        story="Slot -1 is the last one, says numpy: the last token of another request.",
        replace="    check_write_inputs(k_pool, v_pool, keys, values, slots)\n",
        by="""    num_slots = k_pool.shape[0] * k_pool.shape[2]
    slots = [slot + num_slots if slot < 0 else slot for slot in slots]
    check_write_inputs(k_pool, v_pool, keys, values, slots)
""",
        killed_by="test_task_2_slots_out_of_range_are_refused_before_the_first_write",
        breaks="write_kv: ValueError for what check_write_inputs refuses",
    ),
    Mutant(
        name="write-trusts-the-second-pool",
        story="Checks the keys and k_pool alone: the values come from the same layer, so their shape will be right.",
        replace="    check_write_inputs(k_pool, v_pool, keys, values, slots)\n",
        by="    check_write_inputs(k_pool, k_pool, keys, keys, slots)\n",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks="write_kv: both pools are [num_blocks, num_kv_heads, block_size, head_dim]",
    ),
    Mutant(
        name="write-checks-the-values-too-late",
        story="Checks and writes the keys, then checks and writes the values.",
        replace="""    check_write_inputs(k_pool, v_pool, keys, values, slots)
    block_size = k_pool.shape[2]
    slots = np.asarray(slots, dtype=np.int64)
    block_ids, offsets = slots // block_size, slots % block_size
    # Two index arrays with a slice between them: numpy puts their common axis, the token, first.
    k_pool[block_ids, :, offsets] = keys
""",
        by="""    check_write_inputs(k_pool, k_pool, keys, keys, slots)
    block_size = k_pool.shape[2]
    slots = np.asarray(slots, dtype=np.int64)
    block_ids, offsets = slots // block_size, slots % block_size
    k_pool[block_ids, :, offsets] = keys
    check_write_inputs(k_pool, v_pool, keys, values, slots)
""",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks=("invariant 6: A call that raises has changed nothing",
                "write_kv: nothing is written then"),
    ),
    Mutant(
        name="write-counts-the-numbers",
        story="As many numbers as are needed, in whatever shape.",
        replace="    check_write_inputs(k_pool, v_pool, keys, values, slots)\n",
        by="""    keys = keys.reshape(-1, *k_pool.shape[1::2])
    check_write_inputs(k_pool, v_pool, keys, values, slots)
""",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks="write_kv: keys and values are [len(slots), num_kv_heads, head_dim]",
    ),
    Mutant(
        name="gather-returns-whole-blocks",
        story="Takes the blocks and forgets to cut the last one at num_tokens.",
        replace="    return pool[slots // block_size, :, slots % block_size]\n",
        by="    whole = pool[list(block_table[:-(-num_tokens // block_size)])].transpose(0, 2, 1, 3)\n"
           "    return whole.reshape(-1, *whole.shape[2:])\n",
        killed_by="test_task_3_the_rest_of_the_last_block_stays_out",
        breaks="gather_kv: nothing else: not the rest of the last block",
    ),
    Mutant(
        name="gather-checks-the-padding",
        story="Checks the table as long as it is, and refuses an id in an entry that is never read.",
        replace="    check_gather_inputs(pool, block_table, num_tokens)\n",
        by="    check_gather_inputs(pool, block_table, len(block_table) * pool.shape[2])\n",
        killed_by="test_task_3_the_rest_of_the_last_block_stays_out",
        breaks="gather_kv: nothing of the table's padding, which may be -1",
    ),
    Mutant(
        name="gather-leaves-it-to-numpy",
        story="Does not call the check: slot_mapping refuses a short table, but a block that the pool does not have is "
              "an IndexError of numpy.",
        replace="    check_gather_inputs(pool, block_table, num_tokens)\n",
        by="",
        killed_by="test_task_3_bad_tables_are_refused",
        breaks="gather_kv: ValueError for what check_gather_inputs refuses",
    ),
    Mutant(
        name="gather-takes-a-short-table",
        story="Takes as many tokens as the table has.",
        replace="    check_gather_inputs(pool, block_table, num_tokens)\n",
        by="""    num_tokens = min(num_tokens, len(block_table) * pool.shape[2])
    check_gather_inputs(pool, block_table, num_tokens)
""",
        killed_by="test_task_3_bad_tables_are_refused",
        breaks="gather_kv: ValueError for what check_gather_inputs refuses",
    ),
    Mutant(
        name="gather-sorts-the-table",
        story="Reads the pool from front to back; the table had an order.",
        replace="    slots = slot_mapping(block_table, 0, num_tokens, block_size)\n",
        by="    slots = slot_mapping(sorted(block_table), 0, num_tokens, block_size)\n",
        killed_by="test_task_4_places_and_garbage_do_not_show",
        breaks="invariant 5: which physical blocks hold the context, or in which order",
    ),
    Mutant(
        name="gather-cleans-up",
        story="Makes numbers of what is not finite, and so hides that a request has gone wrong.",
        replace="    return pool[slots // block_size, :, slots % block_size]\n",
        by="    return np.nan_to_num(pool[slots // block_size, :, slots % block_size])\n",
        killed_by="test_task_3_the_result_is_an_array_of_its_own",
        breaks="gather_kv: each number as it is in the pool",
    ),
    Mutant(
        name="gather-gives-out-the-pool",
        story="One block is a slice of the pool: no copy, and whoever scales it scales the cache.",
        replace="    return pool[slots // block_size, :, slots % block_size]\n",
        by="""    if 0 < num_tokens <= block_size:
        return pool[block_table[0], :, :num_tokens].swapaxes(0, 1)
    return pool[slots // block_size, :, slots % block_size]
""",
        killed_by="test_task_3_the_result_is_an_array_of_its_own",
        breaks="gather_kv: an array of its own: a write to it does not change the pool",
    ),
    Mutant(
        name="gather-forgets-that-heads-come-first",
        story="Reshapes [kv_heads, block_size, head_dim] as if it were [block_size, kv_heads, head_dim].",
        replace="    return pool[slots // block_size, :, slots % block_size]\n",
        by="    blocks = pool[list(block_table[:-(-num_tokens // block_size)])]\n"
           "    return blocks.reshape(-1, pool.shape[1], pool.shape[3])[:num_tokens]\n",
        killed_by="test_task_3_positions_come_back_in_order",
        breaks="gather_kv: the vectors of these positions in order, [num_tokens, num_kv_heads, head_dim]",
    ),
    Mutant(
        name="chunk-stands-at-the-start",
        story="A mask as for a whole prompt: query i sees positions 0 to i, wherever the chunk really stands.",
        replace="    sees = np.arange(context_len) <= query_positions[:, None]",
        by="    sees = np.arange(context_len) <= np.arange(num_query_tokens)[:, None]",
        killed_by="test_task_4_a_chunk_is_causal",
        breaks="paged_attention: query i is at position context_len - num_query_tokens + i",
    ),
    Mutant(
        name="a-query-does-not-see-itself",
        story="Off by one in the mask: < for <=.",
        replace="    sees = np.arange(context_len) <= query_positions[:, None]",
        by="    sees = np.arange(context_len) < query_positions[:, None]",
        killed_by="test_task_4_decode_equals_dense",
        breaks=("invariant 4: A query sees its own position",
                "paged_attention: sees that position and all before it"),
    ),
    Mutant(
        name="values-are-added-up",
        story="Forgets to divide by the sum of the weights: right where a query sees one position.",
        replace="    weights /= weights.sum(axis=-1, keepdims=True)\n",
        by="",
        killed_by="test_task_4_decode_equals_dense",
        breaks="paged_attention: the values that it sees, weighted by the softmax of its scores",
    ),
    Mutant(
        name="heads-are-interleaved",
        story="Head h reads kv head h % num_kv_heads. With as many heads as kv heads it is right.",
        replace="    grouped = queries.reshape(num_query_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)\n",
        by="    grouped = queries.reshape(num_query_tokens, -1, num_kv_heads, head_dim).swapaxes(1, 2)\n",
        killed_by="test_task_4_heads_are_grouped",
        breaks="paged_attention: head h reads kv head h // group",
    ),
    Mutant(
        name="checks-nothing",
        story="Leaves out check_attention_inputs; numpy complains in its own words, or not at all.",
        replace="""    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_query_tokens, num_heads, head_dim = queries.shape
    num_kv_heads = """,
        by="""    num_query_tokens, num_heads, head_dim = queries.shape
    num_kv_heads = """,
        killed_by="test_task_4_bad_input_is_refused",
        breaks="paged_attention: ValueError for what check_attention_inputs refuses",
    ),
    Mutant(
        name="scores-in-float32",
        story="Half the memory, and seven digits.",
        replace="grouped, keys) * scale\n",
        by="grouped, keys).astype(np.float32) * np.float32(scale)\n",
        killed_by="test_task_4_decode_equals_dense",
        breaks="module: Arithmetic is numpy's default, float64",
    ),
    Mutant(
        name="minus-a-billion-for-infinity",
        story="A large negative number for the mask; a real score may be lower.",
        replace="    scores = np.where(sees, scores, -np.inf)\n",
        by="    scores = np.where(sees, scores, -1e9)\n",
        killed_by="test_task_4_huge_scores_do_not_overflow",
        breaks="paged_attention: sees that position and all before it",
    ),
    Mutant(
        name="one-maximum-for-all",
        story="Takes off the largest score of the whole step; a query whose scores are far below gets zeros.",
        replace="scores.max(axis=-1, keepdims=True))",
        by="scores.max())",
        killed_by="test_task_4_huge_scores_do_not_overflow",
        breaks="paged_attention: however far apart those of two queries or two heads are",
    ),
    Mutant(
        name="one-maximum-for-all-heads",
        story="Takes off a query's largest score over all heads; a head whose scores are far below divides 0 by 0.",
        replace="scores.max(axis=-1, keepdims=True))",
        by="scores.max(axis=(0, 1, 3), keepdims=True))",
        killed_by="test_task_4_huge_scores_do_not_overflow",
        breaks="paged_attention: however far apart those of two queries or two heads are",
    ),
    Mutant(
        name="exp-of-the-raw-scores",
        story="Equal on small numbers, infinite from 710 on.",
        replace="np.exp(scores - scores.max(axis=-1, keepdims=True))",
        by="np.exp(scores)",
        killed_by="test_task_4_huge_scores_do_not_overflow",
        breaks="paged_attention: the right numbers for finite scores of any size",
    ),
    Mutant(
        name="scales-the-callers-queries",
        story="Multiplies the queries in place: the caller finds them scaled, and the next layer scales them again.",
        replace="    grouped = queries.reshape",
        by="""    queries *= scale
    scale = 1.0
    grouped = queries.reshape""",
        killed_by="test_task_4_decode_equals_dense",
        breaks="paged_attention: nothing is written to the arguments",
    ),
    Mutant(
        name="zero-is-no-scale",
        story="`scale or default`: a scale of 0.0 is taken for none.",
        replace="""    if scale is None:
        scale = 1.0 / head_dim**0.5
    keys""",
        by="""    scale = scale or 1.0 / head_dim**0.5
    keys""",
        killed_by="test_task_4_scale",
        breaks="paged_attention: only None means the default, 1 / sqrt(head_dim)",
    ),
    Mutant(
        name="masks-the-garbage-instead-of-leaving-it-out",
        story="Reads the whole last block and gives what is beyond the context weight 0; 0 * NaN is NaN.",
        replace="        num_valid = min(block_size, context_len - first_position)\n",
        by="        num_valid = block_size\n",
        killed_by="test_task_5_places_and_garbage_do_not_show",
        breaks=("invariant 3: What is outside a request's context does not count",
                "module: No result may depend on either"),
    ),
    Mutant(
        name="accumulator-keeps-its-old-scale",
        story="Rescales the sum when the maximum grows, but not the accumulator.",
        replace="        accumulator = accumulator * shrink[..., None] + block_weights @ block_values\n",
        by="        accumulator = accumulator + block_weights @ block_values\n",
        killed_by="test_task_5_the_sums_follow_the_maximum",
        breaks=("paged_attention_online: what paged_attention returns",
                "paged_attention_online: the same sum with the values in it"),
    ),
    Mutant(
        name="maximum-of-the-block-only",
        story="Takes the block's own maximum as the new one: it can fall again, and then exp(old - new) overflows.",
        replace="        new_max = np.maximum(running_max, block_scores.max(axis=-1))\n",
        by="        new_max = block_scores.max(axis=-1)\n",
        killed_by="test_task_5_huge_scores_do_not_overflow",
        breaks="paged_attention_online: the largest score so far",
    ),
    Mutant(
        name="no-maximum-at-all",
        story="exp of the raw scores: equal on small numbers, infinite from 710 on.",
        replace="        new_max = np.maximum(running_max, block_scores.max(axis=-1))\n",
        by="        new_max = np.zeros_like(running_max)\n",
        killed_by="test_task_5_huge_scores_do_not_overflow",
        breaks="paged_attention_online: the right numbers for finite scores of any size",
    ),
    Mutant(
        name="the-largest-so-far-is-zero",
        story="Begins with 0 as the largest score; where all are far below it, nothing is left.",
        replace="    running_max = np.full(head_major.shape[:3], -np.inf)",
        by="    running_max = np.zeros(head_major.shape[:3])",
        killed_by="test_task_5_huge_scores_do_not_overflow",
        breaks="paged_attention_online: the right numbers for finite scores of any size",
    ),
    Mutant(
        name="one-running-maximum-per-group",
        story="Carries one maximum for all heads of a kv head; a head whose scores are far below divides 0 by 0.",
        replace="        new_max = np.maximum(running_max, block_scores.max(axis=-1))\n",
        by="        new_max = np.maximum(running_max, block_scores.max(axis=(1, 3), keepdims=True)[..., 0])\n",
        killed_by="test_task_5_huge_scores_do_not_overflow",
        breaks="paged_attention_online: however far apart those of two queries or two heads are",
    ),
    Mutant(
        name="online-scales-the-callers-queries",
        story="Multiplies the queries in place, once instead of once per block, and the caller finds them scaled.",
        replace="    head_major = queries.reshape",
        by="""    queries *= scale
    scale = 1.0
    head_major = queries.reshape""",
        killed_by="test_task_5_decode_equals_dense",
        breaks="paged_attention_online: nothing is written to the arguments",
    ),
    Mutant(
        name="online-in-name-only",
        story="Indexes the pool with the table, as gather_kv does, and then walks over that copy block by block.",
        replace="        block_keys = k_pool[block_table[index]][:, None, :num_valid]",
        by="        block_keys = k_pool[list(block_table[:index + 1])][index, :, None, :num_valid]",
        killed_by="test_task_5_reads_one_block_at_a_time",
        breaks=("paged_attention_online: Nothing is gathered",
                "paged_attention_online: each pool was read only as pool[block_id], or a part of that"),
    ),
    Mutant(
        name="the-maximum-first",
        story="Two passes: one for the largest score of all, one for the sums. Right, and every key is read twice.",
        replace="    accumulator = np.zeros(head_major.shape)\n",
        by="""    accumulator = np.zeros(head_major.shape)
    for index, first_position in enumerate(range(0, context_len, block_size)):
        num_valid = min(block_size, context_len - first_position)
        block_scores = head_major @ k_pool[block_table[index]][:, None, :num_valid].swapaxes(-1, -2) * scale
        visible = np.arange(first_position, first_position + num_valid) <= query_positions[:, None]
        running_max = np.maximum(running_max, np.where(visible, block_scores, -np.inf).max(axis=-1))
""",
        killed_by="test_task_5_reads_one_block_at_a_time",
        breaks="paged_attention_online: each of these blocks was read once, for all queries together",
    ),
    Mutant(
        name="reads-the-padding",
        story="Walks over the whole table, and gives what is past the context no weight.",
        replace="        num_valid = min(block_size, context_len - first_position)\n",
        by="""        num_valid = min(block_size, context_len - first_position)
        k_pool[block_table[-1]]
""",
        killed_by="test_task_5_reads_one_block_at_a_time",
        breaks="paged_attention_online: for blocks that hold the context",
    ),
    Mutant(
        name="reads-before-it-checks",
        story="Touches the first block to see its shape, and checks the arguments then.",
        replace="""    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_query_tokens, num_heads, head_dim = queries.shape
    _, num_kv_heads,""",
        by="""    k_pool[block_table[0]]
    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_query_tokens, num_heads, head_dim = queries.shape
    _, num_kv_heads,""",
        killed_by="test_task_5_nothing_is_read_before_the_check",
        breaks="paged_attention_online: ValueError for what check_attention_inputs refuses, before a block is read",
    ),
    Mutant(
        name="online-keeps-every-block",
        story="Reads one block at a time, and keeps a copy of each.",
        replace="        running_max = new_max\n",
        by="        running_max = new_max\n"
           "        kept = [] if index == 0 else kept  # noqa: F821\n"
           "        kept.append((block_keys.copy(), block_scores))\n",
        killed_by="test_task_5_memory_does_not_grow_with_the_context",
        breaks="paged_attention_online: neither K/V nor scores nor a mask of the whole context were kept",
    ),
    Mutant(
        name="online-masks-the-whole-context",
        story="Computes what each query sees of the whole context, before the loop over the blocks.",
        replace="""    running_max = np.full(head_major.shape[:3], -np.inf)""",
        by="""    all_visible = np.arange(context_len) <= query_positions[:, None]
    running_max = np.full(head_major.shape[:3], -np.inf)""",
        killed_by="test_task_5_memory_does_not_grow_with_the_context",
        breaks="paged_attention_online: memory does not grow with context_len",
    ),
    Mutant(
        name="rows-counted-by-context",
        story="Steps through the queries by context_lens: right as long as every request prefills its whole prompt.",
        replace="        start += query_len\n",
        by="        start += context_len\n",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: Request r owns the next query_lens[r] rows of queries",
    ),
    Mutant(
        name="everyone-decodes",
        story="Takes one query row per request, and the chunk loses all but its first.",
        replace="        rows = queries[start:start + query_len]\n",
        by="        rows = queries[start:start + 1]\n",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: Request r owns the next query_lens[r] rows of queries",
    ),
    Mutant(
        name="a-batch-in-the-callers-rows",
        story="Saves an array: each request's result is written over its queries.",
        replace="        outputs.append(paged_attention_online(rows, k_pool, v_pool, block_table, context_len))\n",
        by="""        rows[:] = paged_attention_online(rows, k_pool, v_pool, block_table, context_len)
        outputs.append(rows)
""",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: nothing is written to the arguments",
    ),
    Mutant(
        name="a-batch-is-not-scaled",
        story="Calls the attention of one request with scale 1.",
        replace="""block_table, context_len))
        start""",
        by="""block_table, context_len, 1.0))
        start""",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: what paged_attention returns for its request, with the default scale",
    ),
    Mutant(
        name="a-batch-in-the-type-of-its-queries",
        story="Cuts the result to the numbers of the queries: float32 in, float32 out.",
        replace="    return np.concatenate(outputs) if outputs",
        by="    return np.concatenate(outputs).astype(queries.dtype) if outputs",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: a float64 array of the shape of queries, even if these are float32",
    ),
    Mutant(
        name="a-padded-table-is-a-mistake",
        story="A request owns a block once, so a table that names one twice must be wrong; the second may be padding.",
        replace="    outputs = []\n",
        by="""    for block_table in block_tables:
        if len(set(block_table)) < len(block_table):
            raise ValueError(f"ragged_paged_attention: table {block_table} names a block twice")
    outputs = []
""",
        killed_by="test_task_6_sharing_is_by_table_only",
        breaks="ragged_paged_attention: tables may be padded",
    ),
    Mutant(
        name="an-empty-batch-has-no-shape",
        story="No requests, no rows, and no heads either.",
        replace="else np.zeros(queries.shape)\n",
        by="else np.zeros(0)\n",
        killed_by="test_task_6_an_empty_batch",
        breaks="ragged_paged_attention: for no requests it has no rows",
    ),
    Mutant(
        name="no-tables-no-questions",
        story="Returns an empty result before it has looked at anything else; the rows and lengths are dropped.",
        replace="    # TASK 6: ragged_paged_attention\n",
        by="""    # TASK 6: ragged_paged_attention
    if not block_tables:
        return np.zeros((0, *queries.shape[1:]))
""",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks=("ragged_paged_attention: ValueError if the numbers of tables, query_lens and context_lens differ",
                "ragged_paged_attention: if the query_lens do not add up to the rows of queries"),
    ),
    Mutant(
        name="no-rows-no-questions",
        story="Returns an empty result for no rows, whatever the tables and lengths are.",
        replace="    if not len(block_tables) == len(query_lens) == len(context_lens):\n",
        by="""    if len(queries) == 0:
        return np.zeros(queries.shape)
    if not len(block_tables) == len(query_lens) == len(context_lens):
""",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: even if there are no rows",
    ),
    Mutant(
        name="query-lens-are-not-added-up",
        story="Trusts query_lens; rows that belong to no request are dropped without a word.",
        replace="    if sum(query_lens) != queries.shape[0]:\n",
        by="    if sum(query_lens) > queries.shape[0]:\n",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: if the query_lens do not add up to the rows of queries",
    ),
    Mutant(
        name="says-only-the-sum",
        story="The message has what the query_lens add up to, and not how many rows there are.",
        replace="                         f\"but there are {queries.shape[0]} query tokens\")\n",
        by="                         \"which is not the number of query tokens\")\n",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: the message has both numbers",
    ),
    Mutant(
        name="a-decode-takes-what-there-is",
        story="Cuts a context to what its table holds, where a token is decoded.",
        replace="        rows = queries[start:start + query_len]\n",
        by="""        rows = queries[start:start + query_len]
        if query_len == 1:
            context_len = min(context_len, len(block_table) * k_pool.shape[2])
""",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: ValueError for what check_attention_inputs refuses, for one of the requests",
    ),
    Mutant(
        name="nobody-may-ask-nothing",
        story="Skips a request without queries; a scheduler that plans one has a bug.",
        replace="    for request_index, query_len in enumerate(query_lens):\n",
        by="""    asking = [r for r, query_len in enumerate(query_lens) if query_len != 0]
    block_tables, context_lens = [block_tables[r] for r in asking], [context_lens[r] for r in asking]
    query_lens = [query_lens[r] for r in asking]
    for request_index, query_len in enumerate(query_lens):
""",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: if a query_len is below 1",
    ),
    Mutant(
        name="says-only-that-it-is-too-small",
        story="The message has no query_len in it.",
        replace="query_lens[{request_index}] is {query_len}, must be at least 1",
        by="query_lens must be positive",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: the message has that number",
    ),
    Mutant(
        name="zip-drops-the-rest",
        story="More context_lens than requests: zip stops at the shortest.",
        replace="    if not len(block_tables) == len(query_lens) == len(context_lens):\n",
        by="    if len(block_tables) != len(query_lens):\n",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: ValueError if the numbers of tables, query_lens and context_lens differ",
    ),
]
