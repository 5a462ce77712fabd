
// What the warps of the thread block have found, merged. With several splits it is merged once more, by merge.h.
BARRIER();
for (int i = thread_id; i < num_own * HEAD_DIM; i += WARPS * WARP) {
  const int head = i / HEAD_DIM, dim = i % HEAD_DIM;
  float highest = UNSEEN, total = 0.0f, value = 0.0f;
  for (int warp = 0; warp < WARPS; ++warp) {
    const float other = tops[warp * HEADS + head];
    highest = other > highest ? other : highest;
  }
  for (int warp = 0; warp < WARPS; ++warp) {
    const float shrink = two_to(tops[warp * HEADS + head] - highest);
    total += sums[warp * HEADS + head] * shrink;
    value += all_weighted[(warp * HEADS + head) * HEAD_DIM + dim] * shrink;
  }
  const long row = (long)request * num_heads + first_head + head;
  if (!SPLIT) {
    out[row * HEAD_DIM + dim] = static_cast<OUT>(value / total);
  } else {
    // A split that has no token says so by a sum of 0.
    const long partial = (row * num_splits + split) * (HEAD_DIM + 2);
    out[partial + dim] = static_cast<OUT>(value);
    if (dim == 0) {
      out[partial + HEAD_DIM] = static_cast<OUT>(highest);
      out[partial + HEAD_DIM + 1] = static_cast<OUT>(total);
    }
  }
}
