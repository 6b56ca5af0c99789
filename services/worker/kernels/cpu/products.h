// Matrix products with packed panels (decoder.h).
//
// Each of the 64 sums of a row is kept in one place and takes its words in rising order, whatever the number of rows
// that are computed together and however the words are cut: between two pieces it lies in memory, which rounds nothing.
//
// With WITH_TILES, rows of bfloat16 are multiplied by the processor's tiles, few rows and many: they add up 32 products
// before they add these to a sum, in an order of their own.
#pragma once
#include "decoder.h"
#include "simd.h"
#if defined(WITH_TILES)
#include "tiles.h"
#endif

namespace INSTRUCTION_SET {

constexpr int64_t PANEL = 64;  // outputs
constexpr int64_t PIECE_WORDS = 128;  // 32 KiB of a panel: they stay in the first cache for further rows
constexpr int64_t UNIT_ROWS = 96;     // rows of a unit of work
constexpr int64_t QUANTIZED_UNIT_ROWS = 192;  // more of them share what int8 weights are turned into
constexpr int64_t LINE_WORDS = 16;
constexpr int64_t AHEAD_WORDS = 2048;  // how far ahead a single tile fetches: 8 KiB

template <class T>
constexpr int64_t WORD_NUMBERS = sizeof(uint32_t) / sizeof(T);

#if defined(WITH_TILES)
template <class T>
constexpr bool BY_TILES = sizeof(T) == sizeof(Bfloat16);
#else
template <class T>
constexpr bool BY_TILES = false;
#endif

// The most rows that are multiplied at once.
template <class T>
constexpr int64_t TILE_ROWS = BY_TILES<T> ? 16 : REGISTER_ROWS;

template <class T>
static inline int64_t words_of(int64_t numbers) {
  return (numbers + WORD_NUMBERS<T> - 1) / WORD_NUMBERS<T>;
}

// sums[r][0..63] += (or =) rows r of x times words of a panel. AHEAD_LINES of the memory at `ahead`, which will be needed
// soon, are fetched for each word; it may lie beyond what is ours.
template <class T, int ROWS, int AHEAD_LINES>
static void tile(const uint32_t* x, int64_t x_step, const uint32_t* panel, int64_t words, bool fresh, float* sums,
                 const uint32_t* ahead) {
  for (int first = 0; first < PANEL / LANES; first += TILE_VECTORS) {
    Vector sum[ROWS][TILE_VECTORS];
    for (int r = 0; r < ROWS; ++r) {
      for (int v = 0; v < TILE_VECTORS; ++v) {
        sum[r][v] = fresh ? zeros() : load(sums + r * PANEL + (first + v) * LANES);
      }
    }
    for (int64_t word = 0; word < words; ++word) {
      if (AHEAD_LINES > 0 && first == 0) {
        for (int line = 0; line < AHEAD_LINES; ++line) {
          _mm_prefetch(reinterpret_cast<const char*>(ahead + (word * AHEAD_LINES + line) * LINE_WORDS), _MM_HINT_T0);
        }
      }
      Words w[TILE_VECTORS];
      for (int v = 0; v < TILE_VECTORS; ++v) w[v] = load_words(panel + word * PANEL + (first + v) * LANES);
      for (int r = 0; r < ROWS; ++r) {
        const Words a = all_words(x[r * x_step + word]);
        for (int v = 0; v < TILE_VECTORS; ++v) sum[r][v] = plus_product<T>(sum[r][v], a, w[v]);
      }
    }
    for (int r = 0; r < ROWS; ++r) {
      for (int v = 0; v < TILE_VECTORS; ++v) store(sums + r * PANEL + (first + v) * LANES, sum[r][v]);
    }
  }
}

#if defined(WITH_TILES)
// The same for words that are a multiple of `depth`, by tiles of so many words.
template <int AHEAD_LINES>
static void deep_tile(int64_t rows, const uint32_t* x, int64_t x_step, const uint32_t* panel, int64_t words,
                      int64_t depth, bool fresh, float* sums, const uint32_t* ahead) {
  constexpr int64_t PANEL_BYTES = PANEL * sizeof(uint32_t);
  shape_for(rows, depth);
  if (fresh) {
    CLEAR_TILE(0);
    CLEAR_TILE(1);
    CLEAR_TILE(2);
    CLEAR_TILE(3);
  } else {
    LOAD_TILE(0, sums, PANEL_BYTES);
    LOAD_TILE(1, sums + LANES, PANEL_BYTES);
    LOAD_TILE(2, sums + 2 * LANES, PANEL_BYTES);
    LOAD_TILE(3, sums + 3 * LANES, PANEL_BYTES);
  }
  for (int64_t word = 0; word < words; word += depth) {
    for (int64_t line = word * AHEAD_LINES; line < (word + depth) * AHEAD_LINES; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line * LINE_WORDS), _MM_HINT_T0);
    }
    const uint32_t* outputs = panel + word * PANEL;
    LOAD_TILE(4, x + word, x_step * static_cast<int64_t>(sizeof(uint32_t)));
    LOAD_TILE(5, outputs, PANEL_BYTES);
    MULTIPLY_TILES(0, 4, 5);
    LOAD_TILE(6, outputs + LANES, PANEL_BYTES);
    MULTIPLY_TILES(1, 4, 6);
    LOAD_TILE(7, outputs + 2 * LANES, PANEL_BYTES);
    MULTIPLY_TILES(2, 4, 7);
    LOAD_TILE(5, outputs + 3 * LANES, PANEL_BYTES);
    MULTIPLY_TILES(3, 4, 5);
  }
  STORE_TILE(0, sums, PANEL_BYTES);
  STORE_TILE(1, sums + LANES, PANEL_BYTES);
  STORE_TILE(2, sums + 2 * LANES, PANEL_BYTES);
  STORE_TILE(3, sums + 3 * LANES, PANEL_BYTES);
}
#endif

