// Chunks by tensor cores, for numbers of 16 bits on CUDA: what chunk.h does, with 16 rows a warp.
//
//   thread blocks   x: tile, y: KV head
//   rows            as in chunk.h: row r is head r % group_size of token r / group_size. A tile is 16 for each warp.
//
//   scores     [16 rows × 8 keys]       = queries [16 rows × numbers] · keys [numbers × 8 keys]
//   weighted   [16 rows × 8 numbers]   += weights [16 rows × 16 keys] · values [16 keys × 8 numbers]
//
// How tensor cores want the numbers of a tile strewn over the lanes stands in skinny.h. A lane finds its scores where
// the second product wants its weights. Of a value it reads eight numbers at once, one for each of eight products: so
// eight numbers that stand 8 apart make up a tile. Nothing lies in shared memory and no warp waits for another; what
// they read alike, which is nearly all, comes from the processor's cache.
const int kv_heads = pool_shape[1] / 2, group_size = queries_shape[1] / kv_heads, width = tables_shape[1];
constexpr int PIECES = HEAD_DIM / 32, STRIPES = HEAD_DIM / 64;
const int request = tiles[2 * block.x], kv_head = block.y;
const int start = query_starts[request], num_queries = query_starts[request + 1] - start;
const int num_before = context_lens[request] - num_queries;
const int num_heads = kv_heads * group_size, num_rows = num_queries * group_size;
const int warp = thread_id / WARP, lane = thread_id % WARP, g = lane / 4, t = lane % 4;
const int first_row = tiles[2 * block.x + 1] + warp * 16;
const uint4 zeros = make_uint4(0, 0, 0, 0);

// A lane has two rows, g and g + 8 of the warp's.
uint4 query[2][PIECES];
int position_of[2];
long vector_of[2];
for (int i = 0; i < 2; ++i) {
  const int row = first_row + g + i * 8, token = (row < num_rows ? row : num_rows - 1) / group_size;
  position_of[i] = num_before + token;
  vector_of[i] = (long)(start + token) * num_heads + kv_head * group_size + row % group_size;
  for (int piece = 0; piece < PIECES; ++piece)
    query[i][piece] = row < num_rows ? read_words(queries + vector_of[i] * HEAD_DIM + piece * 32 + t * 8) : zeros;
}
// Keys that some row of the warp sees.
const int last_row = first_row + 16 < num_rows ? first_row + 15 : num_rows - 1;
const int end = first_row < num_rows ? num_before + last_row / group_size + 1 : 0;
const int earliest = num_before + first_row / group_size + 1 - WINDOW;
const int begin = WINDOW > 0 && earliest > 0 ? earliest : 0;

// Scores are kept as powers of two, which is what the hardware computes: log2(e) = 1.4427.
const float factor = as_float(SCALE) * 1.44269504f;
float top[2] = {UNSEEN, UNSEEN}, sum[2] = {0.0f, 0.0f}, weighted[STRIPES][8][4];
for (int stripe = 0; stripe < STRIPES; ++stripe)
  for (int tile = 0; tile < 8; ++tile)
    for (int i = 0; i < 4; ++i) weighted[stripe][tile][i] = 0.0f;

for (int first = begin / 16 * 16; first < end; first += 16) {
  const Tokens<HEAD_DIM> tokens = read_tokens<HEAD_DIM, BLOCK_SIZE>(pool, tables + request * width, kv_heads, kv_head,
                                                                    first, begin, end, g, t);

  float scores[2][4], highest[2] = {top[0], top[1]}, shrink[2];
  for (int eight = 0; eight < 2; ++eight) {
    for (int i = 0; i < 4; ++i) scores[eight][i] = 0.0f;
    for (int piece = 0; piece < PIECES; ++piece) {
      const uint4 upper = query[0][piece], lower = query[1][piece], k = tokens.key[eight][piece];
      multiply_tiles<T>(scores[eight], upper.x, lower.x, upper.y, lower.y, k.x, k.y);
      multiply_tiles<T>(scores[eight], upper.z, lower.z, upper.w, lower.w, k.z, k.w);
    }
    for (int i = 0; i < 4; ++i) {
      const int position = first + eight * 8 + t * 2 + i % 2, own = position_of[i / 2];
      const bool sees = position <= own && (WINDOW == 0 || position > own - WINDOW);
      scores[eight][i] = sees ? scores[eight][i] * factor : UNSEEN;
      highest[i / 2] = scores[eight][i] > highest[i / 2] ? scores[eight][i] : highest[i / 2];
    }
  }
  for (int row = 0; row < 2; ++row) {
    for (int mask = 1; mask < 4; mask *= 2) {
      const float other = from_lane_xor(highest[row], mask);
      highest[row] = other > highest[row] ? other : highest[row];
    }
    shrink[row] = two_to(top[row] - highest[row]);
    top[row] = highest[row];
    sum[row] *= shrink[row];
  }
  unsigned weights[2][2];
  for (int eight = 0; eight < 2; ++eight)
    for (int row = 0; row < 2; ++row) {
      float weight[2];
      for (int i = 0; i < 2; ++i) {
        const float score = scores[eight][row * 2 + i];
        weight[i] = static_cast<float>(static_cast<T>(score > UNSEEN ? two_to(score - highest[row]) : 0.0f));
      }
      sum[row] += weight[0] + weight[1];
      weights[eight][row] = as_word<T>(weight[0], weight[1]);
    }
  if (any_lane(shrink[0] < 1.0f || shrink[1] < 1.0f)) {
    for (int stripe = 0; stripe < STRIPES; ++stripe)
      for (int tile = 0; tile < 8; ++tile)
        for (int i = 0; i < 4; ++i) weighted[stripe][tile][i] *= shrink[i / 2];
  }
  for (int stripe = 0; stripe < STRIPES; ++stripe)
    for (int word = 0; word < 4; ++word) {
      unsigned v[4];
      for (int i = 0; i < 4; ++i) v[i] = word_of(tokens.value[stripe][i], word);
      multiply_tiles<T>(weighted[stripe][word * 2], weights[0][0], weights[0][1], weights[1][0], weights[1][1],
                        firsts(v[0], v[1]), firsts(v[2], v[3]));
      multiply_tiles<T>(weighted[stripe][word * 2 + 1], weights[0][0], weights[0][1], weights[1][0], weights[1][1],
                        seconds(v[0], v[1]), seconds(v[2], v[3]));
    }
}

for (int row = 0; row < 2; ++row) {
  sum[row] += from_lane_xor(sum[row], 1);
  sum[row] += from_lane_xor(sum[row], 2);
  const float share = 1.0f / sum[row];
  if (first_row + g + row * 8 >= num_rows) continue;
  for (int stripe = 0; stripe < STRIPES; ++stripe)
    for (int i = 0; i < 2; ++i) {
      Eight<T> eight;
      for (int tile = 0; tile < 8; ++tile) eight.x[tile] = static_cast<T>(weighted[stripe][tile][row * 2 + i] * share);
      write_eight<T>(out + vector_of[row] * HEAD_DIM + stripe * 64 + (t * 2 + i) * 8, eight);
    }
}
