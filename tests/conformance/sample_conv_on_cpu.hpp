// SPDX-License-Identifier: Apache-2.0
// What sample_conv.cu needs of the hardware, for a CPU.
#include "float16_on_cpu.hpp"

static float shared_products[8 * PITCH];
#define SHARED_PRODUCTS float *const products = shared_products

static uint4 load_16_bytes(const half_bits *from) { return *(const uint4 *)from; }
