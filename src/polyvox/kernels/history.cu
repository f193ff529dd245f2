// SPDX-License-Identifier: Apache-2.0
// The histories of several convolutions in one launch. The launcher and the contract are in history.py.
// tests/conformance/test_history_on_cpu.py runs this file on a CPU.

#ifdef ON_CPU
#include "cuda_on_cpu.hpp"
#define __grid_constant__
#endif

constexpr int MAX_UPDATES = 24, MAX_ROWS = 64, GROUPS = 4;  // of a program: columns, and groups of 8 channels

struct Update {
  const uint4 *x;  // [B,columns,width]
  uint4 *state;    // [S,history,width]
  int columns, history, width;  // width: groups of 8 channels
  int end;                      // programs of this update and of those before it
};
struct Updates {
  Update all[MAX_UPDATES];
};

extern "C" __global__ void __launch_bounds__(MAX_ROWS * GROUPS)
    update_histories(const __grid_constant__ Updates updates, const long long *slots) {
  int index = 0, first = 0;
  while ((int)blockIdx.x >= updates.all[index].end) first = updates.all[index++].end;
  const Update &update = updates.all[index];
  const int columns = update.columns, history = update.history, width = update.width;
  const int parts = width / GROUPS, stream = ((int)blockIdx.x - first) / parts;
  const int row = (int)threadIdx.x / GROUPS, source = row + columns - history;  // negative: in the history
  const int group = ((int)blockIdx.x - first) % parts * GROUPS + (int)threadIdx.x % GROUPS;
  uint4 *past = update.state + slots[stream] * history * width + group;
  uint4 value = make_uint4(0, 0, 0, 0);
  if (row < history)
    value = source >= 0 ? update.x[((long long)stream * columns + source) * width + group]
                        : past[(row + columns) * width];
  __syncthreads();  // all loads precede the stores
  if (row < history) past[row * width] = value;
}
