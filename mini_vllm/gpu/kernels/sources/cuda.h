// What the kernels need of CUDA; metal.h has the same of Metal, line by line.
#define DEVICE
#define SHARED __shared__
#define SHARED_POINTER
#define FUNCTION __device__ __forceinline__
#define BARRIER() __syncthreads()

FUNCTION float two_to(float x) { return exp2f(x); }
FUNCTION float as_float(int bits) { return __int_as_float(bits); }
FUNCTION float inverse_root(float x) { return rsqrtf(x); }
FUNCTION float from_lane(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
FUNCTION float from_lane_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
