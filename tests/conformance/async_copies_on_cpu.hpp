// SPDX-License-Identifier: Apache-2.0
// What async_copies.cuh needs of the hardware, for a CPU. Copies happen when they are waited for.
#include <deque>
#include <functional>

static thread_local std::deque<std::vector<std::function<void()>>> groups;
static thread_local std::vector<std::function<void()>> copies;
// The row's own scale may be written meanwhile: the copied one is replaced before it is read.
[[gnu::no_sanitize("thread")]] static uint4 read_early(const void *from) { return *(const uint4 *)from; }
static void copy_or_clear(unsigned to, const void *from, bool exists) {
  const unsigned at = to & 0xFFFFFF;  // the upper bits are the program's rank in its cluster
  require(at % 16 == 0 && at + 16 <= memory_bytes, "a copy outside of shared memory");
  copies.push_back([=] { *(uint4 *)(memory + at) = exists ? read_early(from) : uint4{}; });
}
static void copy_16_bytes(unsigned to, const void *from) { copy_or_clear(to, from, true); }
static void commit_copies() {
  groups.push_back(copies);
  copies.clear();
}
template <int MAX_PENDING> static void wait_for_copies() {
  for (; groups.size() > MAX_PENDING; groups.pop_front())
    for (const auto &copy : groups.front()) copy();
}
