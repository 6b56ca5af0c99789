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

// A product that is a function by itself keeps its sums in registers, whoever calls it.
#define NOT_INLINED __attribute__((noinline))

constexpr int64_t PANEL = 64;  // outputs
// What is read again for further rows stays in the first cache, beside as much that is fetched: 16 KiB of a panel.
constexpr int64_t PIECE_WORDS = 64;
constexpr int64_t UNIT_ROWS = 96;     // rows of a unit of work
constexpr int64_t QUANTIZED_UNIT_ROWS = 192;  // more of them share what int8 weights are turned into
constexpr int64_t LINE_WORDS = 16;
constexpr int64_t LINE_BYTES = LINE_WORDS * sizeof(uint32_t);
constexpr int64_t AHEAD_BYTES = 8192;  // how far ahead a single tile fetches

// How near weights are fetched. Processors that take the program of AVX-512 alone have few places for lines on their way
// to the first cache, and what is multiplied needs these, too.
#if defined(__AVX512F__) && !defined(__AVX512BF16__)
constexpr auto NEAR = _MM_HINT_T1;
#else
constexpr auto NEAR = _MM_HINT_T0;
#endif

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

template <class T>
constexpr int64_t WORD_NUMBERS = sizeof(uint32_t) / sizeof(T);

#if defined(WITH_TILES)
template <class T>
constexpr bool BY_TILES = sizeof(T) == sizeof(Bfloat16);
#else
template <class T>
constexpr bool BY_TILES = false;
#endif

#if defined(__AVX512F__)
template <class T>
constexpr bool SIX_BY_HAND = false;
#else
// AVX2 has 16 registers. The sums of six rows take 12 of them, and with words of two parts no compiler leaves them there.
template <class T>
constexpr bool SIX_BY_HAND = PARTS<T> == 2;
#endif

// The most rows that are multiplied at once.
template <class T>
constexpr int64_t TILE_ROWS = BY_TILES<T> ? 16 : SIX_BY_HAND<T> ? 6 : REGISTER_ROWS;

// With tiles, so many rows share what is loaded of a panel.
constexpr int64_t PAIR_ROWS = 32;
template <class T>
constexpr int64_t SHARED_ROWS = BY_TILES<T> ? PAIR_ROWS : TILE_ROWS<T>;

// The same in words of a panel, and in those of int8 weights.
constexpr int64_t AHEAD = AHEAD_BYTES / static_cast<int64_t>(PANEL * sizeof(uint32_t));
template <class T>
constexpr int64_t AHEAD_OF_BYTES = AHEAD_BYTES / (PANEL * WORD_NUMBERS<T>);

template <class T>
static inline int64_t words_of(int64_t numbers) {
  return (numbers + WORD_NUMBERS<T> - 1) / WORD_NUMBERS<T>;
}


// The words of a panel are cut into as few pieces as have at most PIECE_WORDS, of one size: with one, as much as is
// multiplied is fetched for the next one.
static inline int64_t even_piece(int64_t words) {
  const int64_t pieces = (words + PIECE_WORDS - 1) / PIECE_WORDS, size = (words + pieces - 1) / pieces;
  return (size + LINE_WORDS - 1) / LINE_WORDS * LINE_WORDS;
}

// Of the 4 vectors of a panel, how many are multiplied at once with so many rows: as the registers hold sums.
constexpr int vectors_for(int rows) { return REGISTER_SUMS >= 4 * rows ? 4 : REGISTER_SUMS >= 2 * rows ? 2 : 1; }

// How the 4 vectors of words lie in a piece of a panel: word by word, or one vector of all words after the other. Of these
// at most two are multiplied at once: so a single tile reads them in about the order in which they were fetched.
struct Whole {  // words, of which a part is taken when it is multiplied
  template <class T>
  static Words part(const uint32_t* from, int part) { return part_of<T>(load_words(from), part); }
};
struct ByWord : Whole {
  static constexpr int MOST_VECTORS = PANEL / LANES;
  static constexpr int64_t word_step() { return PANEL; }
  static constexpr int64_t vector_step(int64_t) { return LANES; }
};
struct ByVector : Whole {
  static constexpr int MOST_VECTORS = 2;
  static constexpr int64_t word_step() { return LANES; }
  static constexpr int64_t vector_step(int64_t words) { return words * LANES; }
};

// That of weights. Where a piece is walked through several times, each walk reads one line after the other: with every
// fourth line processors fetch what nobody needs, and what is fetched for the next piece waits behind it.
#if defined(__AVX512F__)
using OfWeights = ByWord;
#else
using OfWeights = ByVector;
#endif

