// Numbers that the CPU has made, copied to where the GPU reads them fast. One a thread.
const int at = block.x * WARPS * WARP + thread_id;
if (at < numbers_shape[0]) out[at] = numbers[at];
