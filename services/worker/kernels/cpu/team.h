// A team of threads that run one program together.
#pragma once
#include <cstdint>

struct Team;

// `run(context, thread)` is called on all threads that take part, 0 being the caller's. All go through the same phases.
using Program = void (*)(void* context, int thread);

Team* team_make(int threads);
void team_close(Team* team);
void team_run(Team* team, Program run, void* context);

// Where a thread is in a run, and the unit of work that it has.
struct Place {
  int thread;
  uint32_t phase;
  int64_t units;  // of this phase
  int64_t unit;
  uint64_t began;  // in ticks
  uint64_t took;   // ticks of its last unit, also if another thread has taken that over
};

Place team_place(const Team* team, int thread);

// The next unit of the phase, of `units` (at least 1); -1 when all are done, and the place is at the next phase. If it
// `can_change_hands`, another thread may take it over: it must be computed in the thread's own memory.
int64_t team_take(Team* team, Place* place, int64_t units, bool can_change_hands);
// Whether the unit is still the thread's: then nothing that a later phase writes has changed so far.
bool team_has(const Team* team, const Place* place);
// Keeps the unit from others, so that it may be written. False: another thread has taken it over.
bool team_keep(Team* team, Place* place);
// The unit is written.
void team_done(Team* team, Place* place);
// Waits for the end of a phase that is others' work.
void team_wait(Team* team, Place* place);
// Units that changed hands since the team was made.
int64_t team_taken_over(const Team* team);