// That of a piece whose words have been taken apart: all first parts, word by word, and then the second ones.
struct Apart : ByWord {
  static constexpr int64_t PART_STEP = PIECE_WORDS * PANEL;
  template <class T>
  static Words part(const uint32_t* from, int part) { return load_words(from + part * PART_STEP); }
};

// Whether many rows share words that are taken apart: with AVX-512 the same units shift and multiply.
template <class T>
constexpr bool TAKES_APART = PARTS<T> == 2 && !SIX_BY_HAND<T>;
constexpr int64_t APART_TILES = 4;  // so many tiles at least

// That of a piece that is made for several tiles.
template <bool IS_APART>
struct OrderOfMade {
  using Order = ByWord;
};
template <>
struct OrderOfMade<true> {
  using Order = Apart;
};
template <class T>
using OfMade = typename OrderOfMade<TAKES_APART<T>>::Order;

// A piece's words, taken apart.
template <class T>
static NOT_INLINED void take_apart(const uint32_t* piece, int64_t words, uint32_t* to) {
  for (int64_t at = 0; at < words * PANEL; at += LANES) {
    for (int part = 0; part < PARTS<T>; ++part) {
      store_words(to + part * Apart::PART_STEP + at, part_of<T>(load_words(piece + at), part));
    }
  }
}

// The words of one output of a panel of weights.
static inline void copy_output(const uint32_t* panel, int64_t words, int64_t output, void* to) {
  const int64_t piece_words = even_piece(words);
  for (int64_t begin = 0; begin < words; begin += piece_words) {
    const int64_t count = least(piece_words, words - begin);
    const uint32_t* from = panel + begin * PANEL + output / LANES * OfWeights::vector_step(count) + output % LANES;
    uint32_t* its = static_cast<uint32_t*>(to) + begin;
    for (int64_t word = 0; word < count; ++word) {
      std::memcpy(its + word, from + word * OfWeights::word_step(), sizeof(uint32_t));
    }
  }
}

// Rows of words as they are multiplied. Where a word has two parts, the first parts of at most PIECE_WORDS of each row
// and then the second ones: taken apart once, for all vectors of a panel.
template <class T, int ROWS>
class Multiplicands {
 public:
  Multiplicands(const uint32_t* x, int64_t x_step, int64_t count) : words_(x), step_(x_step) {
    if (PARTS<T> == 1) return;
    for (int r = 0; r < ROWS; ++r) {
      const uint32_t* from = x + r * x_step;
      uint32_t* to = parts_ + r * PARTS_STEP;
      for (int64_t word = 0; word < count; ++word) {
        to[word] = from[word] << 16;
        to[PIECE_WORDS + word] = from[word] & 0xffff0000u;
      }
    }
  }

  // Where the first part of a row's word is; the second one is PIECE_WORDS behind it, the next row PARTS_STEP.
  const uint32_t* parts_of(int64_t word) const { return parts_ + word; }

  static constexpr int64_t PARTS_STEP = 2 * PIECE_WORDS + LINE_WORDS;  // not all rows in the same sets of a cache

  Words of(int row, int64_t word, int part) const {
    if (PARTS<T> == 1) return all_words(words_[row * step_ + word]);
    return all_words(parts_[row * PARTS_STEP + part * PIECE_WORDS + word]);
  }

 private:
  const uint32_t* words_;
  int64_t step_;
  uint32_t parts_[PARTS<T> == 1 ? 1 : ROWS * PARTS_STEP];
};

// The compiler no longer knows that memory is read twice. It would keep words in registers for their second part, and
// have none left for sums.
template <class Number>
static inline const Number* read_anew(const Number* from) {
  __asm__ volatile("" : "+r"(from));
  return from;
}

// The sums of so many rows and vectors of a panel.
template <int ROWS, int VECTORS>
using Sums = Vector[ROWS][VECTORS];

template <int ROWS, int VECTORS>
static inline void begin_sums(Sums<ROWS, VECTORS>& sum, const float* from, bool fresh) {
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < VECTORS; ++v) sum[r][v] = fresh ? zeros() : load(from + r * PANEL + v * LANES);
  }
}

template <int ROWS, int VECTORS>
static inline void write_sums(const Sums<ROWS, VECTORS>& sum, float* to) {
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < VECTORS; ++v) store(to + r * PANEL + v * LANES, sum[r][v]);
  }
}

