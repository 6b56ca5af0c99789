// Threads that share out numbered units of work, phase by phase, and do not wait for one that has lost its core.
//
// Theory of operation
// -------------------
// A phase is over when all its units are done; then the next may read what it wrote. Every thread goes through all
// phases, takes units as long as there are any, and waits for those that others have.
//
// The machine's cores are shared with the services: any thread may lose its core, for longer than some phases take. If
// the others waited for it, one core would idle whenever a service runs on the other. So whoever has waited somewhat
// longer than a unit takes computes the missing one itself, and goes on. The late thread learns of it before it writes
// (team_keep): it drops what it computed and passes over the phases that are over. What it reads until then may change
// under it, but not vanish: a run ends when all have left it.
//
// A unit that writes as it goes can't change hands; for that one the others wait, looking for a short while, then
// asleep. A thread that has not begun when a run ends is not waited for.
#include "team.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace {

constexpr int SPINS = 1500;                  // some tens of microseconds
constexpr uint64_t LEAST_PATIENCE = 10'000;  // ticks: some microseconds

void futex_wait(std::atomic<uint32_t>* word, uint32_t seen) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Something that happens again and again, numbered.
struct alignas(64) Signal {
  std::atomic<uint32_t> number{0};
  std::atomic<uint32_t> sleepers{0};

  void raise() {
    number.fetch_add(1);
    if (sleepers.load() != 0) futex_wake_all(&number);
  }

  void wait_beyond(uint32_t seen) {
    for (int spin = 0; spin < SPINS; ++spin) {
      if (number.load(std::memory_order_acquire) != seen) return;
      _mm_pause();
    }
    sleepers.fetch_add(1);
    while (number.load() == seen) futex_wait(&number, seen);
    sleepers.fetch_sub(1);
  }
};

enum class Part { RESTS, WANTED, RUNS };

// What a thread has of a phase: nothing (0), or a unit, which it still computes or already writes.
enum State : uint64_t { COMPUTES = 1, WRITES = 2 };

struct alignas(64) Member {
  std::atomic<uint64_t> held{0};
  std::atomic<Part> part{Part::RESTS};  // in a run, of the threads but the caller's
};

uint64_t held_word(uint32_t phase, int64_t unit, State state) {
  return static_cast<uint64_t>(phase) << 32 | static_cast<uint64_t>(unit) << 2 | state;
}
uint32_t phase_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
int64_t unit_of_held(uint64_t word) { return static_cast<int64_t>(word & 0xffffffff) >> 2; }

}  // namespace

struct Team {
  int threads;
  std::unique_ptr<Member[]> members;
  Signal begun;
  Signal left;
  Signal over;  // a phase is
  alignas(64) std::atomic<uint64_t> next{0};  // the phase, and in the lower half its next unit
  alignas(64) std::atomic<int64_t> done{0};   // units of it
  std::atomic<int64_t> taken_over{0};
  uint32_t first_phase = 0;
  Program run = nullptr;
  void* context = nullptr;
  std::vector<std::thread> others;
};

namespace {

// Numbers too small for a normal float count as 0: computing with them is slow, and they change nothing.
void ignore_denormals() { _mm_setcsr(_mm_getcsr() | 0x8040); }

void serve(Team* team, int thread) {
  ignore_denormals();
  std::atomic<Part>& part = team->members[thread].part;
  for (uint32_t seen = 0;;) {
    team->begun.wait_beyond(seen);
    seen = team->begun.number.load();
    Part wanted = Part::WANTED;
    if (!part.compare_exchange_strong(wanted, Part::RUNS)) continue;
    if (team->run == nullptr) return;
    team->run(team->context, thread);
    part.store(Part::RESTS);
    team->left.raise();
  }
}

void want_all(Team* team) {
  for (int thread = 1; thread < team->threads; ++thread) team->members[thread].part.store(Part::WANTED);
  if (team->threads > 1) team->begun.raise();
}

bool is_over(const Team* team, Place* place) {
  if (phase_of(team->next.load(std::memory_order_acquire)) == place->phase) return false;
  ++place->phase;
  return true;
}

int64_t hold(Team* team, Place* place, int64_t unit, bool can_change_hands) {
  place->unit = unit;
  place->began = __rdtsc();
  const State state = can_change_hands ? COMPUTES : WRITES;
  team->members[place->thread].held.store(held_word(place->phase, unit, state), std::memory_order_release);
  return unit;
}

// Of the units that others compute, one; -1: they may keep them, or there is none. `any`: whether there is one.
int64_t taken_over(Team* team, const Place* place, bool has_patience, bool* any) {
  *any = false;
  for (int thread = 0; thread < team->threads; ++thread) {
    if (thread == place->thread) continue;
    std::atomic<uint64_t>& held = team->members[thread].held;
    uint64_t word = held.load(std::memory_order_acquire);
    if (phase_of(word) != place->phase || (word & 3) != COMPUTES) continue;
    *any = true;
    if (!has_patience && held.compare_exchange_strong(word, 0)) return unit_of_held(word);
  }
  return -1;
}

// Waits until the phase is over (-1), or a unit of it has been with another thread for too long.
int64_t wait_or_take_over(Team* team, Place* place) {
  const uint64_t since = __rdtsc();
  const uint64_t patience = place->took + place->took / 2 + LEAST_PATIENCE;
  for (;;) {
    const uint32_t seen = team->over.number.load();
    if (is_over(team, place)) return -1;
    bool any;
    const int64_t unit = taken_over(team, place, __rdtsc() - since < patience, &any);
    if (unit >= 0) {
      team->taken_over.fetch_add(1, std::memory_order_relaxed);
      return hold(team, place, unit, true);
    }
    if (any) {
      _mm_pause();
    } else {
      team->over.wait_beyond(seen);
    }
  }
}

}  // namespace

