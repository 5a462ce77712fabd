// The product of a few rows with a matrix: out[r, n] = Σ x[r, k] · weight[n, k]. For CUDA only; Metal has MLX's own.
//
//   thread blocks   x: GROUPS times eight of the columns n   y: split of k
//   warps           each takes every WARPS-th piece of 32 along k; what they found is added up in the end
//
// Tensor cores multiply tiles of 16 × 16 with tiles of 16 × 8, and want the numbers of a tile strewn over the lanes of a
// warp: lane 4g + t has numbers 2t, 2t + 1, 2t + 8 and 2t + 9 of row g. Which numbers along k these are is all the same,
// as long as both factors agree. So a lane reads eight that lie side by side, 16 bytes, which serve two products:
//
//   lane 4g + t    k = 8t + 0 1 │ 2 3 │ 4 5 │ 6 7
//   first product      ╰ 2t… ╯ ╰2t+8…╯
//   second product                      ╰ 2t… ╯ ╰2t+8…╯
//
// GATED: the matrix is two, one above the other, gate and up. Half of a thread block's columns are of the one, half of
// the other, and what becomes of them is gate · sigmoid(gate) · up. With several splits of k each has a result of its
// own, one after the other; whoever reads them adds them up.
const int num_rows = x_shape[0], num_columns = weight_shape[0], depth = weight_shape[1], num_splits = num_blocks.y;
const int warp = thread_id / WARP, lane = thread_id % WARP, g = lane / 4, t = lane % 4;
constexpr int WIDTH = GATED ? GROUPS * 4 : GROUPS * 8;  // columns of the result
const int first_column = block.x * WIDTH, out_columns = GATED ? num_columns / 2 : num_columns;
const int begin = block.y * (depth / num_splits), end = begin + depth / num_splits;

float sums[GROUPS][TILES][4];
for (int group = 0; group < GROUPS; ++group)
  for (int tile = 0; tile < TILES; ++tile)
    for (int i = 0; i < 4; ++i) sums[group][tile][i] = 0.0f;

#pragma unroll 4
for (int k = begin + warp * 32 + t * 8; k < end; k += WARPS * 32) {
  uint4 w[GROUPS];
  for (int group = 0; group < GROUPS; ++group) {
    const int column = first_column + group * 8 % WIDTH + group * 8 / WIDTH * out_columns + g;
    w[group] = *reinterpret_cast<const uint4*>(weight + (long)column * depth + k);
  }
  for (int tile = 0; tile < TILES; ++tile) {
    const int row = tile * 16 + g;
    uint4 upper = make_uint4(0, 0, 0, 0), lower = upper;
    if (row < num_rows) upper = *reinterpret_cast<const uint4*>(x + (long)row * depth + k);
    if (row + 8 < num_rows) lower = *reinterpret_cast<const uint4*>(x + (long)(row + 8) * depth + k);
    for (int group = 0; group < GROUPS; ++group) {
      multiply_tiles<T>(sums[group][tile], upper.x, lower.x, upper.y, lower.y, w[group].x, w[group].y);
      multiply_tiles<T>(sums[group][tile], upper.z, lower.z, upper.w, lower.w, w[group].z, w[group].w);
    }
  }
}

SHARED float found[WARPS][TILES * 16][GROUPS * 8];
for (int group = 0; group < GROUPS; ++group)
  for (int tile = 0; tile < TILES; ++tile)
    for (int i = 0; i < 4; ++i)
      found[warp][tile * 16 + g + i / 2 * 8][group * 8 + t * 2 + i % 2] = sums[group][tile][i];
BARRIER();
for (int i = thread_id; i < num_rows * WIDTH; i += WARPS * WARP) {
  const int row = i / WIDTH, column = i % WIDTH;
  float total = 0.0f;
  for (int each = 0; each < WARPS; ++each) total += found[each][row][column];
  if (GATED) {
    float up = 0.0f;
    for (int each = 0; each < WARPS; ++each) up += found[each][row][GROUPS * 8 - WIDTH + column];
    total = total / (1.0f + two_to(total * -1.44269504f)) * up;
  }
  out[((long)block.y * num_rows + row) * out_columns + first_column + column] = static_cast<OUT>(total);
}