template <class T, int ROWS, int VECTORS>
static inline void add_part(Sums<ROWS, VECTORS>& sum, const Multiplicands<T, ROWS>& x, int64_t word, int part,
                            const Words* w) {
  for (int r = 0; r < ROWS; ++r) {
    const Words a = x.of(r, word, part);
    for (int v = 0; v < VECTORS; ++v) sum[r][v] = computed_here(plus_product<T>(sum[r][v], a, w[v]));
  }
}

template <class T, int ROWS, int VECTORS, class Order>
static inline void add_word(Sums<ROWS, VECTORS>& sum, const Multiplicands<T, ROWS>& x, int64_t word,
                            const uint32_t* from, int64_t vector_step) {
  Words w[VECTORS];
  for (int v = 0; v < VECTORS; ++v) w[v] = Order::template part<T>(from + v * vector_step, 0);
  add_part<T, ROWS, VECTORS>(sum, x, word, 0, w);
  if (PARTS<T> == 1) return;
  from = read_anew(from);
  for (int v = 0; v < VECTORS; ++v) w[v] = Order::template part<T>(from + v * vector_step, 1);
  add_part<T, ROWS, VECTORS>(sum, x, word, 1, w);
}

#if !defined(__AVX512F__)
// A row of `x`, so many bytes behind the first one, times the words in w0 and w1.
#define ROW_BY_HAND(AT, LOW, HIGH) \
  "vbroadcastss " AT "(%[x]), %[a]\n\t" \
  "vfmadd231ps %[w0], %[a], %[" #LOW "]\n\t" \
  "vfmadd231ps %[w1], %[a], %[" #HIGH "]\n\t"
#define ROWS_BY_HAND(PART) \
  ROW_BY_HAND("0+" PART, s0, s1) ROW_BY_HAND("576+" PART, s2, s3) ROW_BY_HAND("1152+" PART, s4, s5) \
  ROW_BY_HAND("1728+" PART, s6, s7) ROW_BY_HAND("2304+" PART, s8, s9) ROW_BY_HAND("2880+" PART, s10, s11)

// add_word for six rows of two parts and one vector, in the same order.
template <class T>
static inline void add_word_by_hand(Sums<6, 1>& sum, const Multiplicands<T, 6>& x, int64_t word, const uint32_t* from) {
  static_assert(x.PARTS_STEP == 576 / sizeof(uint32_t) && PIECE_WORDS == 256 / sizeof(uint32_t), "as in ROWS_BY_HAND");
  __m256 a, w0, w1;
  __asm__ volatile(
      "vmovdqu (%[w]), %[w0]\n\t"
      "vmovdqu 32(%[w]), %[w1]\n\t"
      "vpslld $16, %[w0], %[w0]\n\t"
      "vpslld $16, %[w1], %[w1]\n\t"
      ROWS_BY_HAND("0")
      "vpxor %[w1], %[w1], %[w1]\n\t"
      "vpblendw $0xaa, (%[w]), %[w1], %[w0]\n\t"
      "vpblendw $0xaa, 32(%[w]), %[w1], %[w1]\n\t"
      ROWS_BY_HAND("256")
      : [s0] "+x"(sum[0][0].low), [s1] "+x"(sum[0][0].high), [s2] "+x"(sum[1][0].low), [s3] "+x"(sum[1][0].high),
        [s4] "+x"(sum[2][0].low), [s5] "+x"(sum[2][0].high), [s6] "+x"(sum[3][0].low), [s7] "+x"(sum[3][0].high),
        [s8] "+x"(sum[4][0].low), [s9] "+x"(sum[4][0].high), [s10] "+x"(sum[5][0].low), [s11] "+x"(sum[5][0].high),
        [a] "=&x"(a), [w0] "=&x"(w0), [w1] "=&x"(w1)
      : [x] "r"(x.parts_of(word)), [w] "r"(from)
      : "memory");
}
#endif

// What a tile fetches while it multiplies, for its first walks through the words and for the others: it will be needed
// soon, and may lie beyond what is ours.
struct Fetched {
  const char* lines = nullptr;
  const char* later = nullptr;  // null: what follows `lines`
};

