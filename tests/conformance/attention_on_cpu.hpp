// SPDX-License-Identifier: Apache-2.0
// What attention.cuh needs of the hardware, for a CPU.
#include <algorithm>

using std::min;

static float power_of_2(float value) { return std::exp2(value); }
