// Queries and keys of a step, normalised if the model does that, and rotated by their positions; keys and values are
// written into the pool.
//
//   heads   a token's vectors lie side by side: queries, keys, values. One for each LANES threads.
//   pool    an input that is written: see turn.py for why that may be.
const int num_both = heads_shape[1] / HEAD_DIM, num_vectors = heads_shape[0] * num_both;
const int kv_heads = pool_shape[1] / 2, num_heads = num_both - 2 * kv_heads;
constexpr int LANES = lanes_of(HEAD_DIM), HALF = HEAD_DIM / 2;
const int vector = block.x * (WARPS * WARP / LANES) + thread_id / LANES, lane = thread_id % LANES;
const int token = vector / num_both, head = vector % num_both;
const bool holds = lane * 8 < HEAD_DIM && vector < num_vectors;
const bool is_value = head >= num_heads + kv_heads;

// Lanes without a vector come along, and so do values: the lanes of a warp read each other's registers.
Eight<T> own = eight_zeros<T>();
if (holds) own = read_eight<T>(heads + (long)vector * HEAD_DIM + lane * 8);
float x[8];
for (int i = 0; i < 8; ++i) x[i] = static_cast<float>(own.x[i]);
if (NORM) {
  float squares = 0.0f;
  for (int i = 0; i < 8; ++i) squares += x[i] * x[i];
  const float factor = inverse_root(sum_of_lanes<LANES>(squares) / HEAD_DIM + as_float(EPS));
  if (holds && !is_value)
    for (int i = 0; i < 8; ++i) x[i] *= factor * static_cast<float>(weight[head * HEAD_DIM + lane * 8 + i]);
}
// Number i of a vector turns together with number i + HALF, which another lane holds.
const bool is_first = lane * 8 < HALF;
const int other_lane = thread_id % WARP + (is_first ? HALF / 8 : -HALF / 8);
for (int i = 0; i < 8; ++i) {
  const float other = from_lane(x[i], other_lane);
  if (holds && !is_value) {
    const int pair = token * HALF + (lane * 8 + i) % HALF;
    own.x[i] = static_cast<T>(x[i] * cosines[pair] + (is_first ? -other : other) * sines[pair]);
  }
}
if (holds && head < num_heads) {
  write_eight<T>(out + ((long)token * num_heads + head) * HEAD_DIM + lane * 8, own);
} else if (holds) {
  const int slot = slots[token];
  const long matrix = (long)(slot / BLOCK_SIZE) * 2 * kv_heads + (head - num_heads);
  write_eight<T>(const_cast<DEVICE T*>(pool) + (matrix * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM + lane * 8, own);
}
