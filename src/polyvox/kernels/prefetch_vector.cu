// SPDX-License-Identifier: Apache-2.0
// Linear layers of one row in bfloat16: the matrix is in shared memory before the previous launch has ended. The
// launcher, the contract and the shapes are in prefetch_vector.py.
// tests/conformance/test_prefetch_vector_on_cpu.py runs this file on a CPU.

#include "vector_program.cuh"

constexpr int MAX_REGISTERS = 80;  // per thread, so that three programs of the predictor fit into a multiprocessor

// Two elements of x times their gains; adds the squares of x.
__device__ __forceinline__ unsigned times(unsigned x, unsigned gain, float &square) {
  square += low(x) * low(x) + high(x) * high(x);
  return pack(low(gain) * low(x), high(gain) * high(x));
}

// A row, multiplied by the gains of a norm if there is one, whose squares are then summed. A thread has four columns of
// each load.
template <class Program> struct NormedRow {
  static constexpr int LOADS = Program::OWN_COLUMNS / 128;
  Program &program;
  const bits16 *x, *norm_gain;  // [inputs]; null: x is not normed
  uint2 gain[LOADS];

  __device__ __forceinline__ int column(int load) { return load * 128 + program.lane * 4; }  // of the warp's
  __device__ __forceinline__ void prefetch() {
    x += program.warp * Program::OWN_COLUMNS;
#pragma unroll
    for (int i = 0; i < LOADS; i++)
      if (norm_gain) gain[i] = *(const uint2 *)(norm_gain + program.warp * Program::OWN_COLUMNS + column(i));
  }
  __device__ __forceinline__ void take() {
    uint2 loaded[LOADS];
    float square = 0.f;
#pragma unroll
    for (int i = 0; i < LOADS; i++) loaded[i] = load_8_bytes(x + column(i));
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      uint2 made = loaded[i];
      if (norm_gain) made = make_uint2(times(made.x, gain[i].x, square), times(made.y, gain[i].y, square));
      *(uint2 *)(program.own_x() + column(i)) = made;
    }
    if (norm_gain) {
      square = sum_of_lanes(square, 32);
      if (program.lane == 0) program.squares()[program.warp] = square;
    }
  }
};

#define PRODUCT(KIND, HEIGHT, INPUTS)                                                                                  \
  extern "C" __global__ void __maxnreg__(MAX_REGISTERS) vector_##KIND##_##HEIGHT##_##INPUTS(                           \
      const bits16 *x, const bits16 *weight, const bits16 *gain, const bits16 *add, const bits16 *out_gain,            \
      bits16 *out, bits16 *gained, float *squares, int outputs, float eps) {                                           \
    SHARED_MEMORY(memory);                                                                                             \
    const Arguments given{weight, add, out_gain, out, gained, squares, outputs, eps};                                  \
    start_next();                                                                                                      \
    typedef VectorProgram<KIND, HEIGHT, INPUTS> Program;                                                               \
    Program program(given, memory);                                                                                    \
    program.run(NormedRow<Program>{program, x, KIND == ADD ? nullptr : gain}, gain);                                   \
  }
// prefetch_vector.py lists the same. Of the predictor: q, k and v, o, gate and up, down, head; of the talker: o, head,
// and its hidden states to the predictor's width.
PRODUCT(0, 32, 1024) PRODUCT(2, 8, 2048) PRODUCT(1, 48, 1024) PRODUCT(2, 8, 3072) PRODUCT(0, 16, 1024)
PRODUCT(2, 16, 2048) PRODUCT(0, 24, 2048) PRODUCT(0, 8, 2048)
