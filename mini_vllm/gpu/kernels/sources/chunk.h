// Chunks: what several tokens of a request see, each all tokens up to itself, by the query heads that share a KV head.
//
//   thread blocks   x: tile, y: KV head
//   rows            token after token of a chunk, and for each the heads of the group: row r is head r % group_size of
//                   token r / group_size. A tile is ROWS of them; a warp has ROWS_PER_WARP.
//
//   keys      0 ───────── 32 ───────── 64 ──▶      Tiles of 32 keys are brought to shared memory, where all rows read
//   tile 0    ██████████░                          them; a lane has one key's score with each row of its warp. Then
//   tile 1    █████████████████░                   their values; now a lane has a few of the dimensions.
//
// Each row keeps a running softmax: the highest score so far, the sum of the weights, and the weighted values.
const int kv_heads = pool_shape[1] / 2, group_size = queries_shape[1] / kv_heads, width = tables_shape[1];
constexpr int ROWS = WARPS * ROWS_PER_WARP;
// Dimensions that are in shared memory at once, 256 bytes a key; and how many of them a lane has.
constexpr int STAGE = stage_of(HEAD_DIM, sizeof(T) == 4 ? 64 : 128);
constexpr int NUM_STAGES = (HEAD_DIM + STAGE - 1) / STAGE, DIMS = STAGE / WARP;
// 16 bytes further for each key, so that lanes which read different keys do not ask the same bank.
constexpr int PITCH = STAGE + 16 / sizeof(T);

const int request = tiles[2 * block.x], first_row = tiles[2 * block.x + 1], kv_head = block.y;
const int start = query_starts[request], num_queries = query_starts[request + 1] - start;
const int context_len = context_lens[request], num_before = context_len - num_queries;
const int num_heads = kv_heads * group_size, num_rows = num_queries * group_size;
const int warp = thread_id / WARP, lane = thread_id % WARP;

SHARED Eight<float> tile_queries[ROWS * HEAD_DIM / 8], weights[ROWS * WARP / 8];
SHARED Eight<T> staged_eights[WARP * PITCH / 8];
SHARED_POINTER T* staged = reinterpret_cast<SHARED_POINTER T*>(staged_eights);
SHARED_POINTER float* all_weights = reinterpret_cast<SHARED_POINTER float*>(weights);

for (int i = thread_id; i < ROWS * HEAD_DIM / 8; i += WARPS * WARP) {
  const int row = first_row + i / (HEAD_DIM / 8), dim = i % (HEAD_DIM / 8) * 8;
  const long vector = (long)(start + row / group_size) * num_heads + kv_head * group_size + row % group_size;
  Eight<T> own = eight_zeros<T>();
  if (row < num_rows) own = read_eight<T>(queries + vector * HEAD_DIM + dim);
  // Scores are kept as powers of two, which is what the hardware computes: log2(e) = 1.4427.
  for (int j = 0; j < 8; ++j) tile_queries[i].x[j] = static_cast<float>(own.x[j]) * as_float(SCALE) * 1.44269504f;
}

int position_of[ROWS_PER_WARP];
float top[ROWS_PER_WARP], sum[ROWS_PER_WARP], weighted[ROWS_PER_WARP][NUM_STAGES * DIMS];
for (int r = 0; r < ROWS_PER_WARP; ++r) {
  const int row = first_row + warp * ROWS_PER_WARP + r;
  position_of[r] = num_before + (row < num_rows ? row : num_rows - 1) / group_size;
  top[r] = UNSEEN;
  sum[r] = 0.0f;
  for (int i = 0; i < NUM_STAGES * DIMS; ++i) weighted[r][i] = 0.0f;
}
// Keys that some row of the tile sees.
const int last_row = first_row + ROWS < num_rows ? first_row + ROWS - 1 : num_rows - 1;
const int end = num_before + last_row / group_size + 1;
const int earliest = num_before + first_row / group_size + 1 - WINDOW;
const int begin = WINDOW > 0 && earliest > 0 ? earliest : 0;

