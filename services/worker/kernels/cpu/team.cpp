// Threads that wait for one another by looking for a short while, then asleep.
//
// A phase of a small model takes microseconds, so waking a sleeping thread for each would cost more than the phase.
// But the machine's cores are shared with the services: a thread that looks on for long would take a core from the
// one it waits for. So a wait looks SPINS times, some tens of microseconds, and then sleeps on a futex.
#include "team.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <new>
#include <thread>
#include <vector>

namespace {

constexpr int SPINS = 1500;

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

}  // namespace

struct Team {
  int threads;
  std::atomic<int> active{1};
  bool has_last = false;
  // What begins the last thread's work, and that of the others: it takes part in some of their runs only, and a thread
  // must not miss a signal that it waits for.
  Signal begun_last;
  Signal begun;
  Signal met;
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int64_t> taken{0};
  Program run = nullptr;
  void* context = nullptr;
  std::vector<std::thread> others;
};

namespace {

// Numbers too small for a normal float count as 0: computing with them is slow, and they change nothing.
void ignore_denormals() { _mm_setcsr(_mm_getcsr() | 0x8040); }

void serve(Team* team, int thread, Signal* begun) {
  ignore_denormals();
  for (uint32_t seen = 0;; ++seen) {
    begun->wait_beyond(seen);
    if (team->run == nullptr) return;
    team->run(team->context, thread);
    team_barrier(team);
  }
}

}  // namespace

Team* team_make(int threads) {
  Team* team = new (std::nothrow) Team;
  if (team == nullptr) return nullptr;
  try {
    for (int thread = 1; thread < threads; ++thread) {
      Signal* begun = thread + 1 == threads ? &team->begun_last : &team->begun;
      team->others.emplace_back(serve, team, thread, begun);
    }
    team->threads = threads;
    team->has_last = threads > 1;
  } catch (...) {  // the system has no more threads: none of these is the last one
    team->threads = static_cast<int>(team->others.size()) + 1;
  }
  team->active.store(team->threads);
  return team;
}

void team_close(Team* team) {
  team->run = nullptr;
  team->begun.raise();
  team->begun_last.raise();
  for (std::thread& other : team->others) other.join();
  delete team;
}

void team_run(Team* team, Program run, void* context, bool spared) {
  const unsigned kept = _mm_getcsr();
  ignore_denormals();
  const int active = spared && team->has_last ? team->threads - 1 : team->threads;
  team->active.store(active);
  team->run = run;
  team->context = context;
  team->taken.store(0);
  if (active > 1) team->begun.raise();
  if (active == team->threads) team->begun_last.raise();
  run(context, 0);
  team_barrier(team);
  _mm_setcsr(kept);
}

void team_barrier(Team* team) {
  const int active = team->active.load();  // before others can leave, and the next run begin with another number
  if (active == 1) {
    team->taken.store(0, std::memory_order_relaxed);
    return;
  }
  const uint32_t seen = team->met.number.load();
  if (team->arrived.fetch_add(1) + 1 == active) {
    team->arrived.store(0);
    team->taken.store(0);
    team->met.raise();
  } else {
    team->met.wait_beyond(seen);
  }
}

int64_t team_take(Team* team) { return team->taken.fetch_add(1, std::memory_order_relaxed); }