template <class T, int AHEAD_LINES>
static void tile_of(int64_t rows, const uint32_t* x, int64_t x_step, const uint32_t* panel, int64_t words, bool fresh,
                    float* sums, const uint32_t* ahead) {
#if defined(WITH_TILES)
  if constexpr (BY_TILES<T>) {
    const int64_t rest = words % TILE_DEPTH, whole = words - rest;
    if (whole > 0) deep_tile<AHEAD_LINES>(rows, x, x_step, panel, whole, TILE_DEPTH, fresh, sums, ahead);
    if (rest > 0) {
      deep_tile<0>(rows, x + whole, x_step, panel + whole * PANEL, rest, rest, fresh && whole == 0, sums, nullptr);
    }
    return;
  }
#endif
  switch (rows) {
    case 1: return tile<T, 1, AHEAD_LINES>(x, x_step, panel, words, fresh, sums, ahead);
    case 2: return tile<T, 2, AHEAD_LINES>(x, x_step, panel, words, fresh, sums, ahead);
    case 3: return tile<T, 3, AHEAD_LINES>(x, x_step, panel, words, fresh, sums, ahead);
    case 4: return tile<T, 4, AHEAD_LINES>(x, x_step, panel, words, fresh, sums, ahead);
#if defined(__AVX512F__)
    case 5: return tile<T, 5, AHEAD_LINES>(x, x_step, panel, words, fresh, sums, ahead);
    case 6: return tile<T, 6, AHEAD_LINES>(x, x_step, panel, words, fresh, sums, ahead);
#endif
  }
}

// Rows of x times a panel: sums[rows][64]. x has `x_step` words a row. `fetch`: the panel comes from memory.
template <class T>
static void times_panel(const uint32_t* x, int64_t x_step, int64_t rows, const uint32_t* panel, int64_t words,
                        bool fetch, bool fresh, float* sums) {
  const int64_t tiles = (rows + TILE_ROWS<T> - 1) / TILE_ROWS<T>;
  const int64_t piece_words = tiles == 1 && TILE_VECTORS == PANEL / LANES ? words : PIECE_WORDS;
  for (int64_t begin = 0; begin < words; begin += piece_words) {
    const int64_t count = words - begin < piece_words ? words - begin : piece_words;
    const uint32_t* piece = panel + begin * PANEL;
    const uint32_t* next = piece + count * PANEL;  // its lines are shared out among the first tiles
    int64_t row = 0;
    for (int64_t number = 0; number < tiles; ++number) {
      const int64_t stop = rows * (number + 1) / tiles;
      const uint32_t* from = x + row * x_step + begin;
      const bool begins = fresh && begin == 0;
      float* to = sums + row * PANEL;
      if (!fetch || number >= 4) {
        tile_of<T, 0>(stop - row, from, x_step, piece, count, begins, to, nullptr);
      } else if (tiles == 1) {
        tile_of<T, 4>(stop - row, from, x_step, piece, count, begins, to, piece + AHEAD_WORDS);
      } else if (tiles == 2) {
        tile_of<T, 2>(stop - row, from, x_step, piece, count, begins, to, next + number * count * 2 * LINE_WORDS);
      } else {
        tile_of<T, 1>(stop - row, from, x_step, piece, count, begins, to, next + number * count * LINE_WORDS);
      }
      row = stop;
    }
  }
}