Team* team_make(int threads) {
  Team* team = new (std::nothrow) Team;
  if (team == nullptr) return nullptr;
  team->threads = 1;
  try {
    team->members = std::make_unique<Member[]>(threads);
    for (int thread = 1; thread < threads; ++thread) {
      team->others.emplace_back(serve, team, thread);
      ++team->threads;
    }
  } catch (...) {  // the system has no more threads
    if (team->members == nullptr) {
      delete team;
      return nullptr;
    }
  }
  return team;
}

void team_close(Team* team) {
  team->run = nullptr;
  want_all(team);
  for (std::thread& other : team->others) other.join();
  delete team;
}

void team_run(Team* team, Program run, void* context) {
  const unsigned kept = _mm_getcsr();
  ignore_denormals();
  team->run = run;
  team->context = context;
  team->first_phase = phase_of(team->next.load());
  want_all(team);
  run(context, 0);
  for (int thread = 1; thread < team->threads; ++thread) {
    std::atomic<Part>& part = team->members[thread].part;
    Part wanted = Part::WANTED;
    if (part.compare_exchange_strong(wanted, Part::RESTS)) continue;  // it has not begun
    for (;;) {
      const uint32_t seen = team->left.number.load();
      if (part.load() == Part::RESTS) break;
      team->left.wait_beyond(seen);
    }
  }
  // Where a program gave up, units of its last phase may be taken, and done in part.
  team->done.store(0);
  team->next.store(static_cast<uint64_t>(phase_of(team->next.load()) + 1) << 32);
  _mm_setcsr(kept);
}

Place team_place(const Team* team, int thread) { return {thread, team->first_phase, 1, 0, 0, 0}; }

int64_t team_take(Team* team, Place* place, int64_t units, bool can_change_hands) {
  place->units = units;
  for (;;) {
    uint64_t next = team->next.load(std::memory_order_acquire);
    const int64_t unit = static_cast<int64_t>(next & 0xffffffff);
    if (phase_of(next) != place->phase || unit == units) return wait_or_take_over(team, place);
    if (team->next.compare_exchange_weak(next, next + 1)) return hold(team, place, unit, can_change_hands);
  }
}

bool team_has(const Team* team, const Place* place) {
  std::atomic_thread_fence(std::memory_order_acquire);  // what was read was read before
  const uint64_t held = team->members[place->thread].held.load(std::memory_order_acquire);
  return held == held_word(place->phase, place->unit, COMPUTES);
}

bool team_keep(Team* team, Place* place) {
  uint64_t held = held_word(place->phase, place->unit, COMPUTES);
  const uint64_t kept = held_word(place->phase, place->unit, WRITES);
  if (team->members[place->thread].held.compare_exchange_strong(held, kept)) return true;
  // Two threads that know of short units only would take a long one from each other again and again.
  place->took = __rdtsc() - place->began;
  return false;
}

void team_done(Team* team, Place* place) {
  place->took = __rdtsc() - place->began;
  team->members[place->thread].held.store(0, std::memory_order_release);
  if (team->done.fetch_add(1) + 1 < place->units) return;
  team->done.store(0, std::memory_order_relaxed);
  team->next.store(static_cast<uint64_t>(place->phase + 1) << 32, std::memory_order_release);
  team->over.raise();
}

int64_t team_taken_over(const Team* team) { return team->taken_over.load(std::memory_order_relaxed); }

void team_wait(Team* team, Place* place) {
  for (;;) {
    const uint32_t seen = team->over.number.load();
    if (is_over(team, place)) return;
    team->over.wait_beyond(seen);
  }
}
