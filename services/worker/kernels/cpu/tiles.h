// Tiles of Intel's AMX: eight registers of up to 16 rows of 64 bytes, and the product of two of them that hold bfloat16.
//
// By the assembler, so that no flag of the compiler is needed, and so that it knows that memory is read and written.
// EMULATED_TILES does the same without such a processor, as Intel's manual (TDPBF16PS) describes it: for tests.
#pragma once
#include <cstdint>
#include <cstring>

namespace INSTRUCTION_SET {

constexpr int64_t TILE_DEPTH = 16;  // words of a row

// The layout of LDTILECFG's operand.
struct alignas(64) TileShapes {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[8];
  uint8_t reserved_too[16];
  uint8_t rows[8];
  uint8_t reserved_last[8];
};
static_assert(sizeof(TileShapes) == 64, "as the processor reads it");

#if defined(EMULATED_TILES)

struct EmulatedTiles {
  TileShapes shapes;
  unsigned char rows[8][16][64];
};
static thread_local EmulatedTiles emulated;

static inline void demand(bool is_so) {
  if (!is_so) __builtin_trap();  // the processor would raise an exception, too
}
static inline void shape_tiles(const TileShapes& shapes) {
  std::memset(&emulated, 0, sizeof(emulated));
  emulated.shapes = shapes;
}
static inline void release_shapes() { std::memset(&emulated, 0, sizeof(emulated)); }
static inline void clear_numbered(int tile) { std::memset(emulated.rows[tile], 0, sizeof(emulated.rows[tile])); }
static inline void load_numbered(int tile, const void* from, int64_t step) {
  demand(emulated.shapes.rows[tile] > 0);
  clear_numbered(tile);
  for (int r = 0; r < emulated.shapes.rows[tile]; ++r) {
    std::memcpy(emulated.rows[tile][r], static_cast<const char*>(from) + r * step, emulated.shapes.row_bytes[tile]);
  }
}
static inline void store_numbered(int tile, void* to, int64_t step) {
  demand(emulated.shapes.rows[tile] > 0);
  for (int r = 0; r < emulated.shapes.rows[tile]; ++r) {
    std::memcpy(static_cast<char*>(to) + r * step, emulated.rows[tile][r], emulated.shapes.row_bytes[tile]);
  }
}
static inline float emulated_number(int tile, int row, int at) {
  uint16_t bits;
  std::memcpy(&bits, emulated.rows[tile][row] + 2 * at, sizeof(bits));
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float number;
  std::memcpy(&number, &wide, sizeof(number));
  return number;
}
static inline void multiply_numbered(int sum, int a, int b) {
  const TileShapes& shapes = emulated.shapes;
  const int depth = shapes.row_bytes[a] / 4, columns = shapes.row_bytes[sum] / 4;
  demand(shapes.rows[sum] > 0 && shapes.rows[sum] == shapes.rows[a]);
  demand(shapes.rows[b] == depth && shapes.row_bytes[b] == shapes.row_bytes[sum]);
  for (int r = 0; r < shapes.rows[sum]; ++r) {
    float* sums = reinterpret_cast<float*>(emulated.rows[sum][r]);
    for (int column = 0; column < columns; ++column) {
      float first = 0, second = 0;
      for (int k = 0; k < depth; ++k) {
        first += emulated_number(a, r, 2 * k) * emulated_number(b, k, 2 * column);
        second += emulated_number(a, r, 2 * k + 1) * emulated_number(b, k, 2 * column + 1);
      }
      sums[column] += first + second;
    }
  }
}
#define SHAPE_TILES(shapes) shape_tiles(shapes)
#define RELEASE_TILES() release_shapes()
#define CLEAR_TILE(tile) clear_numbered(tile)
#define LOAD_TILE(tile, from, step) load_numbered(tile, from, step)
#define STORE_TILE(tile, to, step) store_numbered(tile, to, step)
#define MULTIPLY_TILES(sum, a, b) multiply_numbered(sum, a, b)

#else

#define SHAPE_TILES(shapes) asm volatile("ldtilecfg %0" ::"m"(shapes))
#define RELEASE_TILES() asm volatile("tilerelease")
#define CLEAR_TILE(tile) asm volatile("tilezero %%tmm" #tile ::)
#define LOAD_TILE(tile, from, step) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"(static_cast<int64_t>(step)) : "memory")
#define STORE_TILE(tile, to, step) \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"(static_cast<int64_t>(step)) : "memory")
#define MULTIPLY_TILES(sum, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::)

#endif

// Of this thread, as they were shaped last; 0: not at all. To shape them empties them.
static thread_local int64_t shaped_rows, shaped_depth;

// Tiles 0 to 3 hold sums, 4 holds `rows` rows of x of `depth` words, 5 to 7 hold `depth` words of 16 outputs.
static inline void shape_for(int64_t rows, int64_t depth) {
  if (rows == shaped_rows && depth == shaped_depth) return;
  TileShapes shapes = {};
  shapes.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.rows[tile] = static_cast<uint8_t>(tile <= 4 ? rows : depth);
    shapes.row_bytes[tile] = static_cast<uint16_t>(tile == 4 ? 4 * depth : 64);
  }
  SHAPE_TILES(shapes);
  shaped_rows = rows;
  shaped_depth = depth;
}

// At the end of a step: a thread that sleeps keeps no tiles for the system to save.
static inline void release_tiles() {
  if (shaped_rows == 0) return;
  RELEASE_TILES();
  shaped_rows = shaped_depth = 0;
}

}  // namespace INSTRUCTION_SET
