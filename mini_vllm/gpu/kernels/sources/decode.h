// Decoding: what the one token of a request sees, by the query heads that share a KV head.
//
//   seats      the lanes that hold one vector; each seat takes every num_seats-th token of the split
//
//   context    0 1 2 3 4 5 6 7 8 9 …       each seat keeps a running softmax of its own: the highest score so far,
//   seat       0 1 2 3 0 1 2 3 0 1 …       the sum of the weights, and the weighted sum of the values
//
// In the end those of a warp are merged by shuffles, those of the warps in shared memory, and those of the splits, if
// there are several, by the kernel of merge.h.
constexpr int LANES = lanes_of(HEAD_DIM);
constexpr int NUM_SEATS = WARPS * WARP / LANES;
const int lane = thread_id % LANES, seat = thread_id / LANES;
const bool holds = lane * 8 < HEAD_DIM;

// Scores are kept as powers of two, which is what the hardware computes: log2(e) = 1.4427.
float query[HEADS][8], weighted[HEADS][8], top[HEADS], sum[HEADS];
for (int head = 0; head < HEADS; ++head) {
  Eight<T> own = eight_zeros<T>();
  const long vector = (long)request * num_heads + first_head + head;
  if (holds && head < num_own) own = read_eight<T>(queries + vector * HEAD_DIM + lane * 8);
  top[head] = UNSEEN;
  sum[head] = 0.0f;
  for (int i = 0; i < 8; ++i) {
    query[head][i] = static_cast<float>(own.x[i]) * as_float(SCALE) * 1.44269504f;
    weighted[head][i] = 0.0f;
  }
}

// All lanes of a warp take as many turns, or they could not read each other's registers.
for (int first = begin; first < end; first += NUM_SEATS * UNROLL) {
  Eight<T> keys[UNROLL], values[UNROLL];
  for (int turn = 0; turn < UNROLL; ++turn) {
    int position = first + turn * NUM_SEATS + seat;
    position = position < end ? position : end - 1;
    const long block_id = tables[request * width + position / BLOCK_SIZE];
    const long at = ((block_id * 2 * kv_heads + kv_head) * BLOCK_SIZE + position % BLOCK_SIZE) * HEAD_DIM + lane * 8;
    keys[turn] = holds ? read_eight<T>(pool + at) : eight_zeros<T>();
    values[turn] = holds ? read_eight<T>(pool + at + (long)kv_heads * BLOCK_SIZE * HEAD_DIM) : eight_zeros<T>();
  }
  for (int head = 0; head < HEADS; ++head) {
    float score[UNROLL], highest = top[head];
    for (int turn = 0; turn < UNROLL; ++turn) {
      score[turn] = 0.0f;
      for (int i = 0; i < 8; ++i) score[turn] += query[head][i] * static_cast<float>(keys[turn].x[i]);
      score[turn] = sum_of_lanes<LANES>(score[turn]);
      if (first + turn * NUM_SEATS + seat >= end) score[turn] = UNSEEN;
      highest = score[turn] > highest ? score[turn] : highest;
    }
    // What was added up so far was measured from a lower top.
    const float shrink = two_to(top[head] - highest);
    top[head] = highest;
    sum[head] *= shrink;
    for (int i = 0; i < 8; ++i) weighted[head][i] *= shrink;
    for (int turn = 0; turn < UNROLL; ++turn) {
      const float weight = score[turn] > UNSEEN ? two_to(score[turn] - highest) : 0.0f;
      sum[head] += weight;
      for (int i = 0; i < 8; ++i) weighted[head][i] += weight * static_cast<float>(values[turn].x[i]);
    }
  }
}

// The seats of a warp.
for (int head = 0; head < HEADS; ++head) {
  for (int mask = LANES; mask < WARP; mask *= 2) {
    const float other_top = from_lane_xor(top[head], mask);
    const float highest = other_top > top[head] ? other_top : top[head];
    const float shrink = two_to(top[head] - highest), other_shrink = two_to(other_top - highest);
    top[head] = highest;
    sum[head] = sum[head] * shrink + from_lane_xor(sum[head], mask) * other_shrink;
    for (int i = 0; i < 8; ++i)
      weighted[head][i] = weighted[head][i] * shrink + from_lane_xor(weighted[head][i], mask) * other_shrink;
  }
}

if (thread_id % WARP < LANES) {
  for (int head = 0; head < HEADS; ++head) {
    const int mine = thread_id / WARP * HEADS + head;
    if (lane == 0) {
      tops[mine] = top[head];
      sums[mine] = sum[head];
    }
    if (holds) for (int i = 0; i < 8; ++i) all_weighted[mine * HEAD_DIM + lane * 8 + i] = weighted[head][i];
  }
}
