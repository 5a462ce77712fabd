from course.mutants import Mutant

MUTANTS = [
    # ---- Task 1
    Mutant(
        name="old-nodes-keep-their-replicas",
        story="Adds the replica only to nodes that it has just created.",
        replace="                node.children[block] = _Node(block, node)\n"
                "            node = node.children[block]\n"
                "            node.replicas.add(replica)\n",
        by="                node.children[block] = _Node(block, node)\n"
           "                node.children[block].replicas.add(replica)\n"
           "            node = node.children[block]\n",
        killed_by="test_task_1_replicas_have_different_parts_of_a_prompt",
        breaks=("PrefixMap.touch: of the replica is ``len(blocks)``",
                "invariant 2: has all blocks before it"),
    ),
    Mutant(
        name="the-last-replica-takes-the-node",
        story="Keeps one replica per node: whoever was sent the block last.",
        replace="            node.replicas.add(replica)\n",
        by="            node.replicas = {replica}\n",
        killed_by="test_task_1_replicas_have_different_parts_of_a_prompt",
        breaks="PrefixMap.touch: nothing has changed for the other replicas",
    ),
    Mutant(
        name="blocks-without-their-prefix",
        story="Keeps all blocks below the root, whatever came before them.",
        replace="            if block not in node.children:\n"
                "                node.children[block] = _Node(block, node)\n"
                "            node = node.children[block]\n",
        by="            if block not in self._root.children:\n"
           "                self._root.children[block] = _Node(block, self._root)\n"
           "            node = self._root.children[block]\n",
        killed_by="test_task_1_a_block_counts_after_the_blocks_before_it",
        breaks="invariant 1: only after the blocks before it",
    ),
    Mutant(
        name="goes-on-after-a-missing-block",
        story="Skips a block that is not there, and counts those after it.",
        replace="            if block not in node.children:\n                break\n",
        by="            if block not in node.children:\n                continue\n",
        killed_by="test_task_1_the_count_ends_at_the_first_block_that_is_missing",
        breaks="PrefixMap.num_cached: up to the first\n  one that it has not",
    ),
    Mutant(
        name="counts-from-zero",
        story="Numbers the blocks from 0, and returns the number of the last one.",
        replace="enumerate(blocks, start=1)",
        by="enumerate(blocks)",
        killed_by="test_task_1_a_prompt_is_found_as_far_as_it_is_known",
        breaks="PrefixMap.num_cached: how many of the first ``blocks`` it has",
    ),
    Mutant(
        name="names-replicas-with-nothing",
        story="Begins with 0 for every replica.",
        replace="        counts: dict[str, int] = {}\n        node = self._root\n",
        by="        counts: dict[str, int] = dict.fromkeys(self._nodes, 0)\n        node = self._root\n",
        killed_by="test_task_1_replicas_without_the_first_block_have_no_entry",
        breaks="PrefixMap.num_cached: no entry for any other replica",
    ),
    Mutant(
        name="asking-creates-nodes",
        story="Uses setdefault while it walks, so that asking makes an entry.",
        replace="            if block not in node.children:\n                break\n            node = "
                "node.children[block]\n"
                "            for replica in node.replicas:\n",
        by="            if block not in node.children:\n"
           "                self.touch(\"A\", blocks[:depth])\n                break\n            node = "
           "node.children[block]\n"
           "            for replica in node.replicas:\n",
        killed_by="test_task_1_asking_changes_nothing",
        breaks="PrefixMap.num_cached: changes nothing",
    ),
    Mutant(
        name="the-answer-is-kept",
        story="Returns the same dict each time, filled again: a caller's changes stay in it.",
        replace="        counts: dict[str, int] = {}\n        node = self._root\n",
        by="        counts = self.__dict__.setdefault(\"_counts\", {})\n        node = self._root\n",
        killed_by="test_task_1_an_answer_is_the_callers_own",
        breaks="PrefixMap.num_cached: no entry for any other replica",
    ),
    Mutant(
        name="counts-every-use",
        story="Counts the blocks that were sent, also those that were there.",
        replace="        return {replica: len(nodes) for replica, nodes in self._nodes.items()}\n        # END TASK\n\n"
                "    def forget_oldest",
        by="        return {replica: len(nodes) + max(0, len(nodes) - 3) for replica, nodes in self._nodes.items()}\n"
           "        # END TASK\n\n    def forget_oldest",
        killed_by="test_task_1_blocks_are_counted_once_per_replica",
        breaks="PrefixMap.num_blocks: number of blocks that each replica has",
    ),
    Mutant(
        name="looks-at-all-blocks-of-the-replica",
        story="Searches a list for every block that it moves to the end.",
        replace="        nodes = self._nodes.setdefault(replica, OrderedDict())\n",
        by="        nodes = self._nodes.setdefault(replica, OrderedDict())\n"
           "        for other in list(nodes):\n            assert other is not None\n",
        killed_by="test_task_1_a_call_does_not_look_at_all_that_is_remembered",
        breaks="PrefixMap.touch: looks at each of ``blocks`` once",
    ),
    Mutant(
        name="asks-every-replica",
        story="Looks for the prompt among all remembered prompts, one by one.",
        replace="        counts: dict[str, int] = {}\n        node = self._root\n",
        by="        counts: dict[str, int] = {}\n        node = self._root\n"
           "        for nodes in self._nodes.values():\n            for other in nodes:\n                assert "
           "other\n",
        killed_by="test_task_1_a_call_does_not_look_at_all_that_is_remembered",
        breaks="PrefixMap.num_cached: looks at each of ``blocks`` at most once",
    ),
    # ---- Task 2
    Mutant(
        name="the-first-block-is-the-oldest",
        story="Notes the blocks in the order of the prompt: the first one is forgotten first.",
        replace="        for node in reversed(path):\n",
        by="        for node in path:\n",
        killed_by="test_task_2_the_end_of_a_prompt_is_forgotten_first",
        breaks=("PrefixMap.touch: so that the first one is the newest",
                "invariant 2: the map has no holes"),
    ),
    Mutant(
        name="forgets-what-came-first",
        story="A block keeps its place when it is used again: first in, first out.",
        replace="            nodes.move_to_end(node)\n",
        by="",
        killed_by="test_task_2_using_a_block_again_makes_it_newer",
        breaks="PrefixMap.touch: used these blocks last of all its blocks",
    ),
    Mutant(
        name="renews-only-the-last-block",
        story="Renews the last block of a prompt, and leaves those before it where they are.",
        replace="            nodes.move_to_end(node)\n",
        by="            if node is path[-1]:\n                nodes.move_to_end(node)\n",
        killed_by="test_task_2_a_longer_prompt_renews_the_blocks_before_it",
        breaks="PrefixMap.touch: used these blocks last of all its blocks",
    ),
    Mutant(
        name="forgets-the-newest",
        story="Takes the block from the wrong end.",
        replace="popitem(last=False)",
        by="popitem()",
        killed_by="test_task_2_what_was_used_longest_ago_is_forgotten_first",
        breaks="PrefixMap.forget_oldest: the one that it has used longest ago",
    ),
    Mutant(
        name="all-replicas-forget",
        story="Removes the node for everyone when one replica forgets its block.",
        replace="        if not node.replicas and node.parent is not None:\n            del "
                "node.parent.children[node.block]\n",
        by="        if node.parent is not None:\n            node.parent.children.pop(node.block, None)\n",
        killed_by="test_task_2_the_others_keep_what_one_replica_forgets",
        breaks=("PrefixMap.forget_oldest: nothing has changed for the other replicas",
                "PrefixMap.forget: nothing has changed for the other replicas"),
    ),
    Mutant(
        name="forgetting-takes-the-others-along",
        story="forget() empties the replicas of each node.",
        replace="        for node in self._nodes.pop(replica, {}):  # a block was used before those above it, so "
                "children "
                "come first\n            self._take_from(node, replica)\n",
        by="        for node in self._nodes.pop(replica, {}):\n            node.replicas.clear()\n"
           "            node.parent.children.pop(node.block, None)\n",
        killed_by="test_task_2_forget_a_replica",
        breaks="PrefixMap.forget: nothing has changed for the other replicas",
    ),
    Mutant(
        name="nodes-stay-in-the-tree",
        story="Leaves a node without replicas in the tree.",
        replace="        if not node.replicas and node.parent is not None:\n            del "
                "node.parent.children[node.block]\n",
        by="",
        killed_by="test_task_2_what_no_replica_has_takes_no_memory",
        breaks=("PrefixMap.forget_oldest: A block that no replica has takes no memory",
                "PrefixMap.forget: A block that no replica has takes no memory"),
    ),
    Mutant(
        name="a-forgotten-replica-stays-in-the-nodes",
        story="forget() deletes the list of the replica, and not the replica's name in the nodes.",
        replace="        for node in self._nodes.pop(replica, {}):  # a block was used before those above it, so "
                "children "
                "come first\n            self._take_from(node, replica)\n",
        by="        self._nodes.pop(replica, None)\n",
        killed_by="test_task_2_forget_a_replica",
        breaks="PrefixMap.forget: the replica has no block",
    ),
    Mutant(
        name="forgetting-an-unknown-replica-fails",
        story="Takes it for granted that the replica has blocks.",
        replace="self._nodes.pop(replica, {})",
        by="self._nodes.pop(replica)",
        killed_by="test_task_2_forget_an_unknown_replica",
        breaks="PrefixMap.forget: is harmless",
    ),
    Mutant(
        name="one-block-less-than-the-limit",
        story="Forgets a block when the limit is reached, not when it is exceeded.",
        replace="self.num_blocks.get(replica, 0) > self.max_blocks",
        by="self.num_blocks.get(replica, 0) >= self.max_blocks > 1",
        killed_by="test_task_2_recording_within_the_limit_forgets_nothing",
        breaks="PrefixMap.record: has the first ``max_blocks`` of ``blocks``",
    ),
    Mutant(
        name="forgets-one-block-per-prompt",
        story="Forgets one block, however many the prompt added.",
        replace="        while self.num_blocks.get(replica, 0) > self.max_blocks:\n",
        by="        if self.num_blocks.get(replica, 0) > self.max_blocks:\n",
        killed_by="test_task_2_a_replica_has_at_most_max_blocks",
        breaks=("PrefixMap.record: no more than ``max_blocks`` blocks",
                "invariant 3: at most ``max_blocks`` blocks are remembered"),
    ),
    Mutant(
        name="the-end-of-a-long-prompt",
        story="Remembers the last blocks of a prompt that is too long.",
        replace="self.touch(replica, blocks[:self.max_blocks])",
        by="self.touch(replica, blocks[-self.max_blocks:])",
        killed_by="test_task_2_a_prompt_longer_than_the_limit",
        breaks="PrefixMap.record: the first ``max_blocks`` of ``blocks``",
    ),
    Mutant(
        name="all-replicas-share-the-limit",
        story="Compares the blocks of all replicas together with max_blocks.",
        replace="self.num_blocks.get(replica, 0) > self.max_blocks",
        by="sum(self.num_blocks.values()) > self.max_blocks and self.num_blocks.get(replica)",
        killed_by="test_task_2_a_replica_has_at_most_max_blocks",
        breaks="invariant 3: of each replica",
    ),
    Mutant(
        name="the-long-way-to-the-oldest",
        story="Looks through all blocks for the oldest.",
        replace="        oldest, _ = self._nodes[replica].popitem(last=False)\n",
        by="        for number, node in enumerate(self._nodes[replica]):\n"
           "            if number == 0:\n                oldest = node\n"
           "        del self._nodes[replica][oldest]\n",
        killed_by="test_task_2_forgetting_does_not_search",
        breaks="PrefixMap.forget_oldest: takes as long with a thousand blocks as with one",
    ),
    # ---- Task 3
    Mutant(
        name="adding-again-starts-again",
        story="Sets the load of a replica that is there already back to 0.",
        replace="        if replica in self._loads:\n"
                "            raise ValueError(f\"replica {replica!r} is there already; remove it before it is added "
                "again\")\n",
        by="",
        killed_by="test_task_3_wrong_calls_change_nothing",
        breaks=("RequestsInFlight.add_replica: ValueError if it is there already",
                "CacheAwareRouter.add_replica: ValueError if it is there already"),
    ),
    Mutant(
        name="adds-before-it-checks",
        story="Sets the load to 0, and then refuses the replica.",
        replace="            raise ValueError(f\"replica {replica!r} is there already; remove it before it is added "
                "again\")\n",
        by="            self._loads[replica] = 0\n"
           "            raise ValueError(f\"replica {replica!r} is there already; remove it before it is added "
           "again\")\n",
        killed_by="test_task_3_wrong_calls_change_nothing",
        breaks=("RequestsInFlight.add_replica: nothing changes then",
                "CacheAwareRouter.add_replica: nothing changes then", "invariant 7: changes nothing"),
    ),
    Mutant(
        name="an-unknown-replica-leaves",
        story="Returns no requests for a replica that is not there.",
        replace="        if replica not in self._loads:\n"
                "            raise ValueError(f\"there is no replica {replica!r}; known are {', '.join(self._loads) or "
                "'none'}\")\n        orphans",
        by="        if replica not in self._loads:\n            return []\n        orphans",
        killed_by="test_task_3_wrong_calls_change_nothing",
        breaks=("RequestsInFlight.remove_replica: ValueError if there is no such replica",
                "CacheAwareRouter.remove_replica: ValueError if there is no such replica"),
    ),
    Mutant(
        name="a-wrong-name-removes-all",
        story="Clears everything before it notices that there is no such replica.",
        replace="        if replica not in self._loads:\n"
                "            raise ValueError(f\"there is no replica {replica!r}; known are {', '.join(self._loads) or "
                "'none'}\")\n        orphans",
        by="        if replica not in self._loads:\n            self._running.clear()\n"
           "            raise ValueError(f\"there is no replica {replica!r}\")\n        orphans",
        killed_by="test_task_3_wrong_calls_change_nothing",
        breaks=("RequestsInFlight.remove_replica: nothing changes then",
                "CacheAwareRouter.remove_replica: nothing changes then"),
    ),
    Mutant(
        name="orphans-stay-in-flight",
        story="Removes the replica, and leaves its requests in the record.",
        replace="        for request_id in orphans:\n            del self._running[request_id]\n",
        by="",
        killed_by="test_task_3_a_replica_leaves",
        breaks=("RequestsInFlight.remove_replica: its requests are not in flight any more",
                "CacheAwareRouter.remove_replica: its requests are not in flight any more",
                "invariant 4: none of its requests is in flight"),
    ),
    Mutant(
        name="the-replica-stays",
        story="Sets the load of a replica that leaves to 0, instead of removing it.",
        replace="        del self._loads[replica]\n        return orphans\n",
        by="        self._loads[replica] = 0\n        return orphans\n",
        killed_by="test_task_3_a_replica_leaves",
        breaks=("RequestsInFlight.remove_replica: the replica is not among ``loads``",
                "CacheAwareRouter.remove_replica: the replica gets no more requests"),
    ),
    Mutant(
        name="the-newest-orphan-first",
        story="Collects the requests from the end.",
        replace="        del self._loads[replica]\n        return orphans\n",
        by="        del self._loads[replica]\n        return orphans[::-1]\n",
        killed_by="test_task_3_a_replica_leaves",
        breaks=("RequestsInFlight.remove_replica: in the order in which they started",
                "CacheAwareRouter.remove_replica: in the order in which they were routed"),
    ),
    Mutant(
        name="orphans-of-all-replicas",
        story="Returns all requests in flight.",
        replace="in self._running.items() if where == replica]",
        by="in self._running.items()]",
        killed_by="test_task_3_a_replica_leaves",
        breaks=("RequestsInFlight.remove_replica: the requests that were in flight there",
                "CacheAwareRouter.remove_replica: the requests that were in flight there"),
    ),
    Mutant(
        name="a-request-starts-twice",
        story="Does not check whether the request is in flight.",
        replace="        if request_id in self._running:\n"
                "            raise ValueError(f\"request {request_id!r} is in flight at {self._running[request_id]!r} "
                "already\")\n",
        by="",
        killed_by="test_task_3_wrong_calls_change_nothing",
        breaks=("RequestsInFlight.started: if the request is in flight already", "invariant 4: each counted once"),
    ),
    Mutant(
        name="starts-at-an-unknown-replica",
        story="Counts a request at a replica that was never added.",
        replace="        if replica not in self._loads:\n"
                "            raise ValueError(f\"there is no replica {replica!r}; known are {', '.join(self._loads) or "
                "'none'}\")\n        self._running[request_id] = replica\n        self._loads[replica] += 1\n",
        by="        self._running[request_id] = replica\n"
           "        self._loads[replica] = self._loads.get(replica, 0) + 1\n",
        killed_by="test_task_3_wrong_calls_change_nothing",
        breaks="RequestsInFlight.started: if there is no such replica",
    ),
    Mutant(
        name="writes-before-it-checks-the-replica",
        story="Notes where the request is, and then finds no such replica.",
        replace="        if replica not in self._loads:\n"
                "            raise ValueError(f\"there is no replica {replica!r}; known are {', '.join(self._loads) or "
                "'none'}\")\n        self._running[request_id] = replica\n",
        by="        self._running[request_id] = replica\n        if replica not in self._loads:\n"
           "            raise ValueError(f\"there is no replica {replica!r}\")\n",
        killed_by="test_task_3_wrong_calls_change_nothing",
        breaks="RequestsInFlight.started: nothing changes then",
    ),
    Mutant(
        name="finishing-twice-is-fine",
        story="Ignores a request that is not in flight.",
        replace="        if request_id not in self._running:\n"
                "            raise ValueError(f\"request {request_id!r} is not in flight: it was not started, has "
                "finished, "
                "or its \"\n                             \"replica has left\")\n",
        by="        if request_id not in self._running:\n            return\n",
        killed_by="test_task_3_finishing_a_request_of_a_replica_that_left",
        breaks=("RequestsInFlight.finished: ValueError unless the request is in flight",
                "CacheAwareRouter.finished: ValueError unless the request is in flight"),
    ),
    Mutant(
        name="an-unknown-request-lowers-a-load",
        story="Lowers the load of the first replica before it refuses the request.",
        replace="        if request_id not in self._running:\n            raise",
        by="        if request_id not in self._running:\n            for replica in self._loads:\n"
           "                self._loads[replica] -= 1\n                break\n            raise",
        killed_by="test_task_3_wrong_calls_change_nothing",
        breaks=("RequestsInFlight.finished: nothing changes then", "CacheAwareRouter.finished: nothing changes then"),
    ),
    Mutant(
        name="finished-requests-are-remembered",
        story="Lowers the load, and keeps the request in the record.",
        replace="self._loads[self._running.pop(request_id)] -= 1",
        by="self._loads[self._running[request_id]] -= 1",
        killed_by="test_task_3_requests_are_counted",
        breaks="RequestsInFlight.replica_of: None for any other request",
    ),
    Mutant(
        name="loads-never-fall",
        story="Forgets a finished request, and does not lower the load.",
        replace="self._loads[self._running.pop(request_id)] -= 1",
        by="self._running.pop(request_id)",
        killed_by="test_task_3_requests_are_counted",
        breaks="invariant 4: have not finished",
    ),
    Mutant(
        name="loads-by-name",
        story="Sorts the replicas.",
        replace="        return dict(self._loads)\n",
        by="        return dict(sorted(self._loads.items()))\n",
        killed_by="test_task_3_loads_are_in_the_order_in_which_replicas_were_added",
        breaks="RequestsInFlight.loads: in the order in which the replicas were added",
    ),
    Mutant(
        name="hands-out-its-own-loads",
        story="Returns the dict in which it counts.",
        replace="        return dict(self._loads)\n",
        by="        return self._loads\n",
        killed_by="test_task_3_a_caller_may_change_what_it_got",
        breaks="RequestsInFlight.loads: Each call returns a new dict",
    ),
    # ---- Task 4
    Mutant(
        name="the-replicas-are-shared",
        story="Keeps the map in the class, so that all routers write into one.",
        replace="        self._map = PrefixMap(max_blocks)\n",
        by="        self._map = self.__class__.__dict__.get(\"shared\") or PrefixMap(max_blocks)\n"
           "        self.__class__.shared = self._map\n",
        killed_by="test_task_4_two_routers_know_nothing_of_each_other",
        breaks="CacheAwareRouter.__init__: Nothing is cached yet",
    ),
    Mutant(
        name="hits-only",
        story="Goes where most is cached, whatever waits there.",
        replace="        return max((replica for replica, load in loads.items() if load < bound),\n"
                "                   key=lambda replica: (num_cached[replica] - loads[replica], "
                "-num_blocks.get(replica, 0)))\n",
        by="        return max(loads, key=lambda replica: (num_cached[replica], -loads[replica]))\n",
        killed_by="test_task_4_hits_never_unbalance_more_than_allowed",
        breaks=("CacheAwareRouter.route: less than ``max_imbalance`` above the lowest load",
                "invariant 5: ``max_imbalance`` or more above the lowest load"),
    ),
    Mutant(
        name="one-more-than-the-limit",
        story="Lets a replica have max_imbalance more than the lowest, before it adds this request.",
        replace="if load < bound)",
        by="if load <= bound)",
        killed_by="test_task_4_hits_never_unbalance_more_than_allowed",
        breaks="CacheAwareRouter.route: less than ``max_imbalance`` above the lowest load",
    ),
    Mutant(
        name="load-only",
        story="Goes where the load is lowest, and uses hits only to break ties of loads between the first two.",
        replace="key=lambda replica: (num_cached[replica] - loads[replica], -num_blocks.get(replica, 0)))\n",
        by="key=lambda replica: (-loads[replica], num_cached[replica]))\n",
        killed_by="test_task_4_popular_half_of_the_way",
        breaks="README: closes half of the gap",
    ),
    Mutant(
        name="the-emptiest-replica",
        story="Goes to the replica of which least is remembered, among those with the lowest load.",
        replace="key=lambda replica: (num_cached[replica] - loads[replica], -num_blocks.get(replica, 0)))\n",
        by="key=lambda replica: (-loads[replica], -num_blocks.get(replica, 0)))\n",
        killed_by="test_task_4_equal_loads_and_the_hits_decide",
        breaks="CacheAwareRouter.route: if all loads are equal: one of the replicas with the most cached blocks",
    ),
    Mutant(
        name="ties-ignore-the-load",
        story="Weighs load only if something is cached.",
        replace="num_cached[replica] - loads[replica], -num_blocks.get(replica, 0)",
        by="num_cached[replica] and num_cached[replica] - loads[replica], -num_blocks.get(replica, 0)",
        killed_by="test_task_4_equal_hits_and_the_lowest_load",
        breaks="CacheAwareRouter.route: if all have equally many cached blocks: one of the replicas with the lowest "
               "load",
    ),
    Mutant(
        name="the-name-decides",
        story="Breaks equal hits by the name before it looks at the load.",
        replace="num_cached[replica] - loads[replica], -num_blocks.get(replica, 0)",
        by="num_cached[replica] - 0.001 * loads[replica] - 0.01 * (replica == \"B\")",
        killed_by="test_task_4_equal_hits_and_the_load_decides",
        breaks="CacheAwareRouter.route: if all have equally many cached blocks: one of the replicas with the lowest "
               "load",
    ),
    Mutant(
        name="records-before-it-asks",
        story="Records the prompt at every replica that may get it, and then compares.",
        replace="        replica = self._choose(blocks)\n        self._in_flight.started(request_id, replica)\n"
                "        self._map.record(replica, blocks)\n",
        by="        for each in self.loads:\n            self._map.record(each, blocks)\n"
           "        replica = self._choose(blocks)\n        self._in_flight.started(request_id, replica)\n",
        killed_by="test_task_4_every_replica_has_an_entry",
        breaks="CacheAwareRouter.route: recorded that the replica is about to cache ``blocks``",
    ),
    Mutant(
        name="remembers-nothing",
        story="Never records what it sent.",
        replace="        self._map.record(replica, blocks)\n        return replica\n",
        by="        return replica\n",
        killed_by="test_task_4_a_request_goes_where_its_prefix_is",
        breaks="CacheAwareRouter.route: recorded that the replica is about to cache ``blocks``",
    ),
    Mutant(
        name="forgets-to-count",
        story="Chooses, and does not count the request.",
        replace="        self._in_flight.started(request_id, replica)\n        self._map.record(replica, blocks)\n",
        by="        self._map.record(replica, blocks)\n",
        killed_by="test_task_4_a_request_is_in_flight_at_its_replica",
        breaks="CacheAwareRouter.route: the request is in flight at that replica",
    ),
    Mutant(
        name="records-a-request-that-it-refuses",
        story="Checks too late: the blocks of a refused request are remembered.",
        replace="        if where is not None:\n            raise ValueError(f\"request {request_id!r} is in flight at "
                "{where!r} already\")\n",
        by="        if where is not None:\n            self._map.record(where, blocks)\n"
           "            raise ValueError(f\"request {request_id!r} is in flight at {where!r} already\")\n",
        killed_by="test_task_4_refused_calls_change_nothing",
        breaks=("CacheAwareRouter.route: ValueError if the request is in flight already; nothing changes then",
                "invariant 7: changes nothing"),
    ),
    Mutant(
        name="routes-a-request-again",
        story="Moves a request that is in flight to another replica.",
        replace="        if where is not None:\n            raise ValueError(f\"request {request_id!r} is in flight at "
                "{where!r} already\")\n",
        by="        if where is not None:\n            self._in_flight.finished(request_id)\n",
        killed_by="test_task_4_refused_calls_change_nothing",
        breaks="CacheAwareRouter.route: ValueError if the request is in flight already",
    ),
    Mutant(
        name="no-replica-is-a-value-error",
        story="Leaves it to min() to fail without replicas.",
        replace="        if not self.loads:\n            raise NoReplicaError(f\"no replica can serve request "
                "{request_id!r}: "
                "none was added, or all have left\")\n",
        by="",
        killed_by="test_task_4_no_replica",
        breaks="CacheAwareRouter.route: NoReplicaError if there is no replica",
    ),
    Mutant(
        name="a-refused-request-is-in-flight",
        story="Counts a request before it looks for a replica.",
        replace="        if not self.loads:\n            raise NoReplicaError",
        by="        if not self.loads:\n            self._in_flight._running[request_id] = \"nowhere\"\n"
           "            raise NoReplicaError",
        killed_by="test_task_4_no_replica",
        breaks="CacheAwareRouter.route: NoReplicaError if there is no replica; nothing changes then",
    ),
    Mutant(
        name="an-answer-empties-the-cache",
        story="Forgets what the replica has when one of its requests ends.",
        replace="        # TASK 4: CacheAwareRouter.finished\n        self._in_flight.finished(request_id)\n",
        by="        # TASK 4: CacheAwareRouter.finished\n        where = self._in_flight.replica_of(request_id)\n"
           "        self._in_flight.finished(request_id)\n        self._map.forget(where)\n",
        killed_by="test_task_4_what_a_finished_request_has_cached_stays",
        breaks="CacheAwareRouter.finished: What its replica has cached stays",
    ),
    Mutant(
        name="the-cache-survives-its-replica",
        story="Removes the replica, and keeps its part of the tree.",
        replace="        self._map.forget(replica)\n        return orphans\n",
        by="        return orphans\n",
        killed_by="test_task_4_a_replica_that_comes_back_has_nothing_cached",
        breaks=("CacheAwareRouter.remove_replica: nothing of its cache is remembered",
                "CacheAwareRouter.add_replica: that has nothing cached"),
    ),
    Mutant(
        name="only-replicas-with-hits",
        story="Passes on what the map says, without the replicas that have nothing.",
        replace="        return {**dict.fromkeys(self.loads, 0), **self._map.num_cached(blocks)}\n",
        by="        return self._map.num_cached(blocks) or dict.fromkeys(self.loads, 0)\n",
        killed_by="test_task_4_every_replica_has_an_entry",
        breaks="CacheAwareRouter.num_cached: 0 if it has none",
    ),
    Mutant(
        name="only-replicas-with-blocks",
        story="Passes on what the map says, without the replicas of which nothing is remembered.",
        replace="        return {**dict.fromkeys(self.loads, 0), **self._map.num_blocks}\n",
        by="        return dict(self._map.num_blocks)\n",
        killed_by="test_task_4_a_new_router_knows_its_replicas",
        breaks="CacheAwareRouter.num_blocks: 0 included",
    ),
    Mutant(
        name="the-limit-is-not-passed-on",
        story="Makes a map with room for everything.",
        replace="        self._map = PrefixMap(max_blocks)\n",
        by="        self._map = PrefixMap(2**14)\n",
        killed_by="test_task_4_the_router_remembers_max_blocks_of_each_replica",
        breaks="CacheAwareRouter: room for about ``max_blocks`` blocks",
    ),
    Mutant(
        name="draws-lots",
        story="Breaks ties at random.",
        replace="-num_blocks.get(replica, 0)))\n",
        by="__import__(\"random\").random()))\n",
        killed_by="test_task_4_the_same_calls_give_the_same_answers",
        breaks="invariant 6: the same calls give the same answers",
    ),
    Mutant(
        name="always-the-first",
        story="Among equals, always takes the replica that was added first: new prefixes crowd there.",
        replace="(num_cached[replica] - loads[replica], -num_blocks.get(replica, 0))",
        by="num_cached[replica] - 4 * loads[replica]",
        killed_by="test_task_4_prefixes_half_of_the_way",
        breaks="README: closes half of the gap",
    ),
    Mutant(
        name="the-load-weighs-three-blocks",
        story="A request in flight counts like three blocks: hits are given up too early.",
        replace="num_cached[replica] - loads[replica], ",
        by="num_cached[replica] - 3 * loads[replica], ",
        killed_by="test_task_4_popular_three_quarters_of_the_way",
        breaks="README: three quarters of the gap",
    ),
]
