// SPDX-License-Identifier: Apache-2.0
// What register_linear.cu needs of the hardware, for a CPU.
#include "float16_on_cpu.hpp"

#define SHARED_MEMORY(NAME) float *const NAME = (float *)memory

static uint4 load_weights(const bits16 *from) { return *(const uint4 *)from; }
static uint4 load_row(const bits16 *from) { return *(const uint4 *)from; }
