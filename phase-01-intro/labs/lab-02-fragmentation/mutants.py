from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="waste-is-measured-against-the-tokens",
        story="Divides the idle slots by the used ones: 'four times as much waste as use' instead of '80 % waste'.",
        replace="    return 1.0 - sum(lengths) / (max_len * len(lengths))\n",
        by="    return (max_len * len(lengths) - sum(lengths)) / sum(lengths)\n",
        killed_by="test_task_1_waste_of_a_small_example",
    ),
    Mutant(
        name="reservation-calls-all-idle-slots-internal",
        story="Does not tell slots that are still to be used from slots that never will.",
        replace="        reserved += request.num_output_tokens - generated\n"
                "        internal += max_len - request.num_tokens\n",
        by="        internal += max_len - request.num_prompt_tokens - generated\n",
        killed_by="test_task_1_split_of_a_single_request",
    ),
    Mutant(
        name="blocks-needed-always-adds-one",
        story="num_tokens // block_size + 1: one block too many whenever the last one is exactly full.",
        replace="    return (num_tokens + block_size - 1) // block_size\n",
        by="    return num_tokens // block_size + 1\n",
        killed_by="test_task_2_blocks_needed_at_the_edges",
    ),
    Mutant(
        name="blocks-needed-rounds-down",
        story="Forgets the partly filled last block.",
        replace="    return (num_tokens + block_size - 1) // block_size\n",
        by="    return num_tokens // block_size\n",
        killed_by="test_task_2_blocks_needed_at_the_edges",
    ),
    Mutant(
        name="blocks-needed-divides-in-floats",
        story="A float division and a ceiling: right until the numbers outgrow 53 bits.",
        replace="    return (num_tokens + block_size - 1) // block_size\n",
        by="    return int(np.ceil(num_tokens / block_size))\n",
        killed_by="test_task_2_blocks_needed_at_the_edges",
    ),
    Mutant(
        name="paging-averages-the-requests",
        story="The mean of each request's share: a tiny request that wastes 15 of 16 slots counts like a long one.",
        replace="    return 1.0 - sum(lengths) / num_slots\n",
        by="    return sum(1.0 - n / (blocks_needed(n, block_size) * block_size) for n in lengths) / len(lengths)\n",
        killed_by="test_task_2_waste_is_a_share_of_all_slots",
    ),
    Mutant(
        name="allocate-leaves-holes-of-size-zero",
        story="Shrinks a hole that fits exactly to size 0 and keeps it in the list.",
        replace="[(start + num_slots, size - num_slots)] if size > num_slots else []\n",
        by="[(start + num_slots, size - num_slots)]\n",
        killed_by="test_task_3_a_perfect_fit_leaves_no_empty_hole",
    ),
    Mutant(
        name="allocate-is-best-fit",
        story="Takes the tightest hole. A fair policy, but another one: the contract says the leftmost.",
        replace="        for i, (start, size) in enumerate(self._holes):\n",
        by="        for i, (start, size) in sorted(enumerate(self._holes), key=lambda hole: hole[1][1]):\n",
        killed_by="test_task_4_the_leftmost_hole_that_is_large_enough_is_used",
    ),
    Mutant(
        name="allocate-hands-out-scattered-slots",
        story="Counts free slots instead of looking at the hole, and hands out a run that reaches into a neighbour.",
        replace="            if size >= num_slots:\n",
        by="            if self.num_free_slots >= num_slots:\n",
        killed_by="test_task_4_enough_free_slots_but_no_hole",
    ),
    Mutant(
        name="free-does-not-merge-to-the-left",
        story="Looks for a hole behind the freed run only.",
        replace="        if i > 0 and sum(self._holes[i - 1]) == start:\n",
        by="        if False:\n",
        killed_by="test_task_4_neighbouring_holes_merge",
    ),
    Mutant(
        name="free-does-not-merge-to-the-right",
        story="Looks for a hole before the freed run only; freeing in order never shows it.",
        replace="        if i < len(self._holes) and self._holes[i][0] == start + size:\n",
        by="        if False:\n",
        killed_by="test_task_4_neighbouring_holes_merge",
    ),
    Mutant(
        name="free-merges-holes-that-do-not-touch",
        story="Takes the next hole for a neighbour without looking: slots that somebody uses become free.",
        replace="        if i < len(self._holes) and self._holes[i][0] == start + size:\n",
        by="        if i < len(self._holes):\n",
        killed_by="test_task_4_long_random_use_agrees_with_a_row_of_slots",
    ),
    Mutant(
        name="free-appends-the-hole-at-the-end",
        story="Holes in the order they were freed: first fit is no longer leftmost, and neighbours are not found.",
        replace="        self._holes[first:last] = [(start, size)]\n",
        by="        self._holes[first:last] = []\n        self._holes.append((start, size))\n",
        killed_by="test_task_4_the_leftmost_hole_that_is_large_enough_is_used",
    ),
    Mutant(
        name="free-twice-is-ignored",
        story="Answers an invalid free with silence; the bug that caused it shows up somewhere else, much later.",
        replace='            raise RuntimeError(f"free({start}): no allocated run starts at slot {start}")\n',
        by="            return\n",
        killed_by="test_task_4_invalid_free_is_refused_at_once",
    ),
    Mutant(
        name="free-raises-after-it-changed-something",
        story="Records the hole and then finds out that there was no such run.",
        replace='            raise RuntimeError(f"free({start}): no allocated run starts at slot {start}")\n',
        by="            self._holes.append((start, 1))\n"
           '            raise RuntimeError(f"free({start}): no allocated run starts at slot {start}")\n',
        killed_by="test_task_4_invalid_free_is_refused_at_once",
    ),
    Mutant(
        name="paged-fit-counts-slots-instead-of-blocks",
        story="Adds up tokens: the empty end of every last block is forgotten.",
        replace="    num_free_blocks = num_slots // block_size\n",
        by="    num_free_blocks = num_slots\n    block_size = 1\n",
        killed_by="test_task_5_paging_admits_by_blocks",
    ),
    Mutant(
        name="paged-fit-lets-later-requests-overtake",
        story="Skips a request that does not fit and goes on with the next ones.",
        replace="    for num_admitted, length in enumerate(lengths):\n"
                "        num_free_blocks -= blocks_needed(length, block_size)\n"
                "        if num_free_blocks < 0:\n"
                "            return num_admitted\n"
                "    return len(lengths)\n",
        by="    num_admitted = 0\n"
           "    for length in lengths:\n"
           "        if blocks_needed(length, block_size) <= num_free_blocks:\n"
           "            num_free_blocks -= blocks_needed(length, block_size)\n"
           "            num_admitted += 1\n"
           "    return num_admitted\n",
        killed_by="test_task_5_paging_is_first_come_first_served",
    ),
    Mutant(
        name="sweep-divides-slots-by-the-block-size",
        story="Takes mean length / block size for the mean table: forgets that every request rounds up on its own.",
        replace="sum(table_lens) / len(table_lens)",
        by="sum(lengths) / block_size / len(lengths)",
        killed_by="test_task_6_rows_of_a_small_sweep",
    ),
]
