// What a layer adds to its input, and the norm of the sum, which the next product takes in. One token a thread block.
// What is added may be there in parts, one after the other.
const int hidden_size = sizes[0], num_parts = sizes[1];
const long part_size = (long)sizes[2] * hidden_size;
const long row = (long)block.x * hidden_size;
SHARED float squares_of[WARPS];

float squares = 0.0f;
for (int at = thread_id * 8; at < hidden_size; at += WARPS * WARP * 8) {
  const Eight<T> mine = read_eight<T>(x + row + at);
  float sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = static_cast<float>(mine.x[i]);
  for (int part = 0; part < num_parts; ++part) {
    const Eight<ADDED> other = read_eight<ADDED>(added + part * part_size + row + at);
    for (int i = 0; i < 8; ++i) sums[i] += static_cast<float>(other.x[i]);
  }
  Eight<T> both;
  for (int i = 0; i < 8; ++i) {
    both.x[i] = static_cast<T>(sums[i]);
    squares += static_cast<float>(both.x[i]) * static_cast<float>(both.x[i]);
  }
  write_eight<T>(total + row + at, both);
}
squares = sum_of_lanes<WARP>(squares);
if (thread_id % WARP == 0) squares_of[thread_id / WARP] = squares;
BARRIER();
squares = 0.0f;
for (int warp = 0; warp < WARPS; ++warp) squares += squares_of[warp];
const float factor = inverse_root(squares / hidden_size + eps[0]);
// Each thread reads again what it wrote.
for (int at = thread_id * 8; at < hidden_size; at += WARPS * WARP * 8) {
  const Eight<T> both = read_eight<T>(total + row + at), by = read_eight<T>(weight + at);
  Eight<T> scaled;
  for (int i = 0; i < 8; ++i)
    scaled.x[i] = static_cast<T>(static_cast<float>(both.x[i]) * factor * static_cast<float>(by.x[i]));
  write_eight<T>(normed + row + at, scaled);
}
