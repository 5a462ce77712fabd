// The splits of a context, merged: each brings weighted values, the highest score they were measured from, and the sum
// of the weights. One thread a number of the result.
const int num_splits = partials_shape[2];
const long row = block.x, partials_of_row = row * num_splits * (HEAD_DIM + 2);
for (int dim = thread_id; dim < HEAD_DIM; dim += WARP) {
  float highest = UNSEEN, total = 0.0f, value = 0.0f;
  for (int split = 0; split < num_splits; ++split) {
    const float top = partials[partials_of_row + split * (HEAD_DIM + 2) + HEAD_DIM];
    highest = top > highest ? top : highest;
  }
  for (int split = 0; split < num_splits; ++split) {
    const long at = partials_of_row + split * (HEAD_DIM + 2);
    const float shrink = two_to(partials[at + HEAD_DIM] - highest);
    total += partials[at + HEAD_DIM + 1] * shrink;
    value += partials[at + dim] * shrink;
  }
  out[row * HEAD_DIM + dim] = static_cast<OUT>(value / total);
}
