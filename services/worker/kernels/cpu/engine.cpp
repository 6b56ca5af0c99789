// The C interface, and the choice of the program for the processor.
#include "engine.h"

#include <cpuid.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <new>

#include "decoder.h"

namespace {

struct Choice {
  int64_t (*scratch_bytes)(const Decoder*);
  Program run;
  DrawRows draw;
};

constexpr Choice CHOICES[] = {
    {nullptr, nullptr, nullptr},
    {scratch_bytes_avx2, run_avx2, draw_avx2},
    {scratch_bytes_avx512, run_avx512, draw_avx512},
    {scratch_bytes_avx512_bf16, run_avx512_bf16, draw_avx512_bf16},
    {scratch_bytes_amx_bf16, run_amx_bf16, draw_amx_bf16},
};

constexpr int AVX2 = 1, AVX512 = 2, AVX512_BF16 = 3, AMX_BF16 = 4;

// Of Intel's AMX: the processor and the system have it, and the system lets this process use it.
bool has_tiles() {
#if defined(EMULATED_TILES)
  return true;
#else
  constexpr unsigned TILE_BF16 = 1u << 22, TILE = 1u << 24;    // leaf 7, EDX
  constexpr unsigned TILE_STATES = 1u << 17 | 1u << 18;        // XCR0
  constexpr unsigned SAVES_STATES = 1u << 27;                  // leaf 1, ECX
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & SAVES_STATES)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (TILE_BF16 | TILE)) != (TILE_BF16 | TILE)) return false;
  asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  if ((a & TILE_STATES) != TILE_STATES) return false;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#endif
}

int last_instruction_set() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!wide) return AVX2;
  if (!__builtin_cpu_supports("avx512bf16")) return AVX512;
  return has_tiles() && tiles_multiply() ? AMX_BF16 : AVX512_BF16;
}

}  // namespace

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000 + now.tv_nsec;
}

bool step_goes_on(const Step* step) {
  if (step->given_up != nullptr && __atomic_load_n(step->given_up, __ATOMIC_ACQUIRE) != 0) return false;
  if (step->deadline_ns != 0 && monotonic_ns() >= step->deadline_ns) return false;
  return step->goes_on == nullptr || step->goes_on() != 0;
}

int fastserve_last_instruction_set() {
  static const int last = last_instruction_set();
  return last;
}

int fastserve_best_instruction_set() {
  const int last = fastserve_last_instruction_set();
  static const int best = last == AVX512_BF16 && !pairs_are_quicker() ? AVX512 : last;
  return best;
}

Engine* fastserve_engine(const Decoder* decoder, int instruction_set) {
  if (instruction_set < 1 || instruction_set > fastserve_last_instruction_set()) return nullptr;
  const Choice& choice = CHOICES[instruction_set];
  Engine* engine = new (std::nothrow) Engine();
  if (engine == nullptr) return nullptr;
  engine->decoder = decoder;
  engine->run = choice.run;
  engine->bytes = choice.scratch_bytes(decoder);
  // Zeroed, and so the padding of every row is: nothing writes there but products of zeros. Pages that no batch is large
  // enough for are never taken.
  void* memory = mmap(nullptr, engine->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    delete engine;
    return nullptr;
  }
  madvise(memory, engine->bytes, MADV_HUGEPAGE);
  engine->memory = static_cast<char*>(memory);
  engine->team = team_make(static_cast<int>(decoder->threads));
  if (engine->team == nullptr) {
    fastserve_close(engine);
    return nullptr;
  }
  return engine;
}

void fastserve_close(Engine* engine) {
  if (engine->team != nullptr) team_close(engine->team);
  munmap(engine->memory, engine->bytes);
  delete engine;
}

int fastserve_step(Engine* engine, const Step* step) {
  engine->step = step;
  engine->cut = 0;
  engine->last_iteration = step->iterations - 1;
  team_run(engine->team, engine->run, engine);
  return static_cast<int>(engine->cut);
}

void fastserve_draw(int instruction_set, const float* logits, int64_t rows, int64_t vocabulary, const Draw* draws,
                    void* scratch, int64_t* chosen) {
  CHOICES[instruction_set].draw(logits, rows, vocabulary, draws, scratch, chosen);
}

int64_t fastserve_taken_over(const Engine* engine) { return team_taken_over(engine->team); }
