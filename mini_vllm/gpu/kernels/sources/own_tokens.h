// Decoding: which tokens of which request a thread block has, for which query heads.
//
//   thread blocks   x: KV head, and which part of its query heads   y: request   z: split of its context
const int kv_heads = pool_shape[1] / 2, group_size = queries_shape[1] / kv_heads;
const int width = tables_shape[1], num_splits = num_blocks.z;
const int num_parts = (group_size + HEADS - 1) / HEADS;
const int kv_head = block.x / num_parts, part = block.x % num_parts;
const int request = block.y, split = block.z;
const int num_heads = kv_heads * group_size, first_head = kv_head * group_size + part * HEADS;
const int num_own = group_size - part * HEADS < HEADS ? group_size - part * HEADS : HEADS;

// The tokens of this split.
const int context_len = context_lens[request];
const int seen_from = WINDOW > 0 && context_len > WINDOW ? context_len - WINDOW : 0;
const int per_split = (context_len - seen_from + num_splits - 1) / num_splits;
const int begin = seen_from + split * per_split;
const int end = begin + per_split < context_len ? begin + per_split : context_len;

// What each warp will have found: the highest score, the sum of the weights, the weighted sum of the values.
SHARED float tops[WARPS * HEADS], sums[WARPS * HEADS], all_weighted[WARPS * HEADS * HEAD_DIM];

