// A team of threads that run one program together.
#pragma once
#include <cstdint>

struct Team;

// `run(context, thread)` is called on all threads that take part, 0 being the caller's.
using Program = void (*)(void* context, int thread);

Team* team_make(int threads);
void team_close(Team* team);

// With `spared`, a team of two and more does without its last thread.
void team_run(Team* team, Program run, void* context, bool spared);

// Waits for all threads that take part. What the threads took of the units is forgotten.
void team_barrier(Team* team);

// The next unit of work of this phase, from 0 on. It is the caller who knows how many there are.
int64_t team_take(Team* team);
