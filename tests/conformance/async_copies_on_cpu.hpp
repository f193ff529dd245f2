// SPDX-License-Identifier: Apache-2.0
// What async_copies.cuh needs of the hardware, for a CPU. Copies happen when they are waited for; each must be.
#include <deque>
#include <functional>

typedef std::vector<std::function<void()>> Copies;
static thread_local struct Pending {
  std::deque<Copies> groups;
  Copies started;
  ~Pending() {  // at the end of the thread
    for (const Copies &group : groups) require(group.empty(), "a copy was not waited for");
    require(started.empty(), "a copy is in no group");
  }
} pending;
// On a GPU a copy reads and writes between its start and the wait: here at both. At the start it writes ones.
template <class Read> static void copy_later(unsigned to, Read read) {
  const unsigned at = to & 0xFFFFFF;  // the upper bits are the program's rank in its cluster
  require(at % 16 == 0 && at + 16 <= memory_bytes, "a copy outside of shared memory");
  read();
  volatile Word *const first = (Word *)(memory + at);
  for (int i = 0; i < 4; i++) first[i] = ~0u;
  pending.started.push_back([=] {
    const uint4 values = read();
    first[0] = values.x, first[1] = values.y, first[2] = values.z, first[3] = values.w;
  });
}
static uint4 read_words(const volatile Word *from) { return {from[0], from[1], from[2], from[3]}; }
static void copy_or_clear(unsigned to, const void *from, bool exists) {
  copy_later(to, [=] { return exists ? read_words((const Word *)from) : uint4{}; });
}
static void copy_16_bytes(unsigned to, const void *from) { copy_or_clear(to, from, true); }
// Of four scales the one of the row itself may be written meanwhile: the copied one is replaced before it is read.
[[gnu::no_sanitize("thread")]] static uint4 read_scales(const volatile Word *from) {
  return {from[0], from[1], from[2], from[3]};
}
static void copy_or_clear(unsigned to, const float *scales, bool exists) {
  copy_later(to, [=] { return exists ? read_scales((const Word *)scales) : uint4{}; });
}
static void commit_copies() {
  pending.groups.push_back(pending.started);
  pending.started.clear();
}
template <int MAX_PENDING> static void wait_for_copies() {
  for (; pending.groups.size() > MAX_PENDING; pending.groups.pop_front())
    for (const auto &copy : pending.groups.front()) copy();
}