// Few rows times a panel of int8 weights, which are turned into numbers as they are multiplied: sums[rows][64]. VECTORS of
// each row's sums are kept in registers at a time.
template <class T, int ROWS, int VECTORS>
static void quantized_tile(const uint32_t* x, int64_t x_step, const int8_t* panel, int64_t words, float* sums) {
  constexpr int64_t WORD_BYTES = PANEL * WORD_NUMBERS<T>;
  for (int first = 0; first < PANEL / LANES; first += VECTORS) {
    Vector sum[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r) {
      for (int v = 0; v < VECTORS; ++v) sum[r][v] = zeros();
    }
    const int8_t* from = panel + first * LANES * WORD_NUMBERS<T>;
    for (int64_t word = 0; word < words; ++word, from += WORD_BYTES) {
      for (int64_t line = 0; line < WORD_BYTES; line += 64) {
        if (first == 0) _mm_prefetch(reinterpret_cast<const char*>(from + 4 * AHEAD_WORDS + line), _MM_HINT_T0);
      }
      ByteWords<T> w[VECTORS];
      for (int v = 0; v < VECTORS; ++v) w[v] = byte_words<T>(from + v * LANES * WORD_NUMBERS<T>);
      for (int r = 0; r < ROWS; ++r) {
        const Words a = all_words(x[r * x_step + word]);
        for (int v = 0; v < VECTORS; ++v) sum[r][v] = plus_product<T>(sum[r][v], a, w[v]);
      }
    }
    for (int r = 0; r < ROWS; ++r) {
      for (int v = 0; v < VECTORS; ++v) store(sums + r * PANEL + (first + v) * LANES, sum[r][v]);
    }
  }
}

// Does nothing, and returns false, if so many rows are more than the registers hold.
template <class T>
static bool times_few_rows(const uint32_t* x, int64_t x_step, int64_t rows, const int8_t* panel, int64_t words,
                           float* sums) {
  switch (rows) {
#if defined(__AVX512F__)
    case 1: quantized_tile<T, 1, 4>(x, x_step, panel, words, sums); return true;
    case 2: quantized_tile<T, 2, 4>(x, x_step, panel, words, sums); return true;
    case 3: quantized_tile<T, 3, 4>(x, x_step, panel, words, sums); return true;
    case 4: quantized_tile<T, 4, 4>(x, x_step, panel, words, sums); return true;
    case 5: quantized_tile<T, 5, 4>(x, x_step, panel, words, sums); return true;
#else
    case 1: quantized_tile<T, 1, 4>(x, x_step, panel, words, sums); return true;
    case 2: quantized_tile<T, 2, 2>(x, x_step, panel, words, sums); return true;
#endif
  }
  return false;
}

// The same with int8 weights: a piece of the panel at a time is turned into words, in `piece`, unless rows are few.
template <class T>
static void times_quantized_panel(const uint32_t* x, int64_t x_step, int64_t rows, const int8_t* panel, int64_t words,
                                  uint32_t* piece, float* sums) {
  constexpr int64_t WORD_BYTES = PANEL * WORD_NUMBERS<T>;
  if (!BY_TILES<T> && times_few_rows<T>(x, x_step, rows, panel, words, sums)) return;
  for (int64_t begin = 0; begin < words; begin += PIECE_WORDS) {
    const int64_t count = words - begin < PIECE_WORDS ? words - begin : PIECE_WORDS;
    const int8_t* from = panel + begin * WORD_BYTES;
    for (int64_t word = 0; word < count; ++word, from += WORD_BYTES) {
      for (int64_t line = 0; line < WORD_BYTES; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(from + 4 * AHEAD_WORDS + line), _MM_HINT_T0);
      }
      for (int64_t output = 0; output < PANEL; output += LANES) {
        store_words(piece + word * PANEL + output, words_of_bytes<T>(from + output * WORD_NUMBERS<T>));
      }
    }
    times_panel<T>(x + begin, x_step, rows, piece, count, false, begin == 0, sums);
  }
}

}  // namespace INSTRUCTION_SET
