"""The methods that the engine calls on each part, and the attributes that it reads, slot by slot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Joint:
    """The interface of a part. Arguments have the reference's names and are passed in this order."""

    made_with: tuple[str, ...]
    methods: dict[str, tuple[str, ...]]
    #: Attributes that its objects have from the start.
    attributes: tuple[str, ...] = ()


JOINTS = {
    "block_pool": Joint(
        made_with=("num_blocks", "enable_caching"),
        methods={"get_new_blocks": ("n",), "touch": ("blocks",), "free_blocks": ("blocks",),
                 "cache_full_blocks": ("blocks", "hashes"), "get_cached_block": ("block_hash",),
                 "evict_blocks": ("block_ids",), "reset_prefix_cache": (), "get_num_free_blocks": (),
                 "get_usage": (), "check_integrity": (), "fork_block": ("block",), "finish_copies": ()},
        attributes=("num_blocks", "blocks", "free_block_queue", "null_block", "num_evictions", "pending_copies",
                    "num_forks")),
    "kv_cache_manager": Joint(
        made_with=("num_blocks", "block_size", "enable_caching"),
        methods={"get_computed_blocks": ("request",),
                 "allocate_slots": ("request", "num_new_tokens", "new_computed_blocks", "num_new_computed_tokens"),
                 "free": ("request",), "get_block_ids": ("request_id",), "reset_prefix_cache": (),
                 "check_integrity": (), "fork": ("parent", "child"), "finish_step": (),
                 "give_back_slots": ("request",), "forget_unwritten": ("request",)},
        attributes=("block_pool", "block_size", "stats")),
    "prefix_tree": Joint(
        made_with=("block_pool", "block_size"),
        methods={"match": ("token_ids", "extra_keys"), "insert": ("token_ids", "blocks", "num_tokens", "extra_keys"),
                 "donate": ("token_ids", "blocks", "num_tokens", "extra_keys"), "clear": ()}),
    "request_queue": Joint(
        made_with=("aging_rate",),
        methods={"put": ("request",), "requeue": ("request",), "get": (), "peek": (), "remove": ("request",),
                 "order": ("request",), "__len__": (), "__iter__": ()}),
    "scheduler": Joint(
        made_with=("kv_cache", "max_num_seqs", "max_num_batched_tokens", "queue", "watermark"),
        methods={"add_request": ("request",), "abort_request": ("request_id",), "fork": ("parent", "child"),
                 "has_unfinished_requests": (), "schedule": (), "update_from_output": ("output", "token_ids"),
                 "preempt": ("request",)},
        attributes=("kv_cache", "running", "waiting", "requests", "max_num_seqs", "max_num_batched_tokens")),
    "sampler": Joint(
        made_with=(),
        methods={"greedy": ("logits",), "draw": ("logits", "rows", "num_ahead"), "sample": ("logits", "rows")}),
    "model_runner": Joint(
        made_with=("model", "num_blocks", "block_size", "attention"),
        methods={"step": ("requests", "copies")}, attributes=("cache", "attention")),
    "drafter": Joint(
        made_with=(),
        methods={"propose": ("request", "max_tokens"), "advance": ("request", "token_ids"), "forget": ("request",)}),
    "guess_record": Joint(
        made_with=(),
        methods={"judge": ("guess", "token_ids"), "length": ("cost", "max_tokens"), "is_rested": ()},
        attributes=("rate",)),
    "verifier": Joint(made_with=(), methods={"rows": ("row", "draft"), "accept": ("draft", "drawn")}),
    "grammar": Joint(
        made_with=("tree", "vocabulary"),
        methods={"allowed": ("state",), "advance": ("state", "token_id"), "is_accepting": ("state",),
                 "is_complete": ("state",)},
        attributes=("start",)),
    "engine": Joint(
        made_with=("config", "parts", "loaded", "trace"),
        methods={"add_request": ("prompt", "sampling_params", "request_id", "priority", "extra_keys"), "step": (),
                 "abort_request": ("request_id",), "has_unfinished_requests": (), "put_back": ("outputs",),
                 "fail_all": ("error",), "reset_prefix_cache": (), "get_tokenizer": (), "metrics": ()}),
}
#: Attention is a function, or a callable object.
ATTENTION = ("queries", "pool", "block_tables", "context_lens", "query_starts", "scale")
