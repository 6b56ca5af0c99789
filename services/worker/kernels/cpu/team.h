// A team of threads that run one program together.
#pragma once
#include <cstdint>

struct Team;

// `run(context, thread)` is called on all threads, 0 being the caller's.
using Program = void (*)(void* context, int thread);

Team* team_make(int threads);
void team_close(Team* team);
void team_run(Team* team, Program run, void* context);

// Waits for all threads. What the threads took of the units is forgotten.
void team_barrier(Team* team);

// The next unit of work of this phase, from 0 on. It is the caller who knows how many there are.
int64_t team_take(Team* team);
