// The memory that a step works in, made once for an engine.
#pragma once
#include "attention.h"
#include "coded.h"
#include "draws.h"
#include "engine.h"

namespace INSTRUCTION_SET {

constexpr int64_t MOST_UNIT_ROWS = greatest(UNIT_ROWS, greatest(QUANTIZED_UNIT_ROWS, CODED_UNIT_ROWS));

static inline int64_t padded(int64_t count) { return (count + PANEL - 1) / PANEL * PANEL; }

// Scratch memory, in pieces that begin at a cache line. With no base it only counts.
struct Arena {
  char* base;
  int64_t used;

  template <class N>
  N* take(int64_t count) {
    N* piece = reinterpret_cast<N*>(base + used);
    used += (count * static_cast<int64_t>(sizeof(N)) + 127) / 128 * 128;
    return piece;
  }
};

template <class T>
struct Scratch {
  float* hidden;     // [rows, hidden size], padded to panels as all rows here
  T* normed;         // [rows, hidden size]
  T* embedded;       // [rows, embedding size]
  float* projected;  // [rows, query, key and value heads]; later the parts to add up
  T* queries;        // [rows, heads]
  T* found;          // [rows, heads]
  T* gated;          // [rows, intermediate size]
  QueryRows* units;  // [rows]
  float* sums;       // this thread's, [MOST_UNIT_ROWS, PANEL]
  uint32_t* piece;   // this thread's, [parts of a word, PIECE_WORDS, PANEL]
  Weighed* weighed;  // this thread's, [vocabulary]
  AttentionScratch<T> attention;  // this thread's

  Scratch(const Decoder& d, char* base, int thread, int64_t* bytes) {
    Arena arena{base, 0};
    const int64_t heads = padded(d.heads * d.head_size), group = d.heads / d.kv_heads;
    const int64_t head = padded(d.head_size), queries_of_unit = greatest(UNIT_QUERIES, group);
    hidden = arena.take<float>(PASS_ROWS * padded(d.hidden_size));
    normed = arena.take<T>(PASS_ROWS * padded(d.hidden_size));
    embedded = arena.take<T>(PASS_ROWS * padded(d.embedding_size));
    const int64_t query_key_value = (d.heads + 2 * d.kv_heads) * d.head_size;
    projected = arena.take<float>(PASS_ROWS * padded(greatest(query_key_value, d.hidden_size)));
    queries = arena.take<T>(PASS_ROWS * heads);
    found = arena.take<T>(PASS_ROWS * heads);
    gated = arena.take<T>(PASS_ROWS * padded(d.intermediate_size));
    units = arena.take<QueryRows>(PASS_ROWS);
    attention.zero = arena.take<T>(head);
    for (int64_t number = 0; number < d.threads; ++number) {
      Arena own{base, arena.used};
      float* own_sums = own.take<float>(MOST_UNIT_ROWS * PANEL);
      uint32_t* own_piece = own.take<uint32_t>(PARTS<T> * PIECE_WORDS * PANEL);
      Weighed* own_weighed = own.take<Weighed>(d.vocabulary);
      AttentionScratch<T> mine = attention;
      mine.queries = own.take<T>(queries_of_unit * head);
      mine.columns = own.take<uint32_t>(queries_of_unit / group * words_of<T>(head) * LANES);
      mine.scores = own.take<float>(queries_of_unit * CHUNK);
      mine.weights = own.take<T>(queries_of_unit * CHUNK);
      mine.greatest = own.take<float>(queries_of_unit);
      mine.total = own.take<float>(queries_of_unit);
      mine.found = own.take<float>(queries_of_unit * head);
      mine.keys = own.take<uint32_t>(words_of<T>(head) * CHUNK);
      mine.values = own.take<uint32_t>(head * words_of<T>(CHUNK));
      arena.used = own.used;
      if (number == thread) {
        sums = own_sums;
        piece = own_piece;
        weighed = own_weighed;
        attention = mine;
      }
    }
    *bytes = arena.used;
  }
};

}  // namespace INSTRUCTION_SET