// sums[r][0..63] += (or =) rows r of x times words of a panel, at most PIECE_WORDS if a word has parts. AHEAD_LINES are
// fetched for each word. With one or none, the rows of the next tile, at `x_after`, are fetched as well: where there are
// more lines, rows are few and stay in the first cache.
template <class T, int ROWS, int AHEAD_LINES, class Order>
static NOT_INLINED void tile(const uint32_t* x, int64_t x_step, const uint32_t* panel, int64_t words, bool fresh,
                             float* sums, Fetched fetched, const uint32_t* x_after) {
  constexpr int VECTORS = least(vectors_for(ROWS), Order::MOST_VECTORS), WALKS = PANEL / LANES / VECTORS;
  constexpr int LINES_OF_WALK = AHEAD_LINES > WALKS ? AHEAD_LINES / WALKS : 1;
  const Multiplicands<T, ROWS> numbers(x, x_step, words);
  const int64_t vector_step = Order::vector_step(words);
  const char* ahead = fetched.lines;
  for (int walk = 0; walk < WALKS; ++walk) {
    const int first = walk * VECTORS * LANES;
    if (2 * walk == WALKS && fetched.later != nullptr) ahead = fetched.later;
    Sums<ROWS, VECTORS> found;
    begin_sums<ROWS, VECTORS>(found, sums + first, fresh);
    const uint32_t* from = panel + walk * VECTORS * vector_step;
    for (int64_t word = 0; word < words; ++word, from += Order::word_step()) {
      if (walk < AHEAD_LINES) {
        for (int line = 0; line < LINES_OF_WALK; ++line, ahead += LINE_BYTES) _mm_prefetch(ahead, NEAR);
      }
      if (AHEAD_LINES < 2 && walk == 0 && word % LINE_WORDS < ROWS) {
        _mm_prefetch(x_after + word % LINE_WORDS * x_step + word / LINE_WORDS * LINE_WORDS, _MM_HINT_T0);
      }
#if !defined(__AVX512F__)
      if constexpr (SIX_BY_HAND<T> && ROWS == 6) {
        add_word_by_hand<T>(found, numbers, word, from);
        continue;
      }
#endif
      add_word<T, ROWS, VECTORS, Order>(found, numbers, word, from, vector_step);
    }
    write_sums<ROWS, VECTORS>(found, sums + first);
  }
}

#if defined(WITH_TILES)
constexpr int64_t PANEL_BYTES = PANEL * sizeof(uint32_t);

// Tiles 0 and 1 hold 32 sums of each row from `sums` on, tiles 2 and 3 those from `further` on.
static inline void begin_tiles(const float* sums, const float* further, bool fresh) {
  if (fresh) {
    CLEAR_TILE(0);
    CLEAR_TILE(1);
    CLEAR_TILE(2);
    CLEAR_TILE(3);
  } else {
    LOAD_TILE(0, sums, PANEL_BYTES);
    LOAD_TILE(1, sums + LANES, PANEL_BYTES);
    LOAD_TILE(2, further, PANEL_BYTES);
    LOAD_TILE(3, further + LANES, PANEL_BYTES);
  }
}

static inline void write_tiles(float* sums, float* further) {
  STORE_TILE(0, sums, PANEL_BYTES);
  STORE_TILE(1, sums + LANES, PANEL_BYTES);
  STORE_TILE(2, further, PANEL_BYTES);
  STORE_TILE(3, further + LANES, PANEL_BYTES);
}