for (int first = begin; first < end; first += WARP) {
  float score[ROWS_PER_WARP];
  for (int r = 0; r < ROWS_PER_WARP; ++r) score[r] = 0.0f;
  // Something is staged twice NUM_STAGES times: keys first, then values.
  #pragma unroll
  for (int stage = 0; stage < 2 * NUM_STAGES; ++stage) {
    const bool are_values = stage >= NUM_STAGES;
    const int stage_dim = (are_values ? stage - NUM_STAGES : stage) * STAGE;
    BARRIER();
    for (int i = thread_id; i < WARP * STAGE / 8; i += WARPS * WARP) {
      const int key = i / (STAGE / 8), dim = i % (STAGE / 8) * 8, position = first + key;
      Eight<T> eight = eight_zeros<T>();
      if (position < end && stage_dim + dim < HEAD_DIM) {
        const long block_id = tables[request * width + position / BLOCK_SIZE];
        const long matrix = block_id * 2 * kv_heads + kv_head + (are_values ? kv_heads : 0);
        eight = read_eight<T>(pool + (matrix * BLOCK_SIZE + position % BLOCK_SIZE) * HEAD_DIM + stage_dim + dim);
      }
      *reinterpret_cast<SHARED_POINTER Eight<T>*>(staged + key * PITCH + dim) = eight;
    }
    BARRIER();
    if (!are_values) {
      for (int dim = 0; dim < STAGE && stage_dim + dim < HEAD_DIM; dim += 8) {
        const Eight<T> key = *reinterpret_cast<const SHARED_POINTER Eight<T>*>(staged + lane * PITCH + dim);
        float numbers[8];
        for (int i = 0; i < 8; ++i) numbers[i] = static_cast<float>(key.x[i]);
        for (int r = 0; r < ROWS_PER_WARP; ++r) {
          const Eight<float> query = tile_queries[((warp * ROWS_PER_WARP + r) * HEAD_DIM + stage_dim + dim) / 8];
          for (int i = 0; i < 8; ++i) score[r] += query.x[i] * numbers[i];
        }
      }
      if (stage == NUM_STAGES - 1) {  // the scores are whole
        for (int r = 0; r < ROWS_PER_WARP; ++r) {
          const int position = first + lane;
          const bool sees = position <= position_of[r] && (WINDOW == 0 || position > position_of[r] - WINDOW);
          float highest = sees ? score[r] : UNSEEN;
          for (int mask = WARP / 2; mask > 0; mask /= 2) {
            const float other = from_lane_xor(highest, mask);
            highest = other > highest ? other : highest;
          }
          highest = highest > top[r] ? highest : top[r];
          const float weight = sees ? two_to(score[r] - highest) : 0.0f, shrink = two_to(top[r] - highest);
          top[r] = highest;
          sum[r] = sum[r] * shrink + weight;  // each lane its own keys; they are added up at the end
          for (int i = 0; i < NUM_STAGES * DIMS; ++i) weighted[r][i] *= shrink;
          all_weights[(warp * ROWS_PER_WARP + r) * WARP + lane] = weight;
        }
      }
    } else if (stage_dim + lane * DIMS < HEAD_DIM) {
      for (int first_key = 0; first_key < WARP; first_key += 8) {
        float numbers[8][DIMS];
        for (int key = 0; key < 8; ++key) {
          const Few<T, DIMS> few = *reinterpret_cast<const SHARED_POINTER Few<T, DIMS>*>(
              staged + (first_key + key) * PITCH + lane * DIMS);
          for (int i = 0; i < DIMS; ++i) numbers[key][i] = static_cast<float>(few.x[i]);
        }
        for (int r = 0; r < ROWS_PER_WARP; ++r) {
          const Eight<float> weight = weights[((warp * ROWS_PER_WARP + r) * WARP + first_key) / 8];
          for (int key = 0; key < 8; ++key)
            for (int i = 0; i < DIMS; ++i)
              weighted[r][(stage - NUM_STAGES) * DIMS + i] += weight.x[key] * numbers[key][i];
        }
      }
    }
  }
}

for (int r = 0; r < ROWS_PER_WARP; ++r) {
  const float total = sum_of_lanes<WARP>(sum[r]);
  const int row = first_row + warp * ROWS_PER_WARP + r;
  const long at = ((long)(start + row / group_size) * num_heads + kv_head * group_size + row % group_size) * HEAD_DIM;
  if (row < num_rows)
    for (int i = 0; i < NUM_STAGES * DIMS; ++i) {
      const int dim = i / DIMS * STAGE + lane * DIMS + i % DIMS;
      if (dim < HEAD_DIM) out[at + dim] = static_cast<T>(weighted[r][i] / total);
    }
}
