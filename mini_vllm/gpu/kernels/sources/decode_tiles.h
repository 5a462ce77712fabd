// Decoding by tensor cores, for numbers of 16 bits on CUDA: what decode.h does, for up to eight query heads at once.
//
//   warps      each takes every WARPS-th 16 tokens of the split, which lie in one block, and keeps a running softmax
//
//   scores     [heads × 8 tokens]      = queries [heads × numbers] · keys [numbers × 8 tokens]
//   weighted   [16 numbers × heads]   += values [16 numbers × 16 tokens] · weights [16 tokens × heads]
//
// How tensor cores want the numbers of a tile strewn over the lanes stands in skinny.h. A lane finds two scores of a
// head where the second product wants two weights of that head, so that no number changes lanes in between. Which
// numbers of a vector make up a tile is all the same: two of the eight that a lane has read of a value at once.
constexpr int PIECES = HEAD_DIM / 32, STRIPES = HEAD_DIM / 64;
const int warp = thread_id / WARP, lane = thread_id % WARP, g = lane / 4, t = lane % 4;
const uint4 zeros = make_uint4(0, 0, 0, 0);

uint4 query[PIECES];
for (int piece = 0; piece < PIECES; ++piece) {
  const long vector = (long)request * num_heads + first_head + g;
  query[piece] = g < num_own ? read_words(queries + vector * HEAD_DIM + piece * 32 + t * 8) : zeros;
}
// Scores are kept as powers of two, which is what the hardware computes: log2(e) = 1.4427.
const float factor = as_float(SCALE) * 1.44269504f;
float top = UNSEEN, sum = 0.0f, weighted[STRIPES][4][4];
for (int stripe = 0; stripe < STRIPES; ++stripe)
  for (int tile = 0; tile < 4; ++tile)
    for (int i = 0; i < 4; ++i) weighted[stripe][tile][i] = 0.0f;

for (int first = begin / 16 * 16 + warp * 16; first < end; first += WARPS * 16) {
  const Tokens<HEAD_DIM> tokens = read_tokens<HEAD_DIM, BLOCK_SIZE>(pool, tables + request * width, kv_heads, kv_head,
                                                                    first, begin, end, g, t);

  float scores[2][4], highest = top;
  for (int eight = 0; eight < 2; ++eight) {
    for (int i = 0; i < 4; ++i) scores[eight][i] = 0.0f;
    for (int piece = 0; piece < PIECES; ++piece) {
      const uint4 q = query[piece], k = tokens.key[eight][piece];
      multiply_tiles<T>(scores[eight], q.x, 0, q.y, 0, k.x, k.y);
      multiply_tiles<T>(scores[eight], q.z, 0, q.w, 0, k.z, k.w);
    }
    for (int i = 0; i < 2; ++i) {
      const int position = first + eight * 8 + t * 2 + i;
      scores[eight][i] = position >= begin && position < end ? scores[eight][i] * factor : UNSEEN;
      highest = scores[eight][i] > highest ? scores[eight][i] : highest;
    }
  }
  for (int mask = 1; mask < 4; mask *= 2) {
    const float other = from_lane_xor(highest, mask);
    highest = other > highest ? other : highest;
  }
  const float shrink = two_to(top - highest);
  top = highest;
  sum *= shrink;
  unsigned weights[2];
  for (int eight = 0; eight < 2; ++eight) {
    float weight[2];
    for (int i = 0; i < 2; ++i) {
      const float score = scores[eight][i];
      weight[i] = static_cast<float>(static_cast<T>(score > UNSEEN ? two_to(score - highest) : 0.0f));
    }
    sum += weight[0] + weight[1];
    weights[eight] = as_word<T>(weight[0], weight[1]);
  }
  if (any_lane(shrink < 1.0f)) {
    const float shrinks[2] = {from_lane(shrink, t * 8), from_lane(shrink, t * 8 + 4)};
    for (int stripe = 0; stripe < STRIPES; ++stripe)
      for (int tile = 0; tile < 4; ++tile)
        for (int i = 0; i < 4; ++i) weighted[stripe][tile][i] *= shrinks[i % 2];
  }
  for (int stripe = 0; stripe < STRIPES; ++stripe)
    for (int tile = 0; tile < 4; ++tile) {
      unsigned v[4];
      for (int i = 0; i < 4; ++i) v[i] = word_of(tokens.value[stripe][i], tile);
      multiply_tiles<T>(weighted[stripe][tile], firsts(v[0], v[1]), seconds(v[0], v[1]),
                        firsts(v[2], v[3]), seconds(v[2], v[3]), weights[0], weights[1]);
    }
}

sum += from_lane_xor(sum, 1);
sum += from_lane_xor(sum, 2);
if (t == 0 && g < HEADS) {
  tops[warp * HEADS + g] = top;
  sums[warp * HEADS + g] = sum;
}
for (int stripe = 0; stripe < STRIPES; ++stripe)
  for (int tile = 0; tile < 4; ++tile)
    for (int i = 0; i < 4; ++i) {
      const int head = t * 2 + i % 2, dim = stripe * 64 + g * 8 + tile * 2 + i / 2;
      if (head < HEADS) all_weighted[(warp * HEADS + head) * HEAD_DIM + dim] = weighted[stripe][tile][i];
    }