// The same for words that are a multiple of `depth`, by tiles of so many words.
template <int AHEAD_LINES>
static void deep_tile(int64_t rows, const uint32_t* x, int64_t x_step, const uint32_t* panel, int64_t words,
                      int64_t depth, bool fresh, float* sums, const char* ahead) {
  shape_for(rows, depth);
  begin_tiles(sums, sums + 2 * LANES, fresh);
  for (int64_t word = 0; word < words; word += depth) {
    for (int64_t line = word * AHEAD_LINES; line < (word + depth) * AHEAD_LINES; ++line) {
      _mm_prefetch(ahead + line * LINE_BYTES, _MM_HINT_T0);
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
  write_tiles(sums, sums + 2 * LANES);
}

// PAIR_ROWS rows times 32 outputs of a panel, for words that are a multiple of TILE_DEPTH: what is loaded is multiplied
// twice, and no sum leaves its tile before it is whole. FETCHED_LINES at `ahead` are fetched for each word.
template <int FETCHED_LINES>
static void wide_tile(const uint32_t* x, int64_t x_step, const uint32_t* panel, int64_t words, bool fresh, float* sums,
                      const char* ahead) {
  const int64_t x_bytes = x_step * static_cast<int64_t>(sizeof(uint32_t));
  float* below = sums + TILE_ROWS<Bfloat16> * PANEL;
  shape_for(TILE_ROWS<Bfloat16>, TILE_DEPTH);
  begin_tiles(sums, below, fresh);
  for (int64_t word = 0; word < words; word += TILE_DEPTH) {
    for (int64_t line = word * FETCHED_LINES; line < (word + TILE_DEPTH) * FETCHED_LINES; ++line) {
      _mm_prefetch(ahead + line * LINE_BYTES, _MM_HINT_T1);
    }
    const uint32_t* outputs = panel + word * PANEL;
    LOAD_TILE(4, x + word, x_bytes);
    LOAD_TILE(6, outputs, PANEL_BYTES);
    MULTIPLY_TILES(0, 4, 6);
    LOAD_TILE(7, outputs + LANES, PANEL_BYTES);
    MULTIPLY_TILES(1, 4, 7);
    LOAD_TILE(5, x + TILE_ROWS<Bfloat16> * x_step + word, x_bytes);
    MULTIPLY_TILES(2, 5, 6);
    MULTIPLY_TILES(3, 5, 7);
  }
  write_tiles(sums, below);
}

// As many rows as are whole pairs of tiles, times a panel; returns how many. The first four of their wide tiles fetch
// the panel after this one, as far as the second cache: no panel of all words fits into the first.
static int64_t times_panel_in_pairs(const uint32_t* x, int64_t x_step, int64_t rows, const uint32_t* panel,
                                    int64_t words, const void* after, bool fresh, float* sums) {
  constexpr int64_t HALF = PANEL / 2;
  const int64_t rest = words % TILE_DEPTH, whole = words - rest, paired = rows / PAIR_ROWS * PAIR_ROWS;
  if (whole == 0) return 0;
  const char* ahead = static_cast<const char*>(after == panel ? nullptr : after);
  for (int64_t row = 0; row < paired; row += PAIR_ROWS) {
    const uint32_t* from = x + row * x_step;
    float* to = sums + row * PANEL;
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t number = row / PAIR_ROWS * 2 + half;
      if (ahead == nullptr || number >= 4) {
        wide_tile<0>(from, x_step, panel + half * HALF, whole, fresh, to + half * HALF, nullptr);
      } else if (paired > PAIR_ROWS) {
        const char* quarter = ahead + number * whole * LINE_BYTES;
        wide_tile<1>(from, x_step, panel + half * HALF, whole, fresh, to + half * HALF, quarter);
      } else {
        const char* its_half = ahead + number * whole * 2 * LINE_BYTES;
        wide_tile<2>(from, x_step, panel + half * HALF, whole, fresh, to + half * HALF, its_half);
      }
    }
  }
  for (int64_t row = 0; rest > 0 && row < paired; row += TILE_ROWS<Bfloat16>) {
    deep_tile<0>(TILE_ROWS<Bfloat16>, x + row * x_step + whole, x_step, panel + whole * PANEL, rest, rest, false,
                 sums + row * PANEL, nullptr);
  }
  return paired;
}
#endif

template <class T, int AHEAD_LINES, class Order = ByWord>
static void tile_of(int64_t rows, const uint32_t* x, int64_t x_step, const uint32_t* panel, int64_t words, bool fresh,
                    float* sums, Fetched fetched, const uint32_t* x_after) {
#if defined(WITH_TILES)
  if constexpr (BY_TILES<T>) {
    const int64_t rest = words % TILE_DEPTH, whole = words - rest;
    if (whole > 0) deep_tile<AHEAD_LINES>(rows, x, x_step, panel, whole, TILE_DEPTH, fresh, sums, fetched.lines);
    if (rest > 0) {
      deep_tile<0>(rows, x + whole, x_step, panel + whole * PANEL, rest, rest, fresh && whole == 0, sums, nullptr);
    }
    return;
  }
#endif
  switch (rows) {
    case 1: return tile<T, 1, AHEAD_LINES, Order>(x, x_step, panel, words, fresh, sums, fetched, x_after);
    case 2: return tile<T, 2, AHEAD_LINES, Order>(x, x_step, panel, words, fresh, sums, fetched, x_after);
    case 3: return tile<T, 3, AHEAD_LINES, Order>(x, x_step, panel, words, fresh, sums, fetched, x_after);
    case 4: return tile<T, 4, AHEAD_LINES, Order>(x, x_step, panel, words, fresh, sums, fetched, x_after);
    case 5: return tile<T, 5, AHEAD_LINES, Order>(x, x_step, panel, words, fresh, sums, fetched, x_after);
    default:
      if constexpr (TILE_ROWS<T> == 6) {
        tile<T, 6, AHEAD_LINES, Order>(x, x_step, panel, words, fresh, sums, fetched, x_after);
      }
  }
}

// Rows of x times so many words of a panel. LINES for each word are fetched, unless `fetched` has none.
template <class T, int LINES = 4, class Order = ByWord>
static void times_piece(const uint32_t* x, int64_t x_step, int64_t rows, const uint32_t* piece, int64_t words,
                        Fetched fetched, bool fresh, float* sums) {
  const int64_t tiles = (rows + TILE_ROWS<T> - 1) / TILE_ROWS<T>;
  int64_t row = 0;
  for (int64_t number = 0; number < tiles; ++number) {
    const int64_t stop = rows * (number + 1) / tiles;
    const uint32_t* from = x + row * x_step;
    float* to = sums + row * PANEL;
    const uint32_t* x_after = stop < rows ? x + stop * x_step : x + words;
    // A single tile fetches all lines; of at most three the first two fetch half of them, if they are so many; else the
    // first ones fetch one for each word.
    constexpr int HALF = LINES > 1 ? LINES / 2 : 1;
    const int64_t lines_of_tile = tiles == 1 ? LINES : tiles <= 3 ? HALF : 1;
    const Fetched its{fetched.lines + number * words * lines_of_tile * LINE_BYTES};
    if (fetched.lines == nullptr || number * lines_of_tile >= LINES) {
      tile_of<T, 0, Order>(stop - row, from, x_step, piece, words, fresh, to, {}, x_after);
    } else if (lines_of_tile == LINES) {
      tile_of<T, LINES, Order>(stop - row, from, x_step, piece, words, fresh, to, fetched, x_after);
    } else if (lines_of_tile == HALF) {
      tile_of<T, HALF, Order>(stop - row, from, x_step, piece, words, fresh, to, its, x_after);
    } else {
      tile_of<T, 1, Order>(stop - row, from, x_step, piece, words, fresh, to, its, x_after);
    }
    row = stop;
  }
}

// Rows of x times a panel: sums[rows][64]. x has `x_step` words a row. `after`, unless it is null, is where the panel
// lies that is likely to be the next; then both come from memory, and what is needed soon is fetched while the rest is
// multiplied. `made`, unless it is null, has room for a piece that is made.
template <class T, class Order = ByWord>
static void times_panel(const uint32_t* x, int64_t x_step, int64_t rows, const uint32_t* panel, int64_t words,
                        const void* after, bool fresh, float* sums, uint32_t* made = nullptr) {
#if defined(WITH_TILES)
  if constexpr (BY_TILES<T>) {
    const int64_t done = times_panel_in_pairs(x, x_step, rows, panel, words, after, fresh, sums);
    if (done == rows) return;
    x += done * x_step;
    rows -= done;
    sums += done * PANEL;
    if (done > 0) after = nullptr;
  }
#endif
  constexpr bool BY_WORD = Order::word_step() == PANEL;
  const int64_t tiles = (rows + TILE_ROWS<T> - 1) / TILE_ROWS<T>;
  // Many words at once, if a tile walks through them once.
  const bool is_whole = tiles == 1 && PARTS<T> == 1 && BY_WORD && (BY_TILES<T> || vectors_for(rows) * LANES == PANEL);
  const int64_t piece_words = is_whole ? words : even_piece(words);
  for (int64_t begin = 0, stop_word; begin < words; begin = stop_word) {
    stop_word = least(begin + piece_words, words);
    // What a single tile multiplies while it fetches from the panel after this one is a piece by itself.
    const int64_t last = (words - AHEAD) / LINE_WORDS * LINE_WORDS;
    if (BY_WORD && tiles == 1 && after != nullptr && begin < last) stop_word = least(stop_word, last);
    const int64_t count = stop_word - begin;
    const uint32_t* piece = panel + begin * PANEL;
    const void* next = stop_word < words ? piece + (BY_WORD && tiles == 1 ? AHEAD : count) * PANEL : after;
    Fetched fetched{static_cast<const char*>(next)};
    // The first walks of a single tile fetch what the others read.
    if (!BY_WORD && tiles == 1) fetched = {reinterpret_cast<const char*>(piece + count * PANEL / 2), fetched.lines};
    if (after == nullptr) fetched = {};
    const bool is_fresh = fresh && begin == 0;
    if (TAKES_APART<T> && made != nullptr && tiles >= APART_TILES) {
      take_apart<T>(piece, count, made);
      times_piece<T, 4, OfMade<T>>(x + begin, x_step, rows, made, count, fetched, is_fresh, sums);
    } else {
      times_piece<T, 4, Order>(x + begin, x_step, rows, piece, count, fetched, is_fresh, sums);
    }
  }
}

// Few rows times a panel of int8 weights, which are turned into numbers as they are multiplied: sums[rows][64] += (or =).
// As many bytes as the panel has are fetched from `ahead` on.
template <class T, int ROWS>
static NOT_INLINED void quantized_tile(const uint32_t* x, int64_t x_step, const int8_t* panel, int64_t words,
                                       bool fresh, float* sums, const char* ahead) {
  constexpr int64_t WORD_BYTES = PANEL * WORD_NUMBERS<T>;
  constexpr int VECTORS = vectors_for(ROWS);
  const Multiplicands<T, ROWS> numbers(x, x_step, words);
  for (int first = 0; first < PANEL; first += VECTORS * LANES) {
    Sums<ROWS, VECTORS> found;
    begin_sums<ROWS, VECTORS>(found, sums + first, fresh);
    const int8_t* from = panel + first * WORD_NUMBERS<T>;
    for (int64_t word = 0; word < words; ++word, from += WORD_BYTES) {
      for (int64_t line = 0; line < WORD_BYTES; line += LINE_BYTES) {
        if (first == 0) _mm_prefetch(ahead + word * WORD_BYTES + line, _MM_HINT_T0);
      }
      for (int part = 0; part < PARTS<T>; ++part) {
        Words w[VECTORS];
        for (int v = 0; v < VECTORS; ++v) w[v] = part_of_bytes<T>(from + v * LANES * WORD_NUMBERS<T>, part);
        add_part<T, ROWS, VECTORS>(found, numbers, word, part, w);
      }
    }
    write_sums<ROWS, VECTORS>(found, sums + first);
  }
}

#if defined(WITH_TILES)
// The same for int8 weights that tiles would multiply, in their order: of each TILE_DEPTH words the first numbers'
// products are added up, and the second ones', and both to the sum. So few rows do not wait for a panel's words to be
// made.
template <int ROWS>
static NOT_INLINED void quantized_tile_in_order(const uint32_t* x, int64_t x_step, const int8_t* panel, int64_t words,
                                                bool fresh, float* sums, const char* ahead) {
  constexpr int64_t WORD_BYTES = PANEL * WORD_NUMBERS<Bfloat16>;
  constexpr int VECTORS = PANEL / LANES;
  static_assert(3 * ROWS * VECTORS <= REGISTER_SUMS, "all three kinds of sums are kept in registers");
  Sums<ROWS, VECTORS> found;
  begin_sums<ROWS, VECTORS>(found, sums, fresh);
  for (int64_t begin = 0; begin < words; begin += TILE_DEPTH) {
    Sums<ROWS, VECTORS> first, second;
    begin_sums<ROWS, VECTORS>(first, nullptr, true);
    begin_sums<ROWS, VECTORS>(second, nullptr, true);
    for (int64_t word = begin, stop = least(begin + TILE_DEPTH, words); word < stop; ++word) {
      for (int64_t line = 0; line < WORD_BYTES; line += LINE_BYTES) {
        _mm_prefetch(ahead + word * WORD_BYTES + line, _MM_HINT_T0);
      }
      const int8_t* from = panel + word * WORD_BYTES;
      for (int v = 0; v < VECTORS; ++v, from += 2 * LANES) {
        const Vector firsts = load_widened(from), seconds = load_widened(from + LANES);
        for (int r = 0; r < ROWS; ++r) {
          const uint32_t numbers = x[r * x_step + word];
          first[r][v] = multiply_add(as_vector(all_words(numbers << 16)), firsts, first[r][v]);
          second[r][v] = multiply_add(as_vector(all_words(numbers & 0xffff0000u)), seconds, second[r][v]);
        }
      }
    }
    for (int r = 0; r < ROWS; ++r) {
      for (int v = 0; v < VECTORS; ++v) found[r][v] = found[r][v] + (first[r][v] + second[r][v]);
    }
  }
  write_sums<ROWS, VECTORS>(found, sums);
}
#endif

// So few rows are multiplied with bytes as they are; with tiles more are faster by these.
template <class T>
constexpr int64_t FEW_ROWS = BY_TILES<T> || REGISTER_SUMS < 24 ? 2 : 5;

template <class T, int ROWS>
static void few_rows(const uint32_t* x, int64_t x_step, const int8_t* panel, int64_t words, bool fresh, float* sums,
                     const char* ahead) {
  if constexpr (ROWS > FEW_ROWS<T>) {
    return;  // never called
  } else if constexpr (!BY_TILES<T>) {
    quantized_tile<T, ROWS>(x, x_step, panel, words, fresh, sums, ahead);
  } else {
#if defined(WITH_TILES)
    quantized_tile_in_order<ROWS>(x, x_step, panel, words, fresh, sums, ahead);
#endif
  }
}

// Does nothing, and returns false, if there are more than FEW_ROWS.
template <class T>
static bool times_few_rows(const uint32_t* x, int64_t x_step, int64_t rows, const int8_t* panel, int64_t words,
                           const void* after, float* sums) {
  if (rows > FEW_ROWS<T>) return false;
  constexpr int64_t WORD_BYTES = PANEL * WORD_NUMBERS<T>;
  const int64_t piece_words = PARTS<T> == 1 ? words : PIECE_WORDS;
  for (int64_t begin = 0, stop; begin < words; begin = stop) {
    stop = least(begin + piece_words, words);
    const int64_t last = (words - AHEAD_OF_BYTES<T>) / LINE_WORDS * LINE_WORDS;
    if (begin < last) stop = least(stop, last);
    const int64_t count = stop - begin;
    const uint32_t* from = x + begin;
    const int8_t* piece = panel + begin * WORD_BYTES;
    const char* ahead = static_cast<const char*>(stop < words ? piece + AHEAD_BYTES : after);
    switch (rows) {
      case 1: few_rows<T, 1>(from, x_step, piece, count, begin == 0, sums, ahead); break;
      case 2: few_rows<T, 2>(from, x_step, piece, count, begin == 0, sums, ahead); break;
      case 3: few_rows<T, 3>(from, x_step, piece, count, begin == 0, sums, ahead); break;
      case 4: few_rows<T, 4>(from, x_step, piece, count, begin == 0, sums, ahead); break;
      case 5: few_rows<T, 5>(from, x_step, piece, count, begin == 0, sums, ahead); break;
    }
  }
  return true;
}

// The same with int8 weights: a piece of the panel at a time is turned into words, in `piece`, unless rows are few.
template <class T>
static void times_quantized_panel(const uint32_t* x, int64_t x_step, int64_t rows, const int8_t* panel, int64_t words,
                                  const void* after, uint32_t* piece, float* sums) {
  constexpr int64_t WORD_BYTES = PANEL * WORD_NUMBERS<T>;
  if (times_few_rows<T>(x, x_step, rows, panel, words, after, sums)) return;
  constexpr int LINES = WORD_BYTES / LINE_BYTES;
  const int64_t piece_words = BY_TILES<T> ? PIECE_WORDS : even_piece(words);
  for (int64_t begin = 0; begin < words; begin += piece_words) {
    const int64_t count = least(words - begin, piece_words);
    const int8_t* from = panel + begin * WORD_BYTES;
    for (int64_t word = 0; word < count; ++word, from += WORD_BYTES) {
      const int64_t left = words - begin - word - AHEAD_OF_BYTES<T>;
      const void* ahead = left > 0 ? from + AHEAD_BYTES : static_cast<const int8_t*>(after) - left * WORD_BYTES;
      for (int64_t line = 0; BY_TILES<T> && line < WORD_BYTES; line += LINE_BYTES) {
        _mm_prefetch(static_cast<const char*>(ahead) + line, _MM_HINT_T0);
      }
      for (int64_t output = 0; output < PANEL; output += LANES) {
        const int8_t* bytes = from + output * WORD_NUMBERS<T>;
        uint32_t* to = piece + word * PANEL + output;
        if (TAKES_APART<T>) {
          for (int part = 0; part < PARTS<T>; ++part) {
            store_words(to + part * Apart::PART_STEP, part_of_bytes<T>(bytes, part));
          }
        } else {
          store_words(to, words_of_bytes<T>(bytes));
        }
      }
    }
    if constexpr (BY_TILES<T>) {
      times_panel<T>(x + begin, x_step, rows, piece, count, nullptr, begin == 0, sums);
    } else {  // memory answers only so many at a time: the next piece is fetched while this one is multiplied
      const void* next = begin + count < words ? from : after;
      const Fetched fetched{static_cast<const char*>(next)};
      times_piece<T, LINES, OfMade<T>>(x + begin, x_step, rows, piece, count, fetched, begin == 0, sums);
    }
  }
}

}  // namespace INSTRUCTION_SET
