// An engine: a decoder, its threads and its scratch memory. Shared by the programs of all instruction sets.
#pragma once
#include "decoder.h"
#include "team.h"

constexpr int64_t PASS_ROWS = 1024;

// A part of a step: the rows that are computed together, and what they attend to.
struct Pass {
  int64_t first_row;
  int64_t rows;
  int64_t first_logit;
  int64_t logits;
  bool is_gathered;  // of its rows, those with logits are left
};

struct Engine {
  const Decoder* decoder;
  Program run;
  Team* team;
  char* memory;
  int64_t bytes;
  // Of the step under way.
  const Step* step;
  int64_t cut;
  int64_t query_units;   // of attention, in the order of their rows
  int64_t decode_units;  // how many of them, from the first on, have one row
  int64_t last_iteration;
};

using DrawRows = void (*)(const float* logits, int64_t rows, int64_t vocabulary, const Draw* draws, void* scratch,
                          int64_t* chosen);

// For each instruction set: bytes of scratch that an engine needs, the program of a step, and draws alone.
#define DECLARE_PROGRAM(name)                                                                               \
  int64_t scratch_bytes_##name(const Decoder* decoder);                                                     \
  void run_##name(void* engine, int thread);                                                                \
  void draw_##name(const float* logits, int64_t rows, int64_t vocabulary, const Draw* draws, void* scratch, \
                   int64_t* chosen);

DECLARE_PROGRAM(avx2)
DECLARE_PROGRAM(avx512)
DECLARE_PROGRAM(avx512_bf16)
DECLARE_PROGRAM(amx_bf16)

// Whether products by tiles are right on this processor, which must have them: of whole numbers, where nothing is
// rounded.
bool tiles_multiply();

// Whether the processor, which must have products of bfloat16, multiplies more of them in a second than of float32.
bool pairs_are_quicker();

// Whether the step may go on, asked by the caller's thread before a layer.
bool step_goes_on(const Step* step);

int64_t monotonic_ns();
